"""Rewards of one group -> its advantages, by name: the table behind `advantage.function`.

A function of one's own joins it by import path, `advantage.function=my_estimators.py:maxrl`:

    def maxrl(rewards):                          # of all graded rows of one group, recalled ones too
        mean = sum(rewards) / len(rewards)
        return [(r - mean) / mean if mean > 0 else 0.0 for r in rewards]

It returns one finite number for each row, and names the keywords of FACTS that it needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.method.core.checks import finite_values
from r3_openrlhf.method.open_table import OpenTable, named_by, tried

PSR_WEIGHT = 0.1  # lambda of W-REINFORCE, arXiv 2506.01347, section 5
# eq. 1: OpenRLHF's group_norm
EQ_3: dict[str, Any] = {
    "alpha": 1.0,
    "lam": 1e-9,
    "off_policy_only": False,
}
# keyword -> its value for the made-up group of four: two right, the last recalled, unequal lengths
FACTS: dict[str, Any] = {
    "correct": [True, True, False, False],  # verdicts
    "recalled": [False, False, False, True],  # rows from the history
    "num_tokens": [3, 9, 24, 4],  # of each response
    "differing": 0.5,  # share of the step's groups whose rewards are not all equal
    **EQ_3,
}


@dataclass(frozen=True, slots=True)
class GroupEstimator:
    """Advantages of one group.

    `function`: (rewards of the graded rows, and the keywords of FACTS that it names) -> one finite
    number for each."""

    function: Callable[..., Sequence[float]]

    def of(self, rewards: Sequence[float], **facts: object) -> list[float]:
        """Compute the advantages of a group. `facts`: all of FACTS, with a value for each row where a row has
        one. ValueError: the function returned another number of values, or one that is not finite."""
        values = finite_values(
            "advantages", self.function(rewards, **named_by(self.function, facts))
        )
        if len(values) != len(rewards):
            raise ValueError(
                f"an estimator gave {len(values)} advantages for {len(rewards)} rewards"
            )
        return values

    def reads(self, name: str) -> bool:
        """Return whether the function has a parameter of this name."""
        return bool(named_by(self.function, {name: None}))

    @property
    def reads_failures(self) -> bool:
        """True if a failure's reward counts; else a ranking of failures would change nothing."""
        return self.of([1.0, 1.0, 0.0, 0.0], **FACTS) != self.of([1.0, 1.0, 0.5, 0.0], **FACTS)

    @property
    def trains_equal_groups(self) -> bool:
        """True if a group with equal rewards has advantages other than 0: there is no baseline."""
        return any(self.of([0.0] * 4, **FACTS | {"correct": [False] * 4}))


def mean_baseline(rewards: Sequence[float]) -> list[float]:
    """A_i = r_i - mean(r)                             Dr. GRPO, arXiv 2503.20783"""
    mean = fmean(rewards)
    return (
        [0.0] * len(rewards)
        if len(set(rewards)) == 1
        else [reward - mean for reward in rewards]
    )


def rloo(rewards: Sequence[float]) -> list[float]:
    """A_i = r_i - mean of the other r_j               RLOO, arXiv 2402.14740"""
    others = max(len(rewards) - 1, 1)
    return [value * len(rewards) / others for value in mean_baseline(rewards)]


def maxrl(rewards: Sequence[float]) -> list[float]:
    """A_i = (r_i - mean(r)) / mean(r)                 MaxRL, arXiv 2602.02710

    0 where the mean is not above 0. The paper's rewards are 1 and 0."""
    mean = fmean(rewards)
    return [value / mean if mean > 0 else 0.0 for value in mean_baseline(rewards)]


def nsr(_rewards: Sequence[float], *, correct: Sequence[bool]) -> list[float]:
    """A_i = -1 where row i is wrong, else 0           NSR, arXiv 2506.01347. No baseline."""
    return [0.0 if right else -1.0 for right in correct]


def w_reinforce(_rewards: Sequence[float], *, correct: Sequence[bool]) -> list[float]:
    """A_i = -1 where row i is wrong, else PSR_WEIGHT  W-REINFORCE, arXiv 2506.01347. No baseline."""
    return [PSR_WEIGHT if right else -1.0 for right in correct]


def gpg(rewards: Sequence[float], *, differing: float) -> list[float]:
    """A_i = (r_i - mean(r)) B / (B - M)               GPG, arXiv 2504.02546, F_norm 1

    M of the step's B groups have equal rewards and no gradient. A group that recalled something has
    one, so a recall changes the other groups' advantages."""
    return [value / differing if value else 0.0 for value in mean_baseline(rewards)]


def estimator_of_user(
    key: str, path: str, function: Callable[..., Sequence[float]]
) -> GroupEstimator:
    """Make an entry of a user's function. ConfigError: it cannot be called, or fails on a made-up group."""
    estimator = GroupEstimator(function)
    for rewards, num_right in (
        ([1.75, 1.5, 0.0, 0.0], 2),
        ([0.0] * 4, 0),
        ([1.75, 1.5, 1.0, 1.25], 4),
    ):
        call = partial(
            estimator.of, rewards, **FACTS | {"correct": [i < num_right for i in range(4)]}
        )
        tried(key, path, call, on=f"a made-up group of four, {num_right} of them right")
    return estimator


GROUP_NORM = GroupEstimator(group_advantages)
# group_norm, rloo and dr_grpo are OpenRLHF's words, too, and equal its estimators
ESTIMATORS: OpenTable[GroupEstimator] = OpenTable(
    "advantage.function",
    {
        "group_norm": GROUP_NORM,
        "rloo": GroupEstimator(rloo),
        "dr_grpo": GroupEstimator(mean_baseline),
        "maxrl": GroupEstimator(maxrl),
        "nsr": GroupEstimator(nsr),
        "w_reinforce": GroupEstimator(w_reinforce),
        "gpg": GroupEstimator(gpg),
    },
    of_user=lambda path, function: estimator_of_user("advantage.function", path, function),
)
