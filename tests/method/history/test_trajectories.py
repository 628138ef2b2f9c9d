"""Whole trajectories in the store: their turns come back, go with their row."""

from dataclasses import replace

import numpy as np
import pytest

from r3_openrlhf.method.errors import InvalidValue
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.operations.store.verification import verify

from .samples import make_rollout, make_turn


def recalled(store, uid="p", verdict=Verdict.WRONG, k=9):
    return [
        found.rollout for found in store.recall(uid, verdict, k=k, step=9, max_policy_lag=99)
    ]


def test_the_same_responses_with_other_turns_are_another_trajectory(quick_path):
    """An environment may answer the same actions in another way."""
    one = make_rollout("p", ids=[5, 6], turns=(1, 1))
    other = replace(one, turns=(make_turn(0, 1), make_turn(1, 1, reward=0.5)))
    with HistoryStore.open(quick_path / "h.sqlite") as store:
        store.commit_step(1, 1, [one, one, other])
        assert sorted(found.turns[1].reward for found in recalled(store)) == [0.5, 1.0]
        assert sorted(
            row.copies
            for row in store.recall("p", Verdict.WRONG, k=9, step=9, max_policy_lag=9)
        ) == [1, 2]


def test_bytes_of_turns_count_towards_the_cap(quick_path):
    """Prompts of 40,000 different tokens each are most of a trajectory."""
    noise = np.random.default_rng(0)

    def played(place):
        turn = replace(
            make_turn(place, 1), prompt_ids=noise.integers(2**31, size=40_000, dtype=np.int32)
        )
        return replace(make_rollout("p", ids=[place], policy_step=place), turns=(turn,))

    path = quick_path / "h.sqlite"
    with HistoryStore.open(path, limits=HistorySettings(max_bytes=1_000_000)) as store:
        for step in range(1, 13):
            store.commit_step(step, 1, [played(step)])
            store.set_rollback_floor(step)
        kept = recalled(store, k=32)
        assert 1 <= len(kept) < 7  # 160 kB each
    assert path.stat().st_size <= 1_000_000 and verify(path).findings == []


@pytest.mark.parametrize(
    "turns", [(), (1,), (1, 2)], ids=["none", "fewer tokens", "more tokens"]
)
def test_turns_that_are_not_the_response_are_refused(quick_path, turns):
    with HistoryStore.open(quick_path / "h.sqlite") as store:
        with pytest.raises(
            InvalidValue, match="use turns whose num_tokens add up to the 2 response tokens"
        ):
            store.commit_step(1, 1, [make_rollout("p", ids=[5, 6], turns=turns)])
        assert store.last_step is None
