"""The trajectories of one task -> an advantage per turn: GRPO, GiGPO or HGPO, by `agents`."""

from collections.abc import Sequence

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.config.words import AgentEstimator
from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.problems.agents.hierarchy import (
    compared_steps,
    groups_of_steps,
    weighted_means,
)
from r3_openrlhf.problems.agents.trajectory import End, Trajectory

EPS = 1e-6  # added to the std [P]
# of the trajectory's own advantage [P]; grpo has no other
EPISODE_WEIGHT = {AgentEstimator.GRPO: 1.0, AgentEstimator.GIGPO: 1.0, AgentEstimator.HGPO: 0.0}


def advantages_of_task(
    trajectories: Sequence[Trajectory], settings: AgentsConfig
) -> list[list[float] | None]:
    """One advantage per turn of each trajectory; None for a lost one, which takes no part in any
    group.

        A_t = A_episode                                        grpo
        A_t = A_hierarchy(depth 0) + A_episode                 gigpo (arXiv 2505.10978)
        A_t = A_hierarchy(agents.depth)                        hgpo (arXiv 2602.22817)
        A_episode = (S_i - mean(S)) / (std(S) + eps),   S_i = sum_t r_t of trajectory i

    r_t: less agents.invalid_penalty without an action. Hierarchy: problems/agents/hierarchy.py, on
    returns discounted with agents.gamma. A task of one graded trajectory has advantages 0.0.

    Raises:
        ValueError: trajectories of several tasks."""
    if len({trajectory.task_uid for trajectory in trajectories}) > 1:
        raise ValueError(
            "the trajectories are of several tasks; advantages compare those of one"
        )
    graded = [one for one in trajectories if one.end is not End.LOST]
    if not graded:
        return [None for _ in trajectories]
    sums = [sum(one.rewards(invalid_penalty=settings.invalid_penalty)) for one in graded]
    returns = [
        one.returns(gamma=settings.gamma, invalid_penalty=settings.invalid_penalty)
        for one in graded
    ]
    estimator = AgentEstimator.checked("agents.estimator", settings.estimator)
    steps = [[0.0] * len(own) for own in returns]
    if estimator is not AgentEstimator.GRPO:
        depth = settings.depth if estimator is AgentEstimator.HGPO else 0
        anchors = [one.anchors for one in graded]
        compared = compared_steps(anchors, returns, depth=depth, alpha=settings.alpha, eps=EPS)
        steps = weighted_means(compared, list(map(len, returns)))
    weight = EPISODE_WEIGHT[estimator]
    episodes = group_advantages(sums, lam=EPS)
    found = iter(
        [
            [step + weight * one for step in own]
            for own, one in zip(steps, episodes, strict=True)
        ]
    )
    return [None if one.end is End.LOST else next(found) for one in trajectories]


def steps_alone(trajectories: Sequence[Trajectory], *, depth: int) -> list[float]:
    """Share of turns alone in their group, for k = 0 ... depth: level k says nothing to them.

    Any number of tasks, which share no group. Lost trajectories are left out; 0.0 without turns.
    """
    by_task: dict[str, list[list[str]]] = {}
    for one in trajectories:
        if one.end is not End.LOST:
            by_task.setdefault(one.task_uid, []).append(one.anchors)
    num_steps = sum(len(anchors) for task in by_task.values() for anchors in task)
    shared = (
        sum(len(group) for task in by_task.values() for group in groups_of_steps(task, k))
        for k in range(depth + 1)
    )
    return [1 - steps / num_steps if num_steps else 0.0 for steps in shared]
