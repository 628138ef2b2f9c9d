"""Promising states of failed responses and of imported solutions, by a critic's values, to start from
(docs/method.md, 10).

RRL (arXiv 2504.14363): early in training the policy reaches states that it cannot finish, and later
avoids; their values tell them apart. A *state* is a prefix of a stored response; some groups start
from states. Only the abstract was to be had: cut and order are ours.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from r3_openrlhf.method.core.checks import finite_values
from r3_openrlhf.method.open_table import OpenTable, tried
from r3_openrlhf.method.types import PromisingState

MAX_CUTS = 4  # of one response: the state and earlier ones


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """A state that a batch may start from.

    Attributes:
        uid: its problem.
        row: id of the stored response that it is a prefix of.
        num_tokens: how long the prefix is.
        value: what the critic gave it when it was cut.
        age: steps since.
        tries, successes: its graded continuations so far, and the right ones among them.
    """

    uid: str
    row: int
    num_tokens: int
    value: float
    age: int
    tries: int = 0
    successes: int = 0


# ── where a response is cut ──

# [T]; V_t is of the tokens before token t (OpenRLHF models/model.py:307)
Values = Sequence[float] | np.ndarray
# (values, places, rng) -> (one of the places, a number: the larger, the more promising)
Cut = Callable[[Values, Sequence[int], random.Random], tuple[int, float]]


def by_value(values: Values, places: Sequence[int], _rng: random.Random) -> tuple[int, float]:
    """Cut where the critic's value is largest, the shortest of equal ones."""
    cut = max(places, key=lambda place: values[place])
    return cut, float(values[cut])


def by_lot(_values: Values, places: Sequence[int], rng: random.Random) -> tuple[int, float]:
    """Cut anywhere, with a number that says nothing: the control without a critic's choice."""
    return rng.choice(places), rng.random()


def _cut_of_user(path: str, function: Cut) -> Cut:
    made_up = [0.1, 0.2, 0.3], [1, 2], random.Random(0)
    tried(
        "exploration.rrl.cut",
        path,
        lambda: state_of(function, *made_up),
        on="a made-up response",
    )
    return function


CUTS: OpenTable[Cut] = OpenTable(
    "exploration.rrl.cut", {"value": by_value, "random": by_lot}, of_user=_cut_of_user
)


def state_of(
    cut: Cut, values: Values, places: Sequence[int], rng: random.Random
) -> PromisingState | None:
    """Find the state of a response, and earlier ones for when it keeps failing: each from the same
    rule, at most half as long as the one before. None where there is no place to cut.

    places: where a cut may be, from 1 to T - 1. ValueError: a cut elsewhere, a number not finite."""
    finite_values("values", values)
    found: list[PromisingState] = []
    while places and len(found) < MAX_CUTS:
        num_tokens, value = cut(values, places, rng)
        if num_tokens not in places or not math.isfinite(value):
            raise ValueError(
                f"a cut gave {num_tokens!r} and {value!r}, not one of the places and a number"
            )
        found.append(PromisingState(num_tokens=int(num_tokens), value=float(value)))
        places = [place for place in places if place <= num_tokens // 2]
    return replace(found[0], earlier=tuple(found[1:])) if found else None


# ── which states a batch starts from ──


def next_cuts(states: Sequence[StoredState]) -> list[StoredState]:
    """Choose of the states of each response the one to continue next: that with the fewest failures (none
    where a continuation was right), the longest of equal ones. So failures move the cut earlier, and a success keeps it."""
    cuts: dict[tuple[str, int], StoredState] = {}
    for state in sorted(
        states, key=lambda one: (0 if one.successes else one.tries, -one.num_tokens)
    ):
        cuts.setdefault((state.uid, state.row), state)
    return [state for state in states if cuts[state.uid, state.row] is state]


def weights(
    states: Sequence[StoredState], values: Sequence[float], tries: Mapping[str, int]
) -> list[float]:
    """Weight of each state by value and novelty; early states are as good as late ones:

        w = (rank of V) / m * 1 / (1 + tries)

    The rank is the number of the m states with no larger value, so that the scale of rewards does
    not matter. `tries`: graded continuations of each problem so far, of all its states, because every
    failure makes a new state of the same problem."""
    ascending = sorted(values)
    last = {value: place for place, value in enumerate(ascending, start=1)}
    return [
        last[value] / len(states) / (1 + tries.get(state.uid, 0))
        for state, value in zip(states, values, strict=True)
    ]


def promising(
    states: Sequence[StoredState], rng: random.Random, *, tries: Mapping[str, int]
) -> list[StoredState]:
    """By lot, with `weights`. Drawn without replacement: the order of log w + a standard Gumbel
    number (Kool et al., arXiv 1903.06059)."""
    keys = [
        math.log(weight) - math.log(max(rng.expovariate(1.0), 1e-300))
        for weight in weights(states, [state.value for state in states], tries)
    ]
    return [states[i] for i in sorted(range(len(states)), key=keys.__getitem__, reverse=True)]


def choose_states(
    states: Sequence[StoredState], *, count: int, tries: Mapping[str, int], rng: random.Random
) -> list[StoredState]:
    """Up to `count` states to continue: the first of each problem as `promising` orders the next
    cuts."""
    chosen: dict[str, StoredState] = {}
    for state in promising(next_cuts(states), rng, tries=tries):
        chosen.setdefault(state.uid, state)
    return list(chosen.values())[:count]


SHARES = (0.75, 0.5, 0.25)  # of its tokens that a group is given, one after the other
SOLVED = 0.25  # share of right continuations from which the next group is given less


def next_prefix(num_tokens: int, tried: Callable[[int], tuple[int, int]]) -> int | None:
    """Count the first tokens of a stored success, of num_tokens, to begin with: the largest of SHARES
    whose continuations are not SOLVED yet; None: all are. A reverse curriculum, as in PrefixRL (arXiv
    2601.18795) and BREAD (2506.17211), with our shares.

    tried: number of first tokens -> continuations so far, and the right ones among them."""
    for share in SHARES:
        length = round(share * num_tokens)
        tries, right = tried(length)
        if 0 < length < num_tokens and not (tries and right >= SOLVED * tries):
            return length
    return None
