"""The section `agents`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from r3_openrlhf.config.words import AgentEstimator
from r3_openrlhf.method.checks import Section, number, word


@dataclass
class AgentsConfig(Section, prefix="agents."):
    """Tasks of many turns (docs/agents.md): a step plays n_samples_per_prompt trajectories of each
    of rollout.batch_size tasks; each turn is a response of at most rollout.max_new_tokens."""

    # environment: vault | package.module:Class; null: problems
    environment: str | None = None
    # keyword arguments of the environment's class
    options: dict[str, Any] = field(default_factory=dict)
    # turns of a trajectory, at most
    max_turns: int = number(16, min=1)
    # earlier turns in a prompt, at most; fewer if the prompt would be too long
    memory_turns: int = number(4, min=0)
    # grpo: whole trajectories | gigpo: and steps at the same state | hgpo: a hierarchy of groups
    estimator: str = word("hgpo", AgentEstimator)
    # K of hgpo: earlier states that are equal in the finest group [P] 2 or 4
    depth: int = number(2, min=0)
    # alpha of the weights w_k ~ (k + 1) ^ alpha [P]
    alpha: float = 1.0
    # discount of later rewards [P]
    gamma: float = number(0.95, min=0, max=1)
    # subtracted from the reward of a turn with an invalid action
    invalid_penalty: float = number(0.1, min=0)
    # seconds for a step or the start of an environment, which is then killed: its trajectory is lost
    timeout_s: float = number(60.0, above=0)
