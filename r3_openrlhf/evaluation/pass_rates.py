"""From graded responses to numbers: Pass@k, maj@k, intervals. Pure functions of plain values.

Absence is not zero. A response that could not be graded takes no part in any accuracy: the graded responses of a
problem are the sample, and a problem with fewer than k of them has no Pass@k and no maj@k. Each estimate carries the
number of problems, and the ungraded responses are counted and bounded (`summarise`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

LEVEL = 0.95  # of every interval
NUM_RESAMPLES = 10_000
_INDICES_AT_ONCE = 2_000_000  # of the bootstrap: 16 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What the estimates need of one response."""

    correct: bool | None  # None: ungraded
    answer: str | None  # its vote: the final answer in one spelling; None: it gave none
    num_tokens: int
    truncated: bool  # ended by the token limit


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkEstimate:
    """A mean over problems with its bootstrap interval; all None where no problem has a value."""

    value: float | None
    low: float | None
    high: float | None
    num_problems: int


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
    """maj@k: probability that the majority answer of k responses is correct, exactly, over all k-subsets of `votes`.

    votes: (final answer in one spelling, is it correct) of each graded response. The answer that most of the k
    responses gave wins; of several with the same number of votes each wins with equal probability. A response without
    an answer (None) takes one of the k places and has no vote; where no one votes, the subset is wrong. An answer whose
    responses have different verdicts is correct with the share of the correct ones.
    Raises ValueError when k is not in 1..len(votes).
    """
    if not 1 <= k <= len(votes):
        raise ValueError(f"maj@{k} of {len(votes)} responses does not exist")
    sizes = Counter(answer for answer, _ in votes)
    rights = Counter(answer for answer, correct in votes if correct)
    num_blank = sizes.pop(None, 0)
    answers = tuple(sorted((size, rights[answer] / size) for answer, size in sizes.items()))
    return _majority(answers, num_blank, k)


@lru_cache(maxsize=65536)
def _majority(answers: tuple[tuple[int, float], ...], num_blank: int, k: int) -> float:
    """Sum over the winning number of votes t: ways to draw the subset in which u answers have exactly t votes and the
    others fewer, weighted by the mean correctness of those u. `answers`: (responses, correctness) of each answer."""
    total = 0.0
    for t in range(1, min(k, max((size for size, _ in answers), default=0)) + 1):
        # [votes drawn, answers that have t]: number of ways, and the same times the summed correctness of the tied
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

    Problems are the unit because responses to one problem are alike. None where all values are equal, as they are for a
    single problem: every resample is then the same, which is no certainty (0 of 8 solved does not make it 0 of all).
    """
    array = np.asarray(values, dtype=np.float64)
    if array.min() == array.max():
        return None
    rng = np.random.default_rng(seed)
    means = np.empty(NUM_RESAMPLES)
    at_once = max(1, _INDICES_AT_ONCE // len(array))
    for start in range(0, NUM_RESAMPLES, at_once):
        chunk = min(at_once, NUM_RESAMPLES - start)
        means[start : start + chunk] = array[rng.integers(len(array), size=(chunk, len(array)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def estimate(values: Sequence[float | None], *, seed: int) -> BenchmarkEstimate:
    """Mean and interval over the problems that have a value."""
    present = [value for value in values if value is not None]
    if not present:
        return BenchmarkEstimate(value=None, low=None, high=None, num_problems=0)
    low, high = bootstrap_interval(present, seed=seed) or (None, None)
    return BenchmarkEstimate(value=math.fsum(present) / len(present), low=low, high=high, num_problems=len(present))


def ks_up_to(num_samples: int) -> list[int]:
    """The k of a Pass@k curve: powers of two, and the number of samples."""
    powers = [2**exponent for exponent in range(num_samples.bit_length()) if 2**exponent < num_samples]
    return [*powers, num_samples]


def summarise(problems: Sequence[Sequence[Response]], *, ks: Sequence[int], seed: int) -> dict[str, Any]:
    """All estimates of one benchmark, as plain data for JSON. `problems`: the responses of each problem.

    pass_at_1_if_ungraded bounds what the ungraded responses hide: Pass@1 had they all been wrong, or all correct.
    """
    responses = [response for problem in problems for response in problem]
    graded = [[response for response in problem if response.correct is not None] for problem in problems]
    num_graded = sum(map(len, graded))

    def over_problems(values: Sequence[float | None]) -> dict[str, Any]:
        return asdict(estimate(values, seed=seed))

    def pass_curve(k: int) -> list[float | None]:
        return [
            pass_at_k(len(rows), sum(bool(row.correct) for row in rows), k=k) if len(rows) >= k else None
            for rows in graded
        ]

    def majority_curve(k: int) -> list[float | None]:
        return [
            majority_at_k([(row.answer, bool(row.correct)) for row in rows], k=k) if len(rows) >= k else None
            for rows in graded
        ]

    def mean_if(ungraded_is: bool) -> float | None:
        shares = [
            sum(ungraded_is if row.correct is None else row.correct for row in rows) / len(rows)
            for rows in problems
            if rows
        ]
        return math.fsum(shares) / len(shares) if shares else None

    return {
        "num_problems": len(problems),
        "num_responses": len(responses),
        "num_ungraded": len(responses) - num_graded,
        "num_problems_without_grade": sum(not rows for rows in graded),
        "pass_at_1": over_problems(pass_curve(1)),
        "pass_at_1_if_ungraded": {"wrong": mean_if(False), "correct": mean_if(True)},
        "pass_at_k": {str(k): over_problems(pass_curve(k)) for k in ks},
        "majority_at_k": {str(k): over_problems(majority_curve(k)) for k in ks},
        "response_tokens_mean": over_problems([_mean([row.num_tokens for row in rows]) for rows in problems]),
        "truncated_rate": over_problems([_mean([row.truncated for row in rows]) for rows in problems]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
