"""HGPO's advantages: by hand, by an independent brute force over 10,000 cases, and what they reduce to."""

import random

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.problems.agents.hierarchy import step_returns
from tests.method.core.hierarchies import brute_force, hierarchy_advantages


def test_by_hand():
    """Two trajectories: a b, c b. At state b (k = 0) the returns are 1 and 3; the states before differ, so every finer
    group, and every group of the first steps, has one step only."""
    found = hierarchy_advantages(
        [["a", "b"], ["c", "b"]], [[0.0, 1.0], [5.0, 3.0]], depth=2, eps=0.0
    )
    s = 2**-0.5
    assert found[0] == approx([0.0, -s]) and found[1] == approx([0.0, s])


def test_finer_groups_weigh_more_by_hand():
    """State b three times, returns 0, 3, 6; two of them, 0 and 6, come from a."""
    states, returns = [["a", "b"], ["c", "b"], ["a", "b"]], [[0.0, 0.0], [0.0, 3.0], [0.0, 6.0]]
    with_std = hierarchy_advantages(states, returns, depth=1, eps=0.0)
    # level 0: std 3 -> -1, 0, 1; level 1: std sqrt(18) -> -1/sqrt 2, 1/sqrt 2; weights 1 and 2
    assert with_std[0][1] == approx(-(1 + 2 * 2**-0.5) / 3) and with_std[1][1] == 0.0


def test_a_context_that_is_cut_off_at_the_start_is_kept():
    """Two first steps at a: level 1 is the same group again, which changes nothing, and a third a later is another."""
    states, returns = [["a", "a"], ["a", "b"]], [[0.0, 3.0], [3.0, 0.0]]
    paper = hierarchy_advantages(states, returns, depth=1, eps=0.0)
    # level 0 of a: returns 0, 3, 3 with the std sqrt 3; level 1: 0 and 3
    s, t = 2**-0.5, 3**-0.5
    assert paper[0] == approx([(-2 * t - 2 * s) / 3, t])
    assert paper[1] == approx([(t + 2 * s) / 3, 0.0])


def test_it_agrees_with_a_brute_force_in_ten_thousand_cases():
    draw = random.Random(0)
    for _ in range(10_000):
        lengths = [draw.randint(0 if n else 1, 4) for n in range(draw.randint(1, 3))]
        states = [[draw.choice("ab") for _ in range(length)] for length in lengths]
        returns = [
            [draw.choice([-1.0, 0.0, 0.3, 1.0]) for _ in range(length)] for length in lengths
        ]
        options = {
            "depth": draw.randint(0, 3),
            "alpha": draw.choice([0.0, 1.0, 1.5]),
            "eps": 1e-6,
        }
        found = hierarchy_advantages(states, returns, **options)
        for mine, theirs in zip(found, brute_force(states, returns, **options), strict=True):
            assert mine == approx(theirs, abs=1e-9), (states, returns, options)


@given(
    st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=1, max_size=8), st.integers(0, 4)
)
def test_one_step_from_one_state_is_grpo(rewards, depth):
    found = hierarchy_advantages(
        [["s"]] * len(rewards), [[r] for r in rewards], depth=depth, eps=1e-9
    )
    assert [a for (a,) in found] == approx(group_advantages(rewards, lam=1e-9), abs=1e-9)


def test_returns_by_hand():
    assert step_returns([1.0, 0.0, 4.0], gamma=0.5) == [2.0, 2.0, 4.0]
    assert step_returns([], gamma=0.95) == []
    assert step_returns([0.0, 0.0, 1.0], gamma=0.95) == approx([0.9025, 0.95, 1.0])
