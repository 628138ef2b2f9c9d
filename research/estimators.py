"""OpenRLHF's estimators without a critic, on the lab's rows: one advantage for a whole response.

Answers trainer/ppo_utils/experience_maker.py:288-352. `group_norm` is eq. 3 with nothing recalled, which R3 computes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from r3_openrlhf.method.core.mixed_batch import MixedBatch


def rloo(rewards: Sequence[float]) -> list[float]:
    """The reward less the mean of the others. ValueError: fewer than two."""
    if len(rewards) < 2:
        raise ValueError(f"a group needs two rewards, got {len(rewards)}")
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def centred(rewards: Sequence[float]) -> list[float]:
    """The reward less the group's mean."""
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def whitened(values: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Less the mean over all tokens, divided by their deviation (biased, its square at least 1e-8)."""
    total = sum(tokens)
    mean = math.fsum(value * n for value, n in zip(values, tokens, strict=True)) / total
    variance = math.fsum((value - mean) ** 2 * n for value, n in zip(values, tokens, strict=True)) / total
    return [(value - mean) / math.sqrt(max(variance, 1e-8)) for value in values]


# estimator -> (what a group makes of its rewards, are they then normalised over the step's tokens?)
ESTIMATORS: dict[str, tuple[Callable[[Sequence[float]], list[float]], bool]] = {
    "rloo": (rloo, False),
    "dr_grpo": (centred, False),
    "reinforce": (list, True),
    "reinforce_baseline": (centred, True),
}


def set_advantages(batch: MixedBatch, estimator: str) -> None:
    """Replace the rows' advantages by those of an entry of ESTIMATORS."""
    of_group, whiten = ESTIMATORS[estimator]
    for group in batch.groups:
        rows = [batch.rows[i] for i in group.rows]
        for row, value in zip(rows, of_group([row.outcome_reward for row in rows]), strict=True):
            row.advantage = value
    if whiten:
        tokens = [row.rollout.num_sampled_tokens for row in batch.rows]
        for row, value in zip(batch.rows, whitened([row.advantage for row in batch.rows], tokens), strict=True):
            row.advantage = value
