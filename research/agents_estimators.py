"""Variants of HGPO that only the lab compares: the reading of its public code, without a std, with the trajectory's own advantage.

Where HGPO's paper and its public code differ, the package follows the paper. The code leaves out a level k > t, weighs level k
with (k + 2)^alpha, gives an A_k of exactly 0 no weight, and has the std of the population.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.config.words import AgentEstimator
from r3_openrlhf.method.checks import number, word
from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.problems.agents.advantages import EPISODE_WEIGHT, EPS
from r3_openrlhf.problems.agents.hierarchy import ComparedSteps, groups_of_steps, weighted_means
from r3_openrlhf.problems.agents.trajectory import Trajectory


@dataclass
class LabAgents(AgentsConfig):
    """The section `agents`, and keys of the lab."""

    std_norm: bool = True
    reading: str = word("paper", ("paper", "code"))
    # None: that of the estimator
    episode_weight: float | None = number(None, min=0)


def advantages_of(trajectories: Sequence[Trajectory], settings: LabAgents) -> list[list[float]]:
    """Return an advantage per turn of each trajectory of one task, as `advantages_of_task` for a variant of its estimators."""
    estimator = AgentEstimator.checked("estimator", settings.estimator)
    rewards = [one.rewards(invalid_penalty=settings.invalid_penalty) for one in trajectories]
    returns = [one.returns(gamma=settings.gamma, invalid_penalty=settings.invalid_penalty) for one in trajectories]
    compared = [] if estimator is AgentEstimator.GRPO else _compared(trajectories, returns, settings)
    weight = EPISODE_WEIGHT[estimator] if settings.episode_weight is None else settings.episode_weight
    of_episode = group_advantages([sum(values) for values in rewards], lam=EPS, std_norm=settings.std_norm)
    of_steps = weighted_means(compared, [len(values) for values in returns])
    return [[step + weight * episode for step in steps] for steps, episode in zip(of_steps, of_episode, strict=True)]


def _compared(
    trajectories: Sequence[Trajectory], returns: Sequence[Sequence[float]], settings: LabAgents
) -> list[ComparedSteps]:
    is_code = settings.reading == "code"
    compared = []
    for k in range(settings.depth + 1 if settings.estimator == AgentEstimator.HGPO else 1):
        for group in groups_of_steps([one.anchors for one in trajectories], k):
            if is_code and any(t < k for _, t in group):
                continue
            advantages = _of_group([returns[i][t] for i, t in group], settings)
            weight = float(k + 2 if is_code else k + 1) ** settings.alpha
            weights = [0.0 if is_code and value == 0.0 else weight for value in advantages]
            compared.append(ComparedSteps(k, group, advantages, weights))
    return compared


def _of_group(returns: list[float], settings: LabAgents) -> list[float]:
    if settings.reading == "paper" or not settings.std_norm:
        return group_advantages(returns, lam=EPS, std_norm=settings.std_norm)
    if len(set(returns)) == 1:
        return [0.0] * len(returns)
    mean, std = statistics.fmean(returns), statistics.pstdev(returns)
    return [(value - mean) / (std + EPS) for value in returns]
