"""Which past rollouts join a collapsed group, and which rows give way to them (CCR, METHOD section 4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from r3_openrlhf.core.checks import whole_number
from r3_openrlhf.types import MIN_RECALLED, RecallOrder


class Candidate(Protocol):
    """A stored rollout, or what stands for one."""

    @property
    def policy_step(self) -> int:
        """Optimizer steps of the weights that sampled it."""


CandidateT = TypeVar("CandidateT", bound=Candidate)


def response_bytes(candidate: Any) -> bytes:
    """Stable key of a Rollout: its response token ids. Rows with equal keys and steps are interchangeable."""
    return candidate.response_ids.tobytes()


def choose(
    candidates: Sequence[CandidateT],
    *,
    k: int,
    order: RecallOrder | str,
    rng: random.Random,
    key: Callable[[CandidateT], Any] = response_bytes,
) -> list[CandidateT]:
    """Up to k distinct candidates: drawn uniformly without replacement, or those with the highest policy_step.

    The candidates are first put in an order of their own (policy_step, then `key`), so that the result depends on
    which rollouts there are and on `rng`, never on the order in which they were stored.

    ValueError: k below 1, an order that is neither "uniform" nor "newest".
    """
    k = whole_number("k", k, minimum=MIN_RECALLED)
    order = RecallOrder.checked("order", order)
    newest_first = sorted(candidates, key=lambda candidate: (-candidate.policy_step, key(candidate)))
    if order is RecallOrder.NEWEST:
        return newest_first[:k]
    return rng.sample(newest_first, min(k, len(newest_first)))


def rows_to_replace(n_rows: int, k: int, rng: random.Random) -> list[int]:
    """Places, ascending, of the k rows of a group that give way to k recalled rows, drawn uniformly.

    ValueError: n_rows below 1, k below 0 or above n_rows.
    """
    n_rows, k = whole_number("n_rows", n_rows, minimum=1), whole_number("k", k, minimum=0)
    if k > n_rows:
        raise ValueError(f"k is {k}; a group of {n_rows} rows cannot give up more than it has")
    return sorted(rng.sample(range(n_rows), k))
