"""Hierarchical advantages by the package, and by brute force."""

from r3_openrlhf.problems.agents.hierarchy import compared_steps, weighted_means


def hierarchy_advantages(states, returns, **options):
    return weighted_means(
        compared_steps(states, returns, **options), [len(mine) for mine in returns]
    )


def brute_force(states, returns, *, depth, alpha, eps):
    """Straight from the definition: for every step and level, look at every other step."""
    steps = [(i, t) for i, mine in enumerate(states) for t in range(len(mine))]
    result = [[0.0] * len(mine) for mine in states]
    for i, t in steps:
        weighted, weights = 0.0, 0.0
        for k in range(depth + 1):
            here = context(states[i], t, k)
            same = [returns[j][u] for j, u in steps if context(states[j], u, k) == here]
            if len(same) == 1:
                continue
            weight = (k + 1) ** alpha
            weighted += weight * advantage_among(returns[i][t], same, eps)
            weights += weight
        if weights > 0:
            result[i][t] = weighted / weights
    return result


def context(states, t, k):
    """The state of step t and the k states before it."""
    return [states[t - back] if t >= back else "before the start" for back in range(k + 1)]


def advantage_among(value, values, eps):
    """(value - mean) / (std + eps), which is 0 where all values are equal."""
    if min(values) == max(values):
        return 0.0
    mean = sum(values) / len(values)
    squares = sum((other - mean) ** 2 for other in values)
    return (value - mean) / ((squares / (len(values) - 1)) ** 0.5 + eps)
