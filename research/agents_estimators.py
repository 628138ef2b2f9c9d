"""Variants of HGPO that only the lab compares: without a standard deviation, with the trajectory's own advantage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.config.words import AgentEstimator
from r3_openrlhf.method.checks import number
from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.method.core.estimators import mean_baseline
from r3_openrlhf.problems.agents.advantages import EPISODE_WEIGHT, EPS
from r3_openrlhf.problems.agents.hierarchy import ComparedSteps, groups_of_steps, weighted_means
from r3_openrlhf.problems.agents.trajectory import Trajectory


@dataclass
class LabAgents(AgentsConfig):
    """The section `agents`, and keys of the lab."""

    std_norm: bool = True
    # None: that of the estimator
    episode_weight: float | None = number(None, min=0)


def advantages_of(trajectories: Sequence[Trajectory], settings: LabAgents) -> list[list[float]]:
    """Return an advantage per turn of each trajectory of one task, as `advantages_of_task` for a variant of its estimators."""
    estimator = AgentEstimator.checked("estimator", settings.estimator)
    rewards = [each.rewards(invalid_penalty=settings.invalid_penalty) for each in trajectories]
    returns = [
        each.returns(gamma=settings.gamma, invalid_penalty=settings.invalid_penalty)
        for each in trajectories
    ]
    compared = (
        [] if estimator is AgentEstimator.GRPO else _compared(trajectories, returns, settings)
    )
    weight = (
        EPISODE_WEIGHT[estimator]
        if settings.episode_weight is None
        else settings.episode_weight
    )
    of_episode = _compared_values([sum(values) for values in rewards], settings)
    of_steps = weighted_means(compared, [len(values) for values in returns])
    return [
        [step + weight * episode for step in steps]
        for steps, episode in zip(of_steps, of_episode, strict=True)
    ]


def _compared_values(values: Sequence[float], settings: LabAgents) -> list[float]:
    return group_advantages(values, lam=EPS) if settings.std_norm else mean_baseline(values)


def _compared(
    trajectories: Sequence[Trajectory], returns: Sequence[Sequence[float]], settings: LabAgents
) -> list[ComparedSteps]:
    compared = []
    for k in range(settings.depth + 1 if settings.estimator == AgentEstimator.HGPO else 1):
        for group in groups_of_steps([each.anchors for each in trajectories], k):
            values = [returns[i][t] for i, t in group]
            advantages = _compared_values(values, settings)
            compared.append(
                ComparedSteps(
                    k, group, advantages, [float(k + 1) ** settings.alpha] * len(group)
                )
            )
    return compared
