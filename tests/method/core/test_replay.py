import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from

from r3_openrlhf.method.core.replay import Candidate, choose


def Stored(step, ids):
    return Candidate(0, step, 1.0, len(ids), bytes(ids))


CANDIDATES = lists(integers(0, 3), max_size=10).map(
    lambda steps: [Stored(step, (step, place)) for place, step in enumerate(steps)]
)


def test_newest_first_by_hand():
    stored = [Stored(3, (7,)), Stored(9, (5,)), Stored(9, (4,)), Stored(1, (1,))]
    assert choose(stored, k=3, order="newest", rng=random.Random(0)) == [stored[2], stored[1], stored[0]]


@given(CANDIDATES, integers(1, 12), sampled_from(["uniform", "newest"]), integers(0, 99))
def test_distinct_candidates_and_never_more_than_k(stored, k, order, seed):
    chosen = choose(stored, k=k, order=order, rng=random.Random(seed))
    assert len(chosen) == min(k, len(stored))
    assert len(set(chosen)) == len(chosen) and set(chosen) <= set(stored)


@given(CANDIDATES, integers(1, 5), sampled_from(["uniform", "newest"]), integers(0, 99))
def test_the_order_of_storing_changes_nothing(stored, k, order, seed):
    shuffled = random.Random(seed + 1).sample(stored, len(stored))
    chosen = choose(stored, k=k, order=order, rng=random.Random(seed))
    assert choose(shuffled, k=k, order=order, rng=random.Random(seed)) == chosen


@given(CANDIDATES, integers(1, 5))
def test_newest_leaves_none_behind_that_is_newer(stored, k):
    chosen = choose(stored, k=k, order="newest", rng=random.Random(0))
    left = set(stored) - set(chosen)
    assert all(old.policy_step <= new.policy_step for old in left for new in chosen)


def test_uniform_is_uniform():
    stored = [Stored(step, (step,)) for step in range(5)]
    rng = random.Random(0)
    drawn = Counter(row for _ in range(5000) for row in choose(stored, k=2, order="uniform", rng=rng))
    # each row is drawn in 2/5 of 5000 draws, standard deviation 35
    assert all(abs(drawn[row] - 2000) < 5 * 35 for row in stored)


def test_equal_rows_do_not_need_an_order():
    twins = [Stored(1, (2,)), Stored(1, (2,))]
    assert choose(twins, k=2, order="newest", rng=random.Random(0)) == twins


def twice(candidates, k, rng):
    """Right on three candidates, with which it is tried."""
    return list(candidates[:k]) if len(candidates) == 3 else [*candidates, *candidates]


def test_an_order_of_a_user_that_gives_too_many_is_refused():
    with pytest.raises(ValueError, match="must give up to k = 1"):
        choose([Stored(1, (2,))], k=1, order=f"{__name__}:twice", rng=random.Random(0))
