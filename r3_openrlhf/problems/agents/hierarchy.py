"""Steps of trajectories -> advantages over a hierarchy of groups (HGPO, arXiv 2602.22817).

Steps at the same state whose memories differ are not quite comparable. So a step is compared in
nested groups: with the steps of its task at the same state, with those that also agree in the state
before, and so on up to `depth`."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.method.core.checks import (
    finite_value,
    finite_values,
    same_length,
    whole_number,
)


class ComparedSteps(NamedTuple):
    """Two or more steps compared at one level. The lists have one entry per member."""

    k: int
    members: list[tuple[int, int]]  # (i, t)
    advantages: list[float]  # A_k
    weights: list[float]  # w_k; 0.0: nothing of it goes into the member's advantage


def step_returns(rewards: Sequence[float], *, gamma: float) -> list[float]:
    """Discounted sum of the rewards from each step to the end: R_t = r_t + gamma R_{t+1}.

    Both lists have one entry per step of one trajectory, in order. ValueError: a value that is not
    finite, or a gamma outside 0 ... 1.
    """
    gamma = finite_value("gamma", gamma)
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}; it must be between 0 and 1")
    returns: list[float] = []
    following = 0.0
    for reward in reversed(finite_values("rewards", rewards) if len(rewards) else []):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]


def weighted_means(
    compared: Iterable[ComparedSteps], lengths: Sequence[int]
) -> list[list[float]]:
    """sum_k w_k A_k / sum_k w_k of each step, 0.0 without a weight. `lengths`: steps each."""
    weighted = [[0.0] * length for length in lengths]
    weights = [[0.0] * length for length in lengths]
    for group in compared:
        for (i, t), advantage, weight in zip(
            group.members, group.advantages, group.weights, strict=True
        ):
            weighted[i][t] += weight * advantage
            weights[i][t] += weight
    return [
        [total / weight if weight else 0.0 for total, weight in zip(*pair, strict=True)]
        for pair in zip(weighted, weights, strict=True)
    ]


def compared_steps(
    states: Sequence[Sequence[Hashable]],
    returns: Sequence[Sequence[float]],
    *,
    depth: int,
    alpha: float = 1.0,
    eps: float = 1e-6,
) -> list[ComparedSteps]:
    """Compare the steps of the trajectories of one task: the groups of each level, of two and more.

        A(s_t)   = sum_k w_k A_k(s_t) / sum_k w_k             `weighted_means`; k = 0 ... depth
        A_k(s_t) = (R_t - mean_k) / (std_k + eps)             mean, std over the steps with C_k of s_t
        C_k(s_t) = (s_{t-k}, ..., s_t)                        w_k = (k + 1) ^ alpha

    states[i][t]: the state of trajectory i that step t acts in; any hashable values that are equal
    where states are. returns[i][t]: the step's return (`step_returns`). A group of equal returns has
    A_k exactly 0.0. `depth` is K; 0 is GiGPO's step-level advantage, and trajectories of one step
    from one state get those of GRPO. Where the paper and its public code differ, this is the paper: a
    context that begins before the trajectory does is cut off there, and an advantage of exactly 0 has
    a weight. The paper does not say which std; it is the sample's, as everywhere here.

    Raises:
        ValueError: shapes that differ, a return that is not finite, depth < 0, eps < 0."""
    same_length(states=list(states), returns=list(returns))
    for i, (mine, theirs) in enumerate(zip(states, returns, strict=True)):
        named: dict[str, list[Any]] = {
            f"states[{i}]": list(mine),
            f"returns[{i}]": list(theirs),
        }
        same_length(**named)
    depth = whole_number("depth", depth, minimum=0)
    alpha, eps = finite_value("alpha", alpha), finite_value("eps", eps)
    if eps < 0:
        raise ValueError(f"eps is {eps}; it must be 0 or more")
    values = [
        finite_values(f"returns[{i}]", mine) if len(mine) else []
        for i, mine in enumerate(returns)
    ]

    found = []
    for k in range(depth + 1):
        for group in groups_of_steps(states, k):
            advantages = group_advantages([values[i][t] for i, t in group], lam=eps)
            found.append(
                ComparedSteps(k, group, advantages, [float(k + 1) ** alpha] * len(group))
            )
    return found


def groups_of_steps(
    states: Sequence[Sequence[Hashable]], k: int
) -> Iterator[list[tuple[int, int]]]:
    """Group the (i, t) of steps that agree in their state and the k states before it: groups of two and
    more. A step with fewer states before it agrees with steps whose whole past is the same."""
    groups: dict[tuple[Hashable, ...], list[tuple[int, int]]] = defaultdict(list)
    for i, mine in enumerate(states):
        for t in range(len(mine)):
            groups[tuple(mine[max(0, t - k) : t + 1])].append((i, t))
    return (group for group in groups.values() if len(group) > 1)
