"""Choose the past rollouts that join a collapsed group, and the rows that give way to them (CCR,
METHOD section 4).

RECALL_ORDERS is the table of orders; a function of one's own joins it by import path:

    def best(candidates, k, rng):               # replay.order=my_orders.py:best
        return sorted(candidates, key=lambda one: one.reward, reverse=True)[:k]"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from r3_openrlhf.method.core.checks import whole_number
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import Name, OpenTable, check_signature, tried


class Candidate(Protocol):
    """A stored rollout as an order sees it."""

    @property
    def policy_step(self) -> int:
        """Optimizer steps of the weights that sampled it."""

    @property
    def reward(self) -> float | None:
        """Its outcome reward."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the response."""


CandidateT = TypeVar("CandidateT", bound=Candidate)
RecallOrder = Callable[[Sequence[Any], int, random.Random], Sequence[Any]]


def response_bytes(candidate: Any) -> bytes:
    """Stable key of a Rollout: its token ids. Rows of equal key and step are interchangeable."""
    return candidate.response_ids.tobytes()


def choose(
    candidates: Sequence[CandidateT],
    *,
    k: int,
    order: Name,
    rng: random.Random,
    key: Callable[[CandidateT], Any] = response_bytes,
) -> list[CandidateT]:
    """Up to k distinct candidates, as `order` chooses them.

    The order sees the candidates sorted by falling policy_step, then by `key`, so that the result
    depends on which rollouts there are and on `rng`, never on how they were stored.

    ValueError: k below 1, or an order of a user that gives something else than up to k of the
    candidates. ConfigError: an order that does not exist.
    """
    k = whole_number("k", k, minimum=1)
    newest_first = sorted(candidates, key=lambda candidate: (-candidate.policy_step, key(candidate)))
    chosen = list(RECALL_ORDERS[order](newest_first, k, rng))
    known = {id(candidate) for candidate in newest_first}
    if len(chosen) > k or len({id(one) for one in chosen} & known) != len(chosen):
        raise ValueError(
            f"replay.order is {quoted(order)}, which must give up to k = {k} different candidates of those it was given"
        )
    return chosen


def newest(candidates: Sequence[CandidateT], k: int, _rng: random.Random) -> list[CandidateT]:
    """Keep the rollouts of the latest weights."""
    return list(candidates[:k])


def uniform(candidates: Sequence[CandidateT], k: int, rng: random.Random) -> list[CandidateT]:
    """Drawn without replacement, each alike."""
    return rng.sample(list(candidates), min(k, len(candidates)))


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A candidate that a user's order is tried on."""

    policy_step: int
    reward: float
    num_tokens: int
    response_ids: bytearray


def _order_of_user(path: str, function: Any) -> RecallOrder:
    """ConfigError: no function of (candidates, k, rng), or it fails on three made-up ones."""
    check_signature("replay.order", path, function, [], 1, random.Random(0))
    candidates = [MadeUp(step, 1.0 + step / 10, 5 - step, bytearray([step])) for step in range(3)]
    made_up = "three made-up candidates"
    found = tried("replay.order", path, lambda: list(function(candidates, 2, random.Random(0))), on=made_up)
    if len(found) > 2 or any(not any(one is other for other in candidates) for one in found):
        raise ConfigError(
            f"replay.order is {quoted(path)}, which must return up to k of the candidates; it returned {quoted(found)}"
        )
    return function


RECALL_ORDERS: OpenTable[RecallOrder] = OpenTable(
    "replay.order",
    {"uniform": uniform, "newest": newest},
    of_user=_order_of_user,
    unread=lambda path: uniform,
)


def rows_to_replace(n_rows: int, k: int, rng: random.Random) -> list[int]:
    """Places, ascending, of the k rows of a group that give way to k recalled rows, drawn
    uniformly.

    ValueError: n_rows below 1, k below 0 or above n_rows."""
    n_rows, k = whole_number("n_rows", n_rows, minimum=1), whole_number("k", k, minimum=0)
    if k > n_rows:
        raise ValueError(f"k is {k}; a group of {n_rows} rows cannot give up more than it has")
    return sorted(rng.sample(range(n_rows), k))
