"""Choose the past rollouts that join a collapsed group (CCR, METHOD section 4).

RECALL_ORDERS is the table of orders; a function of one's own joins it by import path:

    def best(candidates, k, rng):               # replay.order=my_orders.py:best
        return sorted(candidates, key=lambda one: one.reward, reverse=True)[:k]"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from r3_openrlhf.method.errors import quoted
from r3_openrlhf.method.open_table import Name, OpenTable, tried


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored rollout as a recall order sees it."""

    row: int  # id in the store
    policy_step: int  # optimizer steps of the weights that sampled it
    reward: float  # of its outcome
    num_tokens: int  # of the response
    key: bytes  # digest of its content: equal contents have equal keys, in every store
    entropy: float | None = None  # mean token entropy, nats; None: not measured
    # mean of its sampled tokens when it was sampled, nats; None: not known
    logprob: float | None = None


RecallOrder = Callable[[Sequence[Candidate], int, random.Random], Sequence[Candidate]]


def choose(
    candidates: Sequence[Candidate], *, k: int, order: Name, rng: random.Random
) -> list[Candidate]:
    """Up to k distinct candidates, as `order` chooses them.

    The order sees the candidates sorted by falling policy_step, then by key, so that the result
    depends on which rollouts there are and on `rng`, never on how they were stored.

    ValueError: an order of a user that gives something else than up to k of the candidates.
    ConfigError: an order that does not exist."""
    newest_first = sorted(
        candidates, key=lambda candidate: (-candidate.policy_step, candidate.key)
    )
    return _checked(RECALL_ORDERS[order], newest_first, k, rng, name=order)


def _checked(
    function: RecallOrder,
    candidates: Sequence[Candidate],
    k: int,
    rng: random.Random,
    *,
    name: Name,
) -> list[Candidate]:
    chosen = list(function(candidates, k, rng))
    if len(chosen) > k or len({id(one) for one in chosen} & set(map(id, candidates))) != len(
        chosen
    ):
        raise ValueError(
            f"replay.order is {quoted(name)}, which must give up to k = {k} different candidates of those it was given"
        )
    return chosen


def newest(candidates: Sequence[Candidate], k: int, _rng: random.Random) -> list[Candidate]:
    """Keep the rollouts of the latest weights."""
    return list(candidates[:k])


def lowest_entropy(
    candidates: Sequence[Candidate], k: int, _rng: random.Random
) -> list[Candidate]:
    """Keep the most certain rollouts: the largest mean log-prob, whose negative estimates the entropy.

    ExGRPO (arXiv 2510.02245) takes the entropy under the current policy; here it is that of its sampling."""
    return sorted(candidates, key=lambda one: (one.logprob is None, -(one.logprob or 0.0)))[:k]


def uniform(candidates: Sequence[Candidate], k: int, rng: random.Random) -> list[Candidate]:
    """Drawn without replacement, each alike."""
    return rng.sample(list(candidates), min(k, len(candidates)))


def _order_of_user(path: str, function: RecallOrder) -> RecallOrder:
    """ConfigError: no function of (candidates, k, rng), or it fails on three made-up ones."""
    candidates = [
        Candidate(step, step, 1.0 + step / 10, 5 - step, bytes([step]), 0.5, -0.5)
        for step in range(3)
    ]
    call = partial(_checked, function, candidates, 2, random.Random(0), name=path)
    tried("replay.order", path, call, on="three made-up candidates")
    return function


RECALL_ORDERS: OpenTable[RecallOrder] = OpenTable(
    "replay.order",
    {"uniform": uniform, "newest": newest, "lowest_entropy": lowest_entropy},
    of_user=_order_of_user,
)
