"""Promising states of failed responses, by a critic's values, to start from (docs/method.md, 10).

RRL (arXiv 2504.14363): early in training the policy reaches states that it cannot finish, and later
avoids; their values tell them apart. A *state* is a prefix of a stored response; some groups start
from states. Only the abstract was to be had: cut, order and when a state leaves are ours.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from r3_openrlhf.method.core.checks import finite_values, whole_number
from r3_openrlhf.method.types import Word

AGE_HALF_LIFE = 50  # steps after which a state is half as likely to be chosen


class StateFate(Word):
    """The fate of a stored state in a step."""

    CONTINUED = "continued"
    NOT_DRAWN = "not_drawn"  # others came first, or another state of its problem did
    KEEPS_FAILING = "keeps_failing"  # MAX_FAILURES of method/r3.py, none right


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuations:
    """Results of the graded continuations of one state."""

    tries: int = 0
    successes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """A state that a batch may start from.

    Attributes:
        uid: its problem.
        row: id of the stored response that it is a prefix of.
        num_tokens: how long the prefix is.
        value: what the critic gave it when it was cut.
        age: steps since.
        known: its continuations so far.
    """

    uid: str
    row: int
    num_tokens: int
    value: float
    age: int
    known: Continuations


# ── where a response is cut ──


def state_by_value(values: Sequence[float] | np.ndarray, *, places: Sequence[int] | None = None) -> int | None:
    """Return how long the promising state of a failed response is: the n with the largest V_n, the
    shortest of equal ones. None where there is no place to cut.

    Args:
        values: [T]; V_t is of the tokens before token t (OpenRLHF models/model.py:307), so V_n of
            the prefix of n tokens.
        places: where a cut may be, ascending, from 1 to T - 1; None: anywhere.

    Raises:
        ValueError: a place that does not exist, a value that is no number."""
    known = finite_values("values", values) if len(values) else []
    cuts = list(range(1, len(known)) if places is None else places)
    if any(not 1 <= cut < len(known) for cut in cuts) or cuts != sorted(set(cuts)):
        raise ValueError(f"places are {cuts[:8]}; they must ascend from 1 to {len(known) - 1}")
    return max(cuts, key=lambda cut: known[cut], default=None)


# ── which states a batch starts from ──


def promising(states: Sequence[StoredState], rng: random.Random) -> list[StoredState]:
    """By lot, with weights of value, novelty and age:

        w = (rank of V) / m * 1 / (1 + tries) * 2^(-age / AGE_HALF_LIFE)

    The rank is the number of the m states with no larger value, so that the scale of rewards does
    not matter. Drawn without replacement: the order of log w + a standard Gumbel number (Kool et
    al., arXiv 1903.06059)."""
    ascending = sorted(state.value for state in states)
    last = {value: place for place, value in enumerate(ascending, start=1)}

    def key(state: StoredState) -> float:
        weight = math.log(last[state.value] / len(states)) - math.log1p(state.known.tries)
        gumbel = -math.log(max(rng.expovariate(1.0), 1e-300))
        return weight - state.age * math.log(2) / AGE_HALF_LIFE + gumbel

    keys = [key(state) for state in states]
    return [states[i] for i in sorted(range(len(states)), key=keys.__getitem__, reverse=True)]


def choose_states(
    states: Sequence[StoredState], *, count: int, max_failures: int, rng: random.Random
) -> tuple[list[StoredState], Counter[StateFate]]:
    """Up to `count` states to continue, the first of each problem as `promising` orders them, and
    how many states met which fate.

    A state with `max_failures` continuations or more, none of them right, has left.

    ValueError: a count below 0, max_failures below 1."""
    count, limit = whole_number("count", count, minimum=0), whole_number("max_failures", max_failures, minimum=1)
    alive = [state for state in states if state.known.successes or state.known.tries < limit]
    chosen: dict[str, StoredState] = {}
    for state in promising(alive, rng):
        if len(chosen) == count:
            break
        chosen.setdefault(state.uid, state)
    fates = Counter(
        {
            StateFate.CONTINUED: len(chosen),
            StateFate.NOT_DRAWN: len(alive) - len(chosen),
            StateFate.KEEPS_FAILING: len(states) - len(alive),
        }
    )
    return list(chosen.values()), fates


def value_against_outcome(states: Sequence[StoredState]) -> dict[str, float]:
    """Compare the critic with outcomes, over the states with continuations, as metrics: how many
    there are, the mean value of those that ever succeeded and of those that never did, and the
    correlation (Pearson) of value and success rate. What cannot be computed is left out."""
    tried = [state for state in states if state.known.tries]
    found = {"r3/rrl/tried": float(len(tried))}
    for name, wanted in (("value_of_succeeded", True), ("value_of_failed", False)):
        values = [state.value for state in tried if bool(state.known.successes) is wanted]
        if values:
            found[f"r3/rrl/{name}"] = math.fsum(values) / len(values)
    values, rates = [s.value for s in tried], [s.known.successes / s.known.tries for s in tried]
    if len(set(values)) > 1 and len(set(rates)) > 1:
        found["r3/rrl/value_correlation"] = float(np.corrcoef(values, rates)[0, 1])
    return found
