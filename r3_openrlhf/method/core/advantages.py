"""Rewards of one group -> advantages (METHOD section 4, eq. 3 of the R³ paper)."""

import math
import statistics
from collections.abc import Sequence

from r3_openrlhf.method.core.checks import finite_value, finite_values, same_length


def group_advantages(
    rewards: Sequence[float],
    *,
    alpha: float = 1.0,
    lam: float = 1e-9,
    recalled: Sequence[bool] | None = None,
    off_policy_only: bool = False,
) -> list[float]:
    """Advantage of each rollout relative to its own group, recalled rollouts included.

        A_i = (R_i - mean(R)) / (alpha * std(R) + lam)      eq. 3, mean, std over the mixed group

    std divides by n - 1, as torch.std does: with alpha 1, lam 1e-9 and nothing recalled this is
    OpenRLHF's "group_norm". A group whose rewards are all equal, and a group of one row, get
    exactly 0.0: rounding noise in the mean is never divided by lam.

    `off_policy_only`: alpha damps the rows whose `recalled[i]` is true, and the others are scaled
    as with alpha 1.

    Raises:
        ValueError: no rewards, a reward that is not finite, alpha <= 0, lam < 0, `recalled` missing
            or of another length."""
    values = finite_values("rewards", rewards)
    alpha, lam = finite_value("alpha", alpha, above=0), finite_value("lam", lam, min=0)
    if recalled is not None:
        same_length(rewards=values, recalled=list(recalled))
    elif off_policy_only:
        raise ValueError(
            "recalled is None; off_policy_only needs to know which rows were recalled"
        )

    if len(set(values)) == 1:
        return [0.0] * len(values)
    mean = statistics.fmean(values)
    std = statistics.stdev(values)
    damped = recalled if off_policy_only and recalled is not None else [True] * len(values)
    return [
        (value - mean) / ((alpha if damp else 1.0) * std + lam)
        for value, damp in zip(values, damped, strict=True)
    ]


def amplify_successes(
    advantages: Sequence[float], correct: Sequence[bool], *, factor: float
) -> list[float]:
    """Successes weigh more than failures (R³L, arXiv 2601.03715, which takes 3).

        A_i + (factor - 1) * V   where row i is correct,   A_i elsewhere
        V = mean(A_j, j correct), 0 where the verdicts do not differ or the mean is below 0

    V is what the verdict is worth; A_i - V, by which correct responses of different length differ,
    is not amplified. Where successes are alike, and with one success, this is factor * A_i. A failure
    that a ranking prefers keeps its advantage: it is unverified. The sum is no longer 0.

    ValueError: no advantages, a non-finite one, `correct` of another length, factor <= 0.
    """
    values, marks = finite_values("advantages", advantages), [bool(mark) for mark in correct]
    same_length(advantages=values, correct=marks)
    factor = finite_value("factor", factor, above=0)
    successes = [value for value, mark in zip(values, marks, strict=True) if mark]
    verdict = max(0.0, statistics.fmean(successes)) if 0 < len(successes) < len(values) else 0.0
    return [
        value + (factor - 1) * verdict if mark else value
        for value, mark in zip(values, marks, strict=True)
    ]


def keep_order(
    advantages: Sequence[float], plain: Sequence[float], correct: Sequence[bool]
) -> list[float]:
    """Lower a group's failures together until none is above a success that it is not above in `plain`.

    plain: the advantages with one alpha for the whole group and weight 1. An alpha of recalled rows
    alone, or a weight below 1, may shrink a success below a failure that is paid less than it."""
    successes = [
        (usual, value)
        for usual, value, right in zip(plain, advantages, correct, strict=True)
        if right
    ]
    most = [
        math.inf if right else min((v for u, v in successes if usual <= u), default=math.inf)
        for usual, right in zip(plain, correct, strict=True)
    ]
    excess = max(value - top for value, top in zip(advantages, most, strict=True))
    if excess <= 0:
        return list(advantages)
    return [
        value if right else min(value - excess, top)  # exactly, whatever the rounding
        for value, top, right in zip(advantages, most, correct, strict=True)
    ]
