"""Structural entropy ranking reward, SERR (METHOD section 6): ranks failures by how much they look
like focused reasoning.

A response with a few uncertain decision points (high peak entropy) and confidence elsewhere (low
global entropy) ranks above the opposite. The order is partial: most pairs do not dominate.

What ranks is one number per response, the higher the better: for SERR how many others it dominates.
RANKING_SCORES is the table of them; a function of one's own joins it by import path:

    def shortest(rollouts):                      # ranking.score=my_scores.py:shortest
        return [-rollout.num_tokens for rollout in rollouts]

    def calm(rollouts, entropies):               # asks for the entropies of the ranked rows too
        return [-entropy.global_ for entropy in entropies]"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from r3_openrlhf.method.core.checks import finite_value, finite_values, same_length
from r3_openrlhf.method.open_table import OpenTable, named_by, tried
from r3_openrlhf.method.types import Context, EntropyStatistics, Rollout, Verdict

MARGIN = 0.1  # a ranking leaves this share of the way from a failure's own reward to the least success
# between a ranked failure and a success; below it there is none for a ranking
SMALLEST_ROOM = 1e-6


def dominated_counts(peak: Sequence[float], global_: Sequence[float]) -> list[int]:
    """S_i: rows that i dominates.   i > j  iff peak_i > peak_j, global_i < global_j."""
    peaks, globals_ = finite_values("peak", peak), finite_values("global_", global_)
    same_length(peak=peaks, global_=globals_)
    rows = list(zip(peaks, globals_, strict=True))
    return [sum(p > other_p and g < other_g for other_p, other_g in rows) for p, g in rows]


def ranking_rewards(
    peak: Sequence[float], global_: Sequence[float], *, max_reward: float
) -> list[float]:
    """SERR's reward of each ranked failure, in [0, max_reward]: `score_rewards` of S_i.

    Raises:
        ValueError: no rows, unequal lengths, a value that is not finite, max_reward below 0, or 1
            and more."""
    return score_rewards(dominated_counts(peak, global_), max_reward=max_reward)


def score_rewards(scores: Sequence[float], *, max_reward: float) -> list[float]:
    """Reward of each ranked failure by one number, the higher the better, in [0, max_reward].

        R_(k) = max_reward * (1 - k / (N - 1)),   k = 0 .. N-1 the place by falling scores

    Rows with equal scores share the average of their places, so that the order of the rows never
    matters and the sum is always N / 2 * max_reward. A single row gets 0.0: nothing was ranked.

    ValueError: no rows, a score that is not finite, max_reward below 0, or 1 and more (a ranked
    failure must never reach a correct answer).
    """
    max_reward = finite_value("max_reward", max_reward, min=0, below=1)
    values = finite_values("scores", scores)
    if len(values) == 1:
        return [0.0]
    rewards = []
    for value in values:
        first = sum(other > value for other in values)
        last = first + values.count(value) - 1
        rewards.append(max_reward * (1 - (first + last) / 2 / (len(values) - 1)))
    return rewards


def mean_logprob(logprobs_T: Sequence[float] | np.ndarray) -> float:
    """Mean log-prob of one response's tokens under the policy that sampled it, nats per token.

        s = (1 / L) sum_t ln p(y_t | y_<t)          at most 0, however long the response is

    In the lab it predicts better than SERR's entropies which truncated responses become right when
    they may continue (docs/lab.md). ValueError: no tokens, a value that is not finite."""
    return fmean(finite_values("logprobs", logprobs_T))  # exact: their order changes nothing


def ranking_parts(ranking: Sequence[float | None], *, centred: bool) -> list[float]:
    """p_i of each row: its ranking reward, with `centred` less the mean ranking reward; 0 of a row
    that is not ranked (None)."""
    middle = fmean(part for part in ranking if part is not None) if centred else 0.0
    return [0.0 if part is None else part - middle for part in ranking]


def ranked_rewards(
    outcome: Sequence[float],
    ranking: Sequence[float | None],
    correct: Sequence[bool],
    *,
    centred: bool,
) -> list[float]:
    """Reward of each row of a group in which failures are ranked (None: not ranked).

        R_i = o_i + f p_i      p_i: `ranking_parts`
        f = min(1, 0.9 min((s - o_j) / p_j))      over ranked j with p_j > 0; s: the least success

    o_i is the row's own reward, partial credit included. If a ranked failure is paid as much as a
    success, the failures are lowered together first, until it has s - 0.1. So every ranked row is
    below s, rows of equal o_i keep the order of the ranking, and with `centred` a failure that is
    not ranked has the mean p_i of those that are."""
    marks = [part is not None for part in ranking]
    right = [value for value, is_right in zip(outcome, correct, strict=True) if is_right]
    least = min(right, default=math.inf)
    best = max(value for value, mark in zip(outcome, marks, strict=True) if mark)
    own = list(outcome)
    if best > least - SMALLEST_ROOM:
        own = below_successes(outcome, marks, correct, gap=MARGIN)
    parts = ranking_parts(ranking, centred=centred)
    room = [(least - value) / part for value, part in zip(own, parts, strict=True) if part > 0]
    factor = min([1.0, *((1 - MARGIN) * share for share in room)])
    return [value + factor * part for value, part in zip(own, parts, strict=True)]


def below_successes(
    values: Sequence[float],
    ranked: Sequence[bool],
    correct: Sequence[bool],
    *,
    gap: float = 0.0,
) -> list[float]:
    """Lower a group's failures together until the best ranked one is `gap` below the least success."""
    least = min(
        (value for value, right in zip(values, correct, strict=True) if right), default=math.inf
    )
    best = max(value for value, mark in zip(values, ranked, strict=True) if mark)
    if best <= least - gap:
        return list(values)
    # written so that the best row gets exactly least - gap
    return [
        value if right else least - gap - (best - value)
        for value, right in zip(values, correct, strict=True)
    ]


def bounds_decide(
    peak_lower: Sequence[float],
    peak_upper: Sequence[float],
    global_lower: Sequence[float],
    global_upper: Sequence[float],
) -> bool:
    """Tell whether bounds on the statistics decide for all ordered pairs if i dominates j.

    i dominates j for certain when peak_lower_i > peak_upper_j and global_upper_i < global_lower_j;
    not when peak_upper_i <= peak_lower_j or global_lower_i >= global_upper_j. When every pair is
    decided, any values inside the bounds give the same S_i, hence the same ranking rewards."""

    def decided(i: int, j: int) -> bool:
        dominates = peak_lower[i] > peak_upper[j] and global_upper[i] < global_lower[j]
        cannot_dominate = peak_upper[i] <= peak_lower[j] or global_lower[i] >= global_upper[j]
        return dominates or cannot_dominate

    rows = range(len(peak_lower))
    return all(decided(i, j) for i in rows for j in rows if i != j)


# ── the table of scores ──


@dataclass(frozen=True, slots=True)
class RankingScore:
    """Ranks the failures of one group.

    `score`: (rollouts of the group that are ranked, entropies=their EntropyStatistics) -> one finite
    number each; without that parameter no entropy is measured for it."""

    score: Callable[..., Sequence[float]]

    @property
    def needs_entropy(self) -> bool:
        """True if the function has a parameter `entropies`."""
        return bool(named_by(self.score, {"entropies": ()}))

    def of(
        self, rollouts: Sequence[Rollout], entropies: Sequence[EntropyStatistics]
    ) -> list[float]:
        """Compute the scores of one group's rows. ValueError: not one finite number for each."""
        values = finite_values(
            "scores", self.score(rollouts, **named_by(self.score, {"entropies": entropies}))
        )
        if len(values) != len(rollouts):
            raise ValueError(
                f"a ranking score gave {len(values)} numbers for {len(rollouts)} rollouts"
            )
        return values


def dominance(
    _rollouts: Sequence[Rollout], entropies: Sequence[EntropyStatistics]
) -> list[int]:
    """SERR's S_i [P]: high peak and low global entropy."""
    return dominated_counts([one.peak for one in entropies], [one.global_ for one in entropies])


def confidence(rollouts: Sequence[Rollout]) -> list[float]:
    """Compute the mean log-prob of what was sampled of each response; no entropy is needed."""
    return [mean_logprob(rollout.response_logprobs[rollout.sampled]) for rollout in rollouts]


def _score_of_user(path: str, function: Callable[..., Sequence[float]]) -> RankingScore:
    """ConfigError: no function of (rollouts[, entropies]), or it fails on two made-up rollouts."""
    entropies = [EntropyStatistics(peak=1.0 + i, global_=0.5, source="exact") for i in range(2)]
    score = RankingScore(function)
    rollouts = [_made_up(i) for i in range(2)]
    tried(
        "ranking.score", path, lambda: score.of(rollouts, entropies), on="two made-up rollouts"
    )
    return score


def _made_up(number: int) -> Rollout:
    return Rollout(
        uid="made up",
        context=Context.PLAIN,
        prompt_ids=np.array([1], dtype=np.int32),
        response_ids=np.array([2, number], dtype=np.int32),
        response_logprobs=np.full(2, -0.5, dtype=np.float32),
        verdict=Verdict.WRONG,
        reward=0.0,
        truncated=True,
        finish_reason="length",
        policy_step=0,
        epoch=1,
    )


RANKING_SCORES: OpenTable[RankingScore] = OpenTable(
    "ranking.score",
    {"entropy": RankingScore(dominance), "logprob": RankingScore(confidence)},
    of_user=_score_of_user,
)
