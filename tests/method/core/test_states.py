"""A critic's promising states: numbers worked by hand, laws, written-out loops."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.states import CUTS, StoredState, next_cuts, promising, state_of


def state(uid="p", *, row=0, value=0.5, age=0, tries=0, successes=0, num_tokens=3):
    known = {"tries": tries, "successes": successes}
    return StoredState(uid=uid, row=row, num_tokens=num_tokens, value=value, age=age, **known)


def test_a_cut_by_hand():
    """The prompt's own value, 0.9, is of no prefix. The next cuts are the best of the first half before."""
    values, rng = [0.9, 0.2, 0.5, 0.8, 0.1, 0.8], random.Random(0)
    assert state_of(CUTS["value"], values, [1, 2, 3, 4, 5], rng).cuts == [(3, 0.8), (1, 0.2)]
    assert state_of(CUTS["value"], values, [2, 4, 5], rng).cuts == [(5, 0.8), (2, 0.5)]
    assert state_of(CUTS["value"], [0.9], [], rng) is None


@given(
    st.lists(st.floats(-2, 2), min_size=2, max_size=40),
    st.sampled_from(sorted(CUTS)),
    st.integers(0, 9),
)
def test_earlier_cuts_follow_the_same_rule_in_the_half_before(values, name, seed):
    found = state_of(CUTS[name], values, list(range(1, len(values))), random.Random(seed))
    lengths = [length for length, _ in found.cuts]
    assert all(
        earlier <= later // 2 for later, earlier in zip(lengths, lengths[1:], strict=False)
    )
    if name == "value":
        for limit, (length, value) in zip(
            [len(values) - 1, *(n // 2 for n in lengths)], found.cuts, strict=False
        ):
            assert value == values[length] == max(values[1 : limit + 1])


def test_the_control_cuts_anywhere_whatever_the_critic_says():
    rng, values = random.Random(0), [0.0] * 9 + [9.0]
    lengths = Counter(
        state_of(CUTS["random"], values, list(range(1, 10)), rng).num_tokens
        for _ in range(9000)
    )
    assert sorted(lengths) == list(range(1, 10)) and all(
        abs(count - 1000) < 150 for count in lengths.values()
    )


def test_a_cut_of_ones_own_is_followed(tmp_path):
    (tmp_path / "cuts.py").write_text(
        "def last(values, places, rng):\n    return places[-1], values[places[-1]]\n"
    )
    own = CUTS[f"{tmp_path}/cuts.py:last"]
    assert state_of(own, [0.5, 0.25, 0.125], [1, 2], random.Random(0)).cuts == [
        (2, 0.125),
        (1, 0.25),
    ]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_failures_move_the_cut_earlier_and_a_success_keeps_it(outcomes):
    """Continuations of a response with cuts of 8, 4 and 2 tokens, one after another; 3: a success."""
    known = {8: [0, 0], 4: [0, 0], 2: [0, 0]}
    for outcome in outcomes:
        cuts = [
            state(num_tokens=n, tries=tries, successes=right)
            for n, (tries, right) in known.items()
        ]
        (now,) = next_cuts(cuts)
        failures = {n: 0 if right else tries for n, (tries, right) in known.items()}
        assert now.num_tokens == max(n for n in known if failures[n] == min(failures.values()))
        known[now.num_tokens][0] += 1
        known[now.num_tokens][1] += outcome == 3


def test_states_are_drawn_by_value_and_novelty():
    """Weights by hand, rank / 4 / (1 + tries): 4/4, 3/4 / 3, 2/4, 1/4, so shares of 2. An old state is as good as a new one."""
    states = [
        state("best", value=0.9),
        state("tried", value=0.7, tries=2, successes=1),
        state("old", value=0.1, age=10**6),
        state("worst", value=-2.0),
    ]
    rng, count = random.Random(0), 20_000
    # the tries of a problem are those of all its states
    tries = {"tried": 2}
    first = Counter(promising(states, rng, tries=tries)[0].uid for _ in range(count))
    for uid, weight in (("best", 1.0), ("tried", 0.25), ("old", 0.5), ("worst", 0.25)):
        assert first[uid] / count == approx(weight / 2, abs=0.012)
    scaled = [state(one.uid, value=one.value * 100 - 7, tries=one.tries) for one in states]
    orders = [
        [one.uid for one in promising(found, random.Random(3), tries=tries)]
        for found in (states, scaled)
    ]
    # the scale of rewards does not matter
    assert orders[0] == orders[1] and promising([], rng, tries={}) == []
