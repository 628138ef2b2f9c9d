"""Whole trajectories in the store: their turns come back, go with their row."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.operations.store.verification import verify

from .samples import dump, make_rollout, make_turn, values


def recalled(store, uid="p", verdict=Verdict.WRONG, k=9):
    return [found.rollout for found in store.recall(uid, verdict, k=k, step=9, max_policy_lag=99)]


def count(path):
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT count(*) FROM trajectories").fetchone()[0]
    connection.close()
    return found


def test_turns_come_back_bit_for_bit(quick_path):
    played = make_rollout("p", ids=[5, 6, 7, 8], turns=(1, 3, 0))
    plain = make_rollout("q", ids=[5, 6, 7, 8])
    with HistoryStore.open(quick_path / "h.sqlite") as store:
        store.commit_step(1, 1, [played, plain])
        (found,) = recalled(store)
        assert values(found) == values(played)
        assert [turn.prompt_ids.tolist() for turn in found.turns] == [[7, 0], [7, 0, 1], [7, 0, 1, 2]]
        assert recalled(store, "q")[0].turns is None
    assert verify(quick_path / "h.sqlite").findings == []


def test_the_same_responses_with_other_turns_are_another_trajectory(quick_path):
    """An environment may answer the same actions in another way."""
    one = make_rollout("p", ids=[5, 6], turns=(1, 1))
    other = replace(one, turns=(make_turn(0, 1), make_turn(1, 1, reward=0.5)))
    with HistoryStore.open(quick_path / "h.sqlite") as store:
        store.commit_step(1, 1, [one, one, other])
        assert sorted(found.turns[1].reward for found in recalled(store)) == [0.5, 1.0]
        assert sorted(row.copies for row in store.recall("p", Verdict.WRONG, k=9, step=9, max_policy_lag=9)) == [1, 2]


def test_turns_go_with_their_row(quick_path):
    """Evicted in step 2, back after a roll-back, gone for good behind the floor."""
    path, limits = quick_path / "h.sqlite", HistorySettings(max_per_problem_and_verdict=1)
    first, second = (make_rollout("p", ids=[n, 6], turns=(1, 1), policy_step=n) for n in (1, 2))
    with HistoryStore.open(path, limits=limits) as store:
        store.commit_step(1, 1, [first])
        before = dump(path)
        store.commit_step(2, 1, [second])
        assert [values(found) for found in recalled(store)] == [values(second)] and count(path) == 2
        store.roll_back(1)
        assert dump(path) == before
        store.commit_step(2, 1, [second])
        store.set_rollback_floor(2)
        assert count(path) == 1
        store.roll_back(-1)
        assert count(path) == 0


def test_bytes_of_turns_count_towards_the_cap(quick_path):
    """Prompts of 40,000 different tokens each are most of a trajectory."""
    noise = np.random.default_rng(0)

    def played(place):
        turn = replace(make_turn(place, 1), prompt_ids=noise.integers(2**31, size=40_000, dtype=np.int32))
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
    "turns",
    [(), (1,), (1, 2), (3, -1)],
    ids=["none", "fewer tokens", "more tokens", "below zero"],
)
def test_turns_that_are_not_the_response_are_refused(quick_path, turns):
    with HistoryStore.open(quick_path / "h.sqlite") as store:
        with pytest.raises(HistoryError, match="a trajectory of task 'p' has"):
            store.commit_step(1, 1, [make_rollout("p", ids=[5, 6], turns=turns)])
        assert store.last_step is None


def test_a_reward_that_is_no_number_is_refused(quick_path):
    rollout = replace(make_rollout("p", ids=[5]), turns=(make_turn(0, 1, reward=float("nan")),))
    with HistoryStore.open(quick_path / "h.sqlite") as store:
        with pytest.raises(HistoryError, match="the reward nan"):
            store.commit_step(1, 1, [rollout])
