"""Pass@k and maj@k against all subsets, by hand, and by laws."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.evaluation.pass_rates import (
    bootstrap_interval,
    estimate,
    ks_up_to,
    majority_at_k,
    pass_at_k,
)

# ── Pass@k ──


@pytest.mark.parametrize("num_graded", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_response(num_graded):
    for num_correct in range(num_graded + 1):
        verdicts = [True] * num_correct + [False] * (num_graded - num_correct)
        for k in range(1, num_graded + 1):
            subsets = [any(subset) for subset in combinations(verdicts, k)]
            assert pass_at_k(num_graded, num_correct, k=k) == approx(
                sum(subsets) / len(subsets), abs=1e-12
            )


@pytest.mark.parametrize(
    ("num_graded", "num_correct", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (0, 0, 1)]
)
def test_what_does_not_exist_is_refused(num_graded, num_correct, k):
    with pytest.raises(ValueError, match="does not exist"):
        pass_at_k(num_graded, num_correct, k=k)


# ── maj@k ──


def majority_by_brute_force(votes, k):
    """Every subset: who has most votes; the share of the tied winners that is correct."""
    scores = []
    for subset in combinations(range(len(votes)), k):
        counts = {}
        for index in subset:
            answer = votes[index][0]
            if answer is not None:
                counts[answer] = counts.get(answer, 0) + 1
        winners = [answer for answer, count in counts.items() if count == max(counts.values())]
        shares = [
            np.mean([correct for answer, correct in votes if answer == winner])
            for winner in winners
        ]
        scores.append(np.mean(shares) if shares else 0.0)
    return np.mean(scores)


def test_majority_by_hand():
    votes = [("4", True), ("4", True), ("5", False)]
    assert majority_at_k(votes, k=3) == 1.0
    assert majority_at_k(votes, k=1) == approx(2 / 3, abs=0.03)
    # pairs: 4 4 is right; 4 5, twice, is a tie and half right
    assert majority_at_k(votes, k=2) == approx(2 / 3, abs=0.03)
    # silence is no vote
    assert majority_at_k([(None, False), (None, False), ("4", True)], k=3) == 1.0
    assert majority_at_k([(None, False), (None, False)], k=2) == 0.0
    assert majority_at_k([(str(number), number == 0) for number in range(64)], k=64) == approx(
        1 / 64
    )


VOTES = st.lists(
    st.tuples(st.sampled_from([None, "1", "2", "3"]), st.booleans()), min_size=1, max_size=8
)


@given(VOTES, st.data())
def test_majority_is_the_mean_over_all_subsets(votes, data):
    k = data.draw(st.integers(1, len(votes)))
    assert majority_at_k(votes, k=k) == approx(majority_by_brute_force(votes, k), abs=0.04)


# ── intervals ──


def test_equal_values_have_no_interval():
    """Eight failures in eight problems do not bound the accuracy at zero."""
    assert (
        bootstrap_interval([0.0] * 8, seed=1) is None
        and bootstrap_interval([0.5] * 20, seed=1) is None
    )
    assert bootstrap_interval([0.0, 0.0, 1.0], seed=1) == (0.0, 1.0)
    assert estimate([None, 0.5], seed=0) == {
        "value": 0.5,
        "low": None,
        "high": None,
        "num_problems": 1,
    }


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    bounds = [bootstrap_interval(rng.random(60) < 0.3, seed=i) for i in range(100)]
    covered = [low <= 0.3 <= high for low, high in bounds]
    assert 85 <= sum(covered) <= 100


def test_the_interval_is_the_seeds():
    """As all resamples in one draw give it."""
    values = np.array([0.0, 0.25, 1.0, 0.75, 0.5])
    means = values[np.random.default_rng(1).integers(5, size=(10_000, 5))].mean(axis=1)
    assert bootstrap_interval(values, seed=1) == approx(
        tuple(np.quantile(means, [0.025, 0.975]))
    )


def test_ks():
    assert ks_up_to(1) == [1] and ks_up_to(2) == [1, 2] and ks_up_to(6) == [1, 2, 4, 6]
    assert ks_up_to(16) == [1, 2, 4, 8, 16]
