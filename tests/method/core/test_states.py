"""A critic's promising states: numbers worked by hand, laws, written-out loops."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.states import (
    Continuations,
    StateFate,
    StoredState,
    choose_states,
    promising,
    state_by_value,
    value_against_outcome,
)


def state(uid="p", *, row=0, value=0.5, age=0, tries=0, successes=0):
    known = Continuations(tries=tries, successes=successes)
    return StoredState(uid=uid, row=row, num_tokens=3, value=value, age=age, known=known)


def chosen(states, *, count=1, max_failures=8, seed=0):
    return choose_states(states, count=count, max_failures=max_failures, rng=random.Random(seed))


def test_a_cut_by_hand():
    """The prompt's own value, 0.9, is of no prefix."""
    values = [0.9, 0.2, 0.5, 0.8, 0.1, 0.3]
    assert state_by_value(values) == 3 and state_by_value(values, places=[1, 5]) == 5
    assert state_by_value([0.9]) is state_by_value([]) is None


@given(
    st.lists(st.integers(-4, 4), max_size=12),
    st.sets(st.integers(1, 11)),
    st.booleans(),
)
def test_a_cut_is_that_of_a_loop(values, drawn, anywhere):
    places = [cut for cut in range(1, len(values)) if anywhere or cut in drawn]
    best = None
    for cut in places:
        if best is None or values[cut] > values[best]:
            best = cut
    assert state_by_value(values, places=None if anywhere else places) == best


@pytest.mark.parametrize("places", [[0], [3], [2, 1], [1, 1]])
def test_a_place_that_no_cut_can_have_is_refused(places):
    with pytest.raises(ValueError, match="they must ascend from 1 to 2"):
        state_by_value([0.1, 0.2, 0.3], places=places)


def test_states_are_drawn_by_value_novelty_and_age():
    """Weights by hand, rank / 4 / (1 + tries) / 2^(age / 50): 4/4, 3/4 / 3, 2/4 / 2, 1/4, so shares of 1.75."""
    states = [
        state("best", value=0.9),
        state("tried", value=0.7, tries=2, successes=1),
        state("old", value=0.1, age=50),
        state("worst", value=-2.0),
    ]
    rng, count = random.Random(0), 20_000
    first = Counter(promising(states, rng)[0].uid for _ in range(count))
    for uid, weight in (("best", 1.0), ("tried", 0.25), ("old", 0.25), ("worst", 0.25)):
        assert first[uid] / count == approx(weight / 1.75, abs=0.012)


def test_the_scale_of_rewards_does_not_matter_and_age_never_overflows():
    states = [state(str(i), row=i, value=v, age=i * 10**6) for i, v in enumerate((0.1, 0.4, 0.2))]
    scaled = [state(one.uid, row=one.row, value=one.value * 100 - 7, age=one.age) for one in states]
    orders = [[one.row for one in promising(found, random.Random(3))] for found in (states, scaled)]
    assert orders[0] == orders[1] == [0, 1, 2]
    assert promising([], random.Random(0)) == []


def test_a_state_that_keeps_failing_leaves_and_every_state_has_a_fate():
    states = [
        state("p", row=1, tries=8),
        state("p", row=2, tries=7),
        state("p", row=3),
        state("q", row=4, tries=9, successes=1),
    ]
    found, fates = chosen(states, count=3)
    assert {one.uid for one in found} == {"p", "q"} and 1 not in {one.row for one in found}  # one of each problem
    assert fates == {StateFate.CONTINUED: 2, StateFate.NOT_DRAWN: 1, StateFate.KEEPS_FAILING: 1}
    assert chosen(states, count=0)[0] == [] == chosen([], count=3)[0]


@given(
    st.lists(
        st.builds(
            state,
            st.sampled_from("pqr"),
            row=st.integers(0, 99),
            value=st.floats(-2, 2),
            age=st.integers(0, 200),
            tries=st.integers(0, 9),
        ),
        max_size=9,
    ),
    st.integers(0, 4),
)
def test_a_choice_is_that_of_a_loop(states, count):
    """The order is walked: what failed too often is skipped, so is a problem that has a state already."""
    found, fates = chosen(states, count=count, max_failures=5, seed=7)
    expected = []
    for one in promising([one for one in states if one.known.tries < 5], random.Random(7)):
        if len(expected) < count and one.uid not in [other.uid for other in expected]:
            expected.append(one)
    assert found == expected and sum(fates.values()) == len(states)


def test_value_against_outcome_by_hand():
    """Success rates 0, 1/2 and 1 of the values 1, 2 and 4: a covariance of 3/6 by deviations of sqrt(14/9) and sqrt(1/6)."""
    states = [
        state(value=1, tries=4),
        state(value=2, tries=4, successes=2),
        state(value=4, tries=2, successes=2),
        state(value=9),
    ]
    found = value_against_outcome(states)
    assert found == {
        "r3/rrl/tried": 3,
        "r3/rrl/value_of_succeeded": 3,
        "r3/rrl/value_of_failed": 1,
        "r3/rrl/value_correlation": approx(0.5 / math.sqrt(14 / 9 / 6)),
    }
    assert value_against_outcome([]) == {"r3/rrl/tried": 0}
    assert "r3/rrl/value_correlation" not in value_against_outcome(states[:1])
