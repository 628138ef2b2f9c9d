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


@given(
    CANDIDATES,
    integers(1, 12),
    sampled_from(["uniform", "newest", "lowest_entropy"]),
    integers(0, 99),
)
def test_distinct_candidates_and_never_more_than_k(stored, k, order, seed):
    chosen = choose(stored, k=k, order=order, rng=random.Random(seed))
    assert len(chosen) == min(k, len(stored))
    assert len(set(chosen)) == len(chosen) and set(chosen) <= set(stored)


@given(
    CANDIDATES,
    integers(1, 5),
    sampled_from(["uniform", "newest", "lowest_entropy"]),
    integers(0, 99),
)
def test_the_order_of_storing_changes_nothing(stored, k, order, seed):
    shuffled = random.Random(seed + 1).sample(stored, len(stored))
    chosen = choose(stored, k=k, order=order, rng=random.Random(seed))
    assert choose(shuffled, k=k, order=order, rng=random.Random(seed)) == chosen


def test_uniform_is_uniform():
    stored = [Stored(step, (step,)) for step in range(5)]
    rng = random.Random(0)
    drawn = Counter(
        row for _ in range(5000) for row in choose(stored, k=2, order="uniform", rng=rng)
    )
    # each row is drawn in 2/5 of 5000 draws, standard deviation 35
    assert all(abs(drawn[row] - 2000) < 5 * 35 for row in stored)


def twice(candidates, k, rng):
    """Right on three candidates, with which it is tried."""
    return list(candidates[:k]) if len(candidates) == 3 else [*candidates, *candidates]


def test_an_order_of_a_user_that_gives_too_many_is_refused():
    with pytest.raises(ValueError, match="must give up to k = 1"):
        choose([Stored(1, (2,))], k=1, order=f"{__name__}:twice", rng=random.Random(0))
