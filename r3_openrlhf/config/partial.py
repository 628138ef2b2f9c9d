"""Refuse settings that do not work together with paused responses (rollout.partial)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r3_openrlhf.method.errors import ConfigError

if TYPE_CHECKING:
    from r3_openrlhf.config.run import R3Config


def check_partial(c: R3Config) -> None:
    """ConfigError: a setting that paused responses exclude."""
    partial, pauses = c.rollout.partial, c.rollout.max_pauses
    default = type(c.rollout).__dataclass_fields__["max_pauses"].default
    if not partial and pauses != default:
        raise ConfigError(
            f"rollout.max_pauses is {pauses}, but rollout.partial is 0, so that nothing is paused; set it, or leave it out"
        )
    if not partial:
        return
    if partial > pauses:
        raise ConfigError(
            f"rollout.partial is {partial} and rollout.max_pauses is {pauses}, but a step trains the groups of one step, so that some of "
            f"{1 + partial:g} steps would wait longer; use rollout.max_pauses of at least rollout.partial"
        )
    why = _why_not(c)
    if why is not None:
        raise ConfigError(
            f"rollout.partial is {partial} and {why}; use one of the two (rollout.partial=0 pauses nothing)"
        )


def _why_not(c: R3Config) -> str | None:
    if c.is_agentic:
        return f"agents.environment is {c.agents.environment}, but the state of an environment cannot be paused"
    if c.flag("train.agent_func_path") is not None:
        return "openrlhf.train.agent_func_path is set, but nobody knows how to pause that agent"
    if c.agents.tools:
        return "agents.tools are set, but a tool's state cannot be paused"
    if c.rollout.stop:
        return f"rollout.stop is {c.rollout.stop}, but a text that begins before a pause would not be found"
    if c.train.deterministic:
        return "train.deterministic is true, but timing decides where a response is paused"
    if c.algorithm.has_critic:
        return f"algo is {c.algo}, but a critic is untested with responses of several steps"
    if c.exploration.rrl.ratio:
        return f"exploration.rrl.ratio is {c.exploration.rrl.ratio}, but the states of a step cannot wait"
    if c.replay.imported.use == "prefix":
        return "replay.imported.use is prefix, but the prefix of a paused response is not kept"
    return None
