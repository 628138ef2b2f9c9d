"""Refuse keys that somebody set and that nothing reads with the run's algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from r3_openrlhf.method.errors import ConfigError

if TYPE_CHECKING:
    from r3_openrlhf.config.run import R3Config


class Mechanism(NamedTuple):
    """A part of an algorithm, whose keys have one beginning."""

    is_part: Callable[[R3Config], bool]
    why_not: str
    remedy: str


def _compares_groups(config: R3Config) -> bool:
    return config.algorithm.own_advantages and not config.algorithm.environment


# the longest beginning of a key decides
MECHANISMS = {
    "advantage.": Mechanism(
        _compares_groups,
        "has its own advantages, not eq. 3",
        "algo=r3",
    ),
    "replay.": Mechanism(
        lambda config: "replay" in config.algorithm.mechanisms,
        "replays no rollouts",
        "algo=r3",
    ),
    "reflection.": Mechanism(
        lambda config: "reflection" in config.algorithm.mechanisms,
        "reflects on nothing",
        "algo=r3",
    ),
    "ranking.": Mechanism(
        lambda config: "ranking" in config.algorithm.mechanisms,
        "ranks no failures",
        "algo=r3",
    ),
    "distill.": Mechanism(
        lambda config: "distill" in config.algorithm.mechanisms,
        "has no teacher",
        "algo=r3",
    ),
    "exploration.rrl.": Mechanism(
        lambda config: config.algorithm.replays_states,
        "keeps no states",
        "algo=rrl",
    ),
    "history.": Mechanism(
        lambda config: config.keeps_history,
        "keeps no history",
        "algo=r3",
    ),
    "agents.": Mechanism(
        lambda config: config.is_agentic,
        "plays in no environment",
        "agents.environment=NAME",
    ),
    # tools need no environment
    "agents.tools": Mechanism(lambda config: True, "", ""),
    "agents.tool_": Mechanism(
        lambda config: bool(config.agents.tools),
        "calls no tools",
        "agents.tools=[python]",
    ),
}
# a key that does nothing -> the key that is meant
MEANT = {
    "replay.dual_clip": "openrlhf.actor.dual_clip",
    "advantage.std_eps": "openrlhf.algo.advantage.lambd for GAE's lambda (algo=ppo)",
}


def check_given(config: R3Config, keys: Iterable[str], *, defaults: Mapping[str, Any]) -> None:
    """ConfigError: somebody set one of these keys, and nothing reads it with this algorithm.

    A default passes, and a mechanism that is switched off. An experiment's keys are not among them: its
    arms have different algorithms."""
    for key in keys:
        if key not in defaults or key.endswith(".enabled"):
            continue
        value = value_of(config, key)
        if value is None or value == defaults[key]:
            continue
        mechanism = _mechanism_of(key)
        if mechanism is None or mechanism.is_part(config):
            continue
        remedy = MEANT.get(key, mechanism.remedy)
        raise ConfigError(
            f"{key} is {value}, but algo is {config.algo}, which {mechanism.why_not}; "
            f"use {remedy}, or leave it out"
        )


def value_of(config: R3Config, key: str) -> object:
    """Return the value of a key as `replay.mode`."""
    return reduce(getattr, key.split("."), config)


def _mechanism_of(key: str) -> Mechanism | None:
    beginnings = [beginning for beginning in MECHANISMS if key.startswith(beginning)]
    if not beginnings:
        return None
    return MECHANISMS[max(beginnings, key=len)]
