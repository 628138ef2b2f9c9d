"""From graded responses to numbers: Pass@k, maj@k, intervals. Pure functions of plain values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

LEVEL = 0.95  # of every interval
NUM_RESAMPLES = 10_000
_RESAMPLES_AT_ONCE = 100  # of a bootstrap: 1,319 problems make 1 MB


def pass_at_k(num_graded: int, num_correct: int, *, k: int) -> float:
    """Unbiased probability that k responses hold a correct one (Chen et al. 2021, eq. 1).

        Pass@k = 1 - C(n - c, k) / C(n, k)

    n graded responses, c of them correct. Pass@1 is c / n. Raises ValueError when k is not in 1..n.
    """
    if not 1 <= k <= num_graded or not 0 <= num_correct <= num_graded:
        raise ValueError(f"Pass@{k} of {num_correct} correct in {num_graded} responses does not exist")
    # exact integers: the product form of the paper's appendix only avoids large numbers
    return 1.0 - math.comb(num_graded - num_correct, k) / math.comb(num_graded, k)


def majority_at_k(votes: Sequence[tuple[str | None, bool]], *, k: int) -> float:
    """maj@k: probability that the majority answer of k responses is correct, exactly, over all
    k-subsets of `votes`.

    votes: (final answer in one spelling, is it correct) of each graded response. The answer that
    most of the k responses gave wins; of several with the same number of votes each wins with equal
    probability. A response without an answer (None) takes one of the k places and has no vote;
    where no one votes, the subset is wrong. An answer whose responses have different verdicts is
    correct with the share of the correct ones. Raises ValueError when k is not in 1..len(votes)."""
    if not 1 <= k <= len(votes):
        raise ValueError(f"maj@{k} of {len(votes)} responses does not exist")
    sizes = Counter(answer for answer, _ in votes)
    rights = Counter(answer for answer, correct in votes if correct)
    num_blank = sizes.pop(None, 0)
    answers = tuple(sorted((size, rights[answer] / size) for answer, size in sizes.items()))
    return _majority(answers, num_blank, k)


@lru_cache(maxsize=65536)
def _majority(answers: tuple[tuple[int, float], ...], num_blank: int, k: int) -> float:
    """Sum over winning numbers of votes t: ways to draw a subset where u answers have exactly t,
    others fewer, times the mean correctness of the u. `answers`: (responses, correctness)."""
    total = 0.0
    for t in range(1, min(k, max((size for size, _ in answers), default=0)) + 1):
        # [votes drawn, answers that have t]: number of ways, and times the tied ones' correctness
        ways = np.zeros((k + 1, k // t + 1))
        ways[0, 0] = 1.0
        right = np.zeros_like(ways)
        for size, correctness in answers:
            next_ways, next_right = np.zeros_like(ways), np.zeros_like(right)
            for drawn in range(min(size, t) + 1):
                choices = math.comb(size, drawn)
                before_ways, before_right = ways[: k + 1 - drawn], right[: k + 1 - drawn]
                if drawn < t:
                    next_ways[drawn:] += choices * before_ways
                    next_right[drawn:] += choices * before_right
                else:
                    next_ways[drawn:, 1:] += choices * before_ways[:, :-1]
                    next_right[drawn:, 1:] += choices * (before_right + correctness * before_ways)[:, :-1]
            ways, right = next_ways, next_right
        for voted in range(t, k + 1):
            shared = sum(right[voted, tied] / tied for tied in range(1, k // t + 1))
            total += shared * math.comb(num_blank, k - voted)
    return float(total / math.comb(sum(size for size, _ in answers) + num_blank, k))


def bootstrap_interval(values: Sequence[float], *, seed: int) -> tuple[float, float] | None:
    """95% percentile interval of the mean, problems drawn with replacement NUM_RESAMPLES times.

    Problems are the unit because responses to one problem are alike. None where all values are
    equal, as they are for a single problem: every resample is then the same, which is no certainty
    (0 of 8 solved does not make it 0 of all)."""
    array = np.asarray(values, dtype=np.float64)
    if array.min() == array.max():
        return None
    rng, shape = np.random.default_rng(seed), (_RESAMPLES_AT_ONCE, len(array))
    draws = range(NUM_RESAMPLES // _RESAMPLES_AT_ONCE)
    means = np.concatenate([array[rng.integers(len(array), size=shape)].mean(axis=1) for _ in draws])
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def estimate(values: Sequence[float | None], *, seed: int) -> dict[str, Any]:
    """Mean and interval over the problems that have a value; all None where no problem has one."""
    present = [value for value in values if value is not None]
    low, high = (bootstrap_interval(present, seed=seed) if present else None) or (None, None)
    return {"value": mean(present), "low": low, "high": high, "num_problems": len(present)}


def ks_up_to(num_samples: int) -> list[int]:
    """Return the k of a Pass@k curve: powers of two, and the number of samples."""
    powers = [2**exponent for exponent in range(num_samples.bit_length()) if 2**exponent < num_samples]
    return [*powers, num_samples]


def mean(values: Sequence[float]) -> float | None:
    """Compute the mean; None of no values."""
    return math.fsum(values) / len(values) if values else None
