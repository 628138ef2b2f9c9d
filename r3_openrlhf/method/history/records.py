"""What goes into the history store and what comes out of it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from r3_openrlhf.method.core.replay import RECALL_ORDERS
from r3_openrlhf.method.errors import ConfigError, HistoryError
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import MIN_HISTORY_BYTES, MIN_RECALLED, Context, Rollout, Verdict, Word


class Absence(Word):
    """Why nothing can be recalled: no such rollout was ever graded; all have left the store (evicted, or there was no room
    for them); those that are there come from weights that are too old."""

    NEVER_SAMPLED = "never_sampled"
    EVICTED = "evicted"
    TOO_OLD = "too_old"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLimits:
    """The bounds of a store. They bind from the next commit on, also for a store that was written under others."""

    # Recallable rollouts of one problem with one verdict, contexts together
    max_per_problem_and_verdict: int = HistorySettings.max_per_problem_and_verdict
    max_bytes: int = HistorySettings.max_bytes  # of the whole file, by the store's own accounting (docs/history.md)

    def __post_init__(self) -> None:
        if self.max_per_problem_and_verdict < 1:
            raise HistoryError(
                f"history.max_per_problem_and_verdict is {self.max_per_problem_and_verdict}; use 1 or more"
            )
        if self.max_bytes < MIN_HISTORY_BYTES:
            raise HistoryError(f"history.max_bytes is {self.max_bytes}; use {MIN_HISTORY_BYTES} or more")


def limits_of(settings: HistorySettings) -> HistoryLimits:
    """The bounds that the settings of a run ask for."""
    return HistoryLimits(
        max_per_problem_and_verdict=settings.max_per_problem_and_verdict, max_bytes=settings.max_bytes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRollout:
    """One row of the store. `rollout.text` is empty: the store keeps token ids, decode `rollout.response_ids`."""

    row: int  # id of the row
    step: int  # training step it was committed with
    prompt_hash: str  # blake2b-128 of the prompt's token ids, hexadecimal
    copies: int  # how often this very response was sampled while the store kept it
    evicted_at: int | None = None  # step that evicted it; None: recallable
    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequest:
    """Up to k stored rollouts of one problem with one verdict, sampled at most max_policy_lag steps before `step`."""

    uid: str
    verdict: Verdict
    k: int
    step: int
    max_policy_lag: int
    order: str = "uniform"
    contexts: tuple[Context, ...] = (Context.PLAIN,)

    def __post_init__(self) -> None:
        if self.k < MIN_RECALLED:
            raise HistoryError(f"cannot recall k = {self.k} rollouts; use {MIN_RECALLED} or more")
        if self.max_policy_lag < 0:
            raise HistoryError(f"max_policy_lag is {self.max_policy_lag}; use 0 or more")
        try:
            RECALL_ORDERS[self.order]
        except ConfigError as error:
            raise HistoryError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many rollouts were committed, and the sum of their rewards (0.0 for ungraded ones, which have none)."""

    count: int = 0
    reward_sum: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSummary:
    """Everything ever committed for one problem, evicted rollouts included."""

    uid: str
    tallies: Mapping[tuple[Context, Verdict], Tally] = field(default_factory=dict)

    def count(self, context: Context, verdict: Verdict) -> int:
        """Rollouts of one context and verdict."""
        return self.tallies.get((context, verdict), Tally()).count

    def reward_sum(self, context: Context, verdict: Verdict) -> float:
        """Sum of their rewards; 0.0 for ungraded ones, which have none."""
        return self.tallies.get((context, verdict), Tally()).reward_sum

    @property
    def seen(self) -> int:
        """Rollouts of every context and verdict."""
        return sum(tally.count for tally in self.tallies.values())
