"""States of stored responses: numbers worked by hand, laws, and what a long run of choices comes to."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.method.core.prefix import (
    Continuations,
    cut_points,
    state_of_failures,
    state_of_success,
)
from r3_openrlhf.method.types import CutRule

IDS = [4, 9, 4, 4, 9, 4, 4, 4, 9, 4, 4, 2]  # 9 ends a line
LOGPROBS = [-0.1, -2.0, -0.2, -0.1, -3.0, -0.1, -0.2, -5.0, -0.1, -0.1, -4.0, -0.3]


def cuts(rule, *, count=3, max_prefix=99, ids=IDS, logprobs=LOGPROBS, delimiters=(9,)):
    return cut_points(ids, logprobs, rule=rule, count=count, max_prefix=max_prefix, delimiters=delimiters)


def test_cuts_by_hand():
    assert cuts("fractions") == [3, 6, 9]  # a quarter, half, three quarters of 12
    assert cuts("fractions", count=1) == [6]
    assert cuts("uncertain") == [4, 7, 10]  # before -3, -5 and -4; never before the first token
    assert cuts("uncertain", max_prefix=7) == [1, 4, 7]
    assert cuts("delimiters") == [2, 5, 9]  # behind each 9
    assert cuts("delimiters", count=1) == [5]
    assert cuts("delimiters", max_prefix=4) == [2]
    assert cuts("delimiters", delimiters=()) == []


@pytest.mark.parametrize("rule", CutRule)
def test_a_response_of_one_token_has_no_states(rule):
    assert cuts(rule, ids=[9], logprobs=[-1.0]) == []
    assert cuts(rule, ids=[], logprobs=[]) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-9, 0)), max_size=30),
    st.sampled_from(CutRule),
    st.integers(1, 6),
    st.integers(0, 40),
)
def test_every_cut_leaves_a_token_on_both_sides(tokens, rule, count, max_prefix):
    ids, logprobs = [one for one, _ in tokens], [value for _, value in tokens]
    found = cuts(rule, ids=ids, logprobs=logprobs, count=count, max_prefix=max_prefix, delimiters=(1,))
    assert found == sorted(set(found)) and len(found) <= count
    assert all(1 <= cut <= min(len(ids) - 1, max_prefix) for cut in found)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rule": "fraction"}, "did you mean 'fractions'"),
        ({"rule": "fractions", "count": 0}, "count is 0"),
        ({"rule": "fractions", "logprobs": [-1.0]}, "12 tokens but 1 log-probs"),
    ],
)
def test_cuts_refuse(change, message):
    with pytest.raises(ValueError, match=message):
        cuts(**change)


def test_the_posterior_by_hand():
    assert Continuations().posterior == (1.0, 1.0) and Continuations().mean == 0.5
    assert Continuations(tries=6, successes=5).posterior == (6.0, 2.0)
    assert Continuations(tries=6, successes=5).mean == 0.75


def test_the_cut_of_a_success_moves_backwards_as_its_continuations_become_easy():
    known = {}

    def chosen():
        return state_of_success(["early", "middle", "late"], lambda s: known.get(s, Continuations()), easy=0.7)

    assert chosen() == "late"
    known["late"] = Continuations(tries=4, successes=2)  # 3 / 6
    assert chosen() == "late"
    known["late"] = Continuations(tries=8, successes=6)  # 7 / 10
    assert chosen() == "middle"
    known["middle"] = Continuations(tries=8, successes=8)
    assert chosen() == "early"
    known["early"] = Continuations(tries=8, successes=8)
    assert chosen() == "early"  # all of it is easy, and it stays at the beginning
    known["late"] = Continuations(tries=20, successes=6)  # it became hard again
    assert chosen() == "late"
    assert state_of_success([], lambda s: Continuations(), easy=0.7) is None
    with pytest.raises(ValueError, match="easy is 0"):
        state_of_success(["s"], lambda s: Continuations(), easy=0)


def test_failures_are_gone_on_from_where_it_succeeds():
    """A bandit of four states with success rates 0, 0.1, 0.6 and 0.2: of 400 choices most are of the third."""
    rates, rng, known = [0.0, 0.1, 0.6, 0.2], random.Random(0), [Continuations()] * 4
    for _ in range(400):
        state = state_of_failures(range(4), lambda s: known[s], rng=rng)
        one = known[state]
        known[state] = Continuations(tries=one.tries + 1, successes=one.successes + (rng.random() < rates[state]))
    tries = [one.tries for one in known]
    assert tries[2] > 200 and min(tries) > 0
    assert known[2].mean == pytest.approx(0.6, abs=0.1)
    assert state_of_failures([], lambda s: known[s], rng=rng) is None


def test_arrays_will_do():
    assert cuts("uncertain", ids=np.array(IDS, np.int32), logprobs=np.array(LOGPROBS, np.float32)) == [4, 7, 10]
