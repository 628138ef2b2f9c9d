import random

import pytest
from hypothesis import given
from hypothesis.strategies import composite, floats, integers, lists, permutations, tuples
from pytest import approx

from r3_openrlhf.method.core.ranking import (
    bounds_decide,
    dominated_counts,
    mean_logprob,
    ranked_rewards,
    ranking_rewards,
    score_rewards,
)

# few values: ties are the normal case
ROWS = lists(tuples(integers(0, 6), integers(0, 6)), min_size=1, max_size=12)


def columns(rows):
    return [peak for peak, _ in rows], [global_ for _, global_ in rows]


def test_by_hand():
    peak, global_ = [2, 1.5, 1, 0.5], [0.3, 0.2, 0.4, 0.1]
    # rows 0 and 1 each dominate row 2 alone
    assert dominated_counts(peak, global_) == [
        1,
        1,
        0,
        0,
    ]
    # places 0 and 1 are shared by rows 0 and 1: 1 - .5/3; places 2 and 3 by the others: 1 - 2.5/3
    assert ranking_rewards(peak, global_, max_reward=0.6) == approx([0.5, 0.5, 0.1, 0.1])
    assert dominated_counts([2, 1], [0.1, 0.1]) == [0, 0]
    assert dominated_counts([2, 2], [0.1, 0.2]) == [0, 0]
    assert ranking_rewards([2.0], [0.1], max_reward=0.5) == [0.0]
    assert ranking_rewards([2, 1], [0.1, 0.2], max_reward=0) == [0.0, 0.0]


def test_given_vectors(vectors):
    for case in vectors["ranking_rewards"]:
        found = ranking_rewards(case["peak"], case["global"], max_reward=case["max_reward"])
        assert found == approx(case["rewards"]), case
        if "dominated" in case:
            assert dominated_counts(case["peak"], case["global"]) == case["dominated"]


@given(ROWS, integers(0, 10**6))
def test_order_changes_nothing(rows, seed):
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    rewards = ranking_rewards(*columns(rows), max_reward=0.5)
    assert ranking_rewards(*columns([rows[i] for i in order]), max_reward=0.5) == [
        rewards[i] for i in order
    ]


@given(ROWS, floats(0, 0.99))
def test_bounded_by_max_reward_with_a_fixed_sum(rows, max_reward):
    rewards = ranking_rewards(*columns(rows), max_reward=max_reward)
    assert all(-1e-12 <= reward <= max_reward + 1e-12 for reward in rewards)
    assert sum(rewards) == approx(0 if len(rows) == 1 else len(rows) / 2 * max_reward, abs=1e-9)


@given(ROWS, permutations(range(12)))
def test_agrees_with_breaking_ties_in_every_way(rows, tie_breaks):
    """Averaged ties are the mean, over all orders of the tied rows, of what the strict formula pays."""
    counts = dominated_counts(*columns(rows))
    paid = [0.0] * len(rows)
    # rotations of one order put every tied row on every tied place equally often
    shifts = range(len(rows))
    for count in set(counts):
        tied = [i for i in sorted(shifts, key=lambda i: tie_breaks[i]) if counts[i] == count]
        first = sum(other > count for other in counts)
        for rotation in range(len(tied)):
            for offset in range(len(tied)):
                place = first + (offset + rotation) % len(tied)
                paid[tied[offset]] += 0.5 * (1 - place / max(1, len(rows) - 1)) / len(tied)
    if len(rows) > 1:
        assert ranking_rewards(*columns(rows), max_reward=0.5) == approx(paid)


@composite
def boxes(draw):
    """Rows of [peak_low, peak_high, global_low, global_high], and a point inside each box."""
    rows, points = [], []
    for _ in range(draw(integers(1, 5))):
        peak = sorted(draw(lists(integers(0, 12), min_size=3, max_size=3)))
        global_ = sorted(draw(lists(integers(0, 12), min_size=3, max_size=3)))
        rows.append((peak[0], peak[2], global_[0], global_[2]))
        points.append((peak[1], global_[1]))
    return list(zip(*rows, strict=True)), points


@given(boxes())
def test_decided_bounds_rank_like_any_point_inside(boxes_and_points):
    (peak_low, peak_high, global_low, global_high), points = boxes_and_points
    if bounds_decide(peak_low, peak_high, global_low, global_high):
        exact = dominated_counts(*columns(points))
        assert (
            dominated_counts(peak_low, global_low)
            == dominated_counts(peak_high, global_high)
            == exact
        )


@given(boxes())
def test_undecided_bounds_hold_two_points_that_differ(boxes_and_points):
    (peak_low, peak_high, global_low, global_high), _ = boxes_and_points
    if not bounds_decide(peak_low, peak_high, global_low, global_high):
        rows = range(len(peak_low))
        assert any(  # the corner most in favour of i against j, and the one least in favour, disagree
            (peak_high[i] > peak_low[j] and global_low[i] < global_high[j])
            and not (peak_low[i] > peak_high[j] and global_high[i] < global_low[j])
            for i in rows
            for j in rows
            if i != j
        )


@pytest.mark.parametrize(
    ("outcome", "ranking", "centred", "rewards"),
    [
        ([0.0, 0.0, 0.0, 1.0], [0.5, None, 0.1, None], False, [0.5, 0.0, 0.1, 1.0]),
        ([0.0, 0.0, 0.0, 1.0], [0.5, None, 0.1, None], True, [0.2, 0.0, -0.2, 1.0]),  # mean 0.3
        (
            [0.4, 0.0, 0.2, 1.0],
            [0.5, None, 0.1, None],
            False,
            [0.9, 0.0, 0.3, 1.0],
        ),  # own pay and ranking
        (
            [0.8, 0.0, 0.8, 1.0],
            [0.5, None, 0.1, None],
            False,
            [0.98, 0.0, 0.836, 1.0],
        ),  # 0.9 * 0.2 of 0.5: f = 0.36
        (
            [1.4, 0.5, 1.0, 1.0],
            [0.1, None, 0.3, None],
            False,
            [0.99, 0.0, 0.77, 1.0],
        ),  # lowered by 0.5; f = 0.9
    ],
)
def test_a_ranked_row_keeps_its_pay_below_the_success(outcome, ranking, centred, rewards):
    found = ranked_rewards(outcome, ranking, [False, False, False, True], centred=centred)
    assert found == approx(rewards)


def test_one_score_by_hand():
    # places 0; 1 and 2 shared; 3: R_max times 1, 1 - 1.5/3 twice, 0
    assert score_rewards([-0.5, -0.2, -0.5, -0.9], max_reward=0.6) == approx(
        [0.3, 0.6, 0.3, 0.0]
    )
    assert score_rewards([-1.0], max_reward=0.6) == [0.0]
    assert mean_logprob([-1.0, -0.5, 0.0]) == -0.5
    assert mean_logprob([-0.5] * 7) == mean_logprob([-0.5] * 2)  # length alone is worth nothing
