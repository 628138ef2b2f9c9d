"""Refuse settings that do not work together with the engine's experts (rollout.routing_replay)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r3_openrlhf.method.errors import ConfigError

if TYPE_CHECKING:
    from r3_openrlhf.config.run import R3Config


# OpenRLHF's flags, and what they are where they are off
UNTESTED = {
    "ds.lora.rank": 0,
    "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1,
}


def check_routing_replay(c: R3Config) -> None:
    """ConfigError: a setting that routing replay does not support."""
    if not c.rollout.routing_replay:
        return
    why = _why_not(c)
    if why is not None:
        raise ConfigError(
            f"rollout.routing_replay is true and {why}; use one of the two "
            "(rollout.routing_replay=false lets the policy choose its experts)"
        )


def _why_not(c: R3Config) -> str | None:
    if c.is_agentic:
        return f"agents.environment is {c.agents.environment}, but the experts of turns are not kept"
    if c.flag("train.agent_func_path") is not None:
        return "openrlhf.train.agent_func_path is set, but that agent returns no experts"
    if c.agents.tools:
        return "agents.tools are set, but the experts of a response in pieces are not kept"
    if c.rollout.partial:
        return f"rollout.partial is {c.rollout.partial}, but the experts of a paused response are not kept"
    if c.is_async:
        return "openrlhf.train.async_enable is on, but rollouts that wait for their step keep no experts"
    for name, off in UNTESTED.items():
        value = c.flag(name)
        if value not in (None, off):
            return f"openrlhf.{name} is {value}, but the experts of its passes are untested"
    return None
