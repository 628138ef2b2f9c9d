"""Refuse settings that do not work together with agents.environment, or with tools, or with an agent's file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from r3_openrlhf.config.given_keys import value_of
from r3_openrlhf.config.words import ENVIRONMENT
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import is_import_path, is_looking

if TYPE_CHECKING:
    from r3_openrlhf.config.run import R3Config


class Fixed(NamedTuple):
    """The one value with which a key works together with an environment, and why no other does."""

    value: Any
    why: str


_NOT_A_GRADER = "the environment gives the rewards, not a grader"
WITH_AN_ENVIRONMENT = {
    "replay.mode": Fixed("add", "a recalled trajectory joins its task and replaces nothing"),
    "replay.include_reflection": Fixed(
        False, "a reflected trajectory never joins the plain group"
    ),
    "replay.rehearse.share": Fixed(0, "it trains single responses, not trajectories"),
    "reflection.hint": Fixed(False, "a task has no reference answer"),
    "rollout.collect.share": Fixed(0, "a task is played, not asked once more"),
    "history.start": Fixed(None, "it stores trajectories, and an import has single responses"),
    "ranking.enabled": Fixed(False, "it ranks whole responses, not trajectories"),
    "reward.urls": Fixed([], _NOT_A_GRADER),
    "reward.function": Fixed(None, _NOT_A_GRADER),
    "reward.functions": Fixed([], _NOT_A_GRADER),
    "reward.length_reward_max_tokens": Fixed(None, _NOT_A_GRADER),
    "data.task": Fixed(None, "the environment says what succeeds, not a grader"),
    "train.deterministic": Fixed(False, "which turns are sampled together depends on timing"),
    "advantage.success_scale": Fixed(1, "it is a part of eq. 3"),
    "advantage.function": Fixed("group_norm", "agents.estimator compares trajectories"),
}
# what openrlhf.train.agent_func_path does by itself
AGENT_FILE_DOES = (
    "agents.environment",
    "agents.tools",
    "exploration.rrl.ratio",
    "reward.function",
    "reward.functions",
    "reward.urls",
)


def check_environment(c: R3Config) -> None:
    """ConfigError: an algorithm or a setting that does not work with the environment, or needs one."""
    if is_looking() and is_import_path(c.algo):
        return  # nobody knows here what the algorithm needs
    if c.algorithm.environment and not c.is_agentic:
        raise ConfigError(
            f"algo is {c.algo}, but agents.environment is not set; use agents.environment=NAME, "
            "or algo=grpo for problems"
        )
    if c.is_agentic:
        _check_tasks(c)
        _check_sampling_of_trajectories(c)
        _check_fixed_keys(c)


def check_tools(c: R3Config) -> None:
    """ConfigError: tools beside what cannot have given tokens in a response."""
    if not c.agents.tools:
        return
    if c.is_agentic:
        raise ConfigError(
            f"agents.tools is set and agents.environment is {c.agents.environment}, but an "
            "environment takes one action a turn; use one of the two"
        )
    if c.exploration.rrl.ratio > 0:
        raise ConfigError(
            f"agents.tools is set and exploration.rrl.ratio is {c.exploration.rrl.ratio}, but a "
            "state may end inside a tool's answer; use one of the two"
        )


def check_agent_file(c: R3Config) -> None:
    """ConfigError: a setting for what the agent's own file does."""
    if c.flag("train.agent_func_path") is None:
        return
    for key in AGENT_FILE_DOES:
        value = value_of(c, key)
        if value:
            raise ConfigError(
                f"openrlhf.train.agent_func_path is set and {key} is {value}, but that file's "
                "agent writes, calls and rewards by itself; use one of the two"
            )


def _check_tasks(c: R3Config) -> None:
    # a task of an environment is a seed
    environment = c.agents.environment
    if not c.algorithm.environment:
        raise ConfigError(
            f"agents.environment is {environment}, but algo is {c.algo}, which compares whole "
            "responses; use algo=hgpo, algo=gigpo or algo=agent_grpo"
        )
    if c.data.path != f"{ENVIRONMENT}{environment}":
        raise ConfigError(
            f"agents.environment is {environment} and data.path is {c.data.path}, but its tasks "
            "are its seeds; leave data.path out"
        )
    if c.data.max_samples is None:
        raise ConfigError(
            f"agents.environment is {environment} and data.max_samples is not set; a task is a "
            "seed, so say how many an epoch has: data.max_samples=1024"
        )
    held_out_path = c.data.path if c.held_out.max_samples else None
    if c.held_out.path != held_out_path:
        raise ConfigError(
            f"agents.environment is {environment} and held_out.path is {c.held_out.path}, but "
            "held-out tasks are its next seeds; use held_out.max_samples"
        )


def _check_sampling_of_trajectories(c: R3Config) -> None:
    environment = c.agents.environment
    if c.is_async:
        raise ConfigError(
            f"agents.environment is {environment} and openrlhf.train.async_enable is set, but "
            "trajectories are not sampled ahead of the step that trains; use "
            "openrlhf.train.async_enable=false"
        )
    if c.filters_groups:
        raise ConfigError(
            f"agents.environment is {environment} and openrlhf.algo.dynamic_filtering_enable is "
            "set, but a task's group has a row for each turn; use "
            "openrlhf.algo.dynamic_filtering_enable=false"
        )


def _check_fixed_keys(c: R3Config) -> None:
    for key, fixed in WITH_AN_ENVIRONMENT.items():
        if value_of(c, key) != fixed.value:
            raise ConfigError(
                f"agents.environment is {c.agents.environment} and {key} is set, but "
                f"{fixed.why}; use {key}={as_typed(fixed.value)}"
            )


def as_typed(value: object) -> str:
    """Spell a value as it is typed behind a key."""
    if value is None:
        return "null"
    if value is False:
        return "false"
    return str(value)
