"""Plain values that go into the history store and come out of it."""

from dataclasses import dataclass

from r3_openrlhf.method.open_table import Name
from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.method.values import read


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRollout:
    """One row of the store. `rollout.text` is empty: decode `rollout.response_ids`."""

    row: int  # id of the row
    step: int  # training step it was committed with
    copies: int  # how often this very response was sampled while the store kept it
    evicted_at: int | None = None  # step that evicted it; None: recallable
    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequest:
    """Up to k stored rollouts of a problem and verdict, at most max_policy_lag steps old."""

    uid: str
    verdict: Verdict
    k: int
    step: int
    max_policy_lag: int
    order: Name = "uniform"
    contexts: tuple[Context, ...] = (Context.PLAIN,)
    # places of k that imported rows alone take; None: they are chosen among all others
    imported_k: int | None = None

    def __post_init__(self) -> None:
        for name, hint in (("verdict", Verdict), ("contexts", tuple[Context, ...])):
            object.__setattr__(self, name, read(name, hint, getattr(self, name)))
