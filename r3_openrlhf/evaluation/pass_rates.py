"""From graded responses to numbers: Pass@k, maj@k, intervals. Pure functions of plain values."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

LEVEL = 0.95  # of every interval
NUM_RESAMPLES = 10_000
NUM_DRAWS = 4_000  # subsets of one problem's responses
_RESAMPLES_AT_ONCE = 100  # of a bootstrap: 1,319 problems make 1 MB


def pass_at_k(num_graded: int, num_correct: int, *, k: int) -> float:
    """Unbiased probability that k responses hold a correct one (Chen et al. 2021, eq. 1).

        Pass@k = 1 - C(n - c, k) / C(n, k)

    n graded responses, c of them correct. Pass@1 is c / n. Raises ValueError when k is not in 1..n.
    """
    if not 1 <= k <= num_graded or not 0 <= num_correct <= num_graded:
        raise ValueError(
            f"Pass@{k} of {num_correct} correct in {num_graded} responses does not exist"
        )
    # exact integers: the product form of the paper's appendix only avoids large numbers
    return 1.0 - math.comb(num_graded - num_correct, k) / math.comb(num_graded, k)


def majority_at_k(votes: Sequence[tuple[str | None, bool]], *, k: int, seed: int = 0) -> float:
    """maj@k: probability that the majority answer of k responses is correct, over NUM_DRAWS random
    k-subsets of `votes`; exact where k is their number.

    votes: (final answer in one spelling, is it correct) of each graded response. The answer that
    most of the k responses gave wins; of several with the same number of votes each wins with equal
    probability. A response without an answer (None) takes one of the k places and has no vote;
    where no one votes, the subset is wrong. An answer whose responses have different verdicts is
    correct with the share of the correct ones. Raises ValueError when k is not in 1..len(votes)."""
    if not 1 <= k <= len(votes):
        raise ValueError(f"maj@{k} of {len(votes)} responses does not exist")
    sizes = Counter(answer for answer, _ in votes)
    rights = Counter(answer for answer, correct in votes if correct)
    num_blank, rng = sizes.pop(None, 0), np.random.default_rng(seed)
    shares = np.array([rights[answer] / size for answer, size in sizes.items()])
    num_draws = 1 if k == len(votes) else NUM_DRAWS
    drawn_DA = rng.multivariate_hypergeometric([num_blank, *sizes.values()], k, size=num_draws)[
        :, 1:
    ]
    wins_DA = drawn_DA == drawn_DA.max(axis=1, initial=1, keepdims=True)
    return float(np.mean(wins_DA @ shares / wins_DA.sum(axis=1).clip(1)))


def bootstrap_interval(values: Sequence[float], *, seed: int) -> tuple[float, float] | None:
    """95% percentile interval of the mean, problems drawn with replacement NUM_RESAMPLES times.

    None where all values are equal: 0 of 8 solved does not make it 0 of all."""
    array = np.asarray(values, dtype=np.float64)
    if array.min() == array.max():
        return None
    rng, shape = np.random.default_rng(seed), (_RESAMPLES_AT_ONCE, len(array))
    draws = range(NUM_RESAMPLES // _RESAMPLES_AT_ONCE)
    means = np.concatenate(
        [array[rng.integers(len(array), size=shape)].mean(axis=1) for _ in draws]
    )
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def estimate(values: Sequence[float | None], *, seed: int) -> dict[str, Any]:
    """Mean and interval over the problems that have a value; all None where no problem has one."""
    present = [value for value in values if value is not None]
    low, high = (bootstrap_interval(present, seed=seed) if present else None) or (None, None)
    return {
        "value": fmean(present) if present else None,
        "low": low,
        "high": high,
        "num_problems": len(present),
    }


def ks_up_to(num_samples: int) -> list[int]:
    """Return the k of a Pass@k curve: powers of two, and the number of samples."""
    powers = [
        2**exponent for exponent in range(num_samples.bit_length()) if 2**exponent < num_samples
    ]
    return [*powers, num_samples]
