"""The engine's experts in the store: every number comes back, and a store from before them stays readable."""

import dataclasses
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from r3_openrlhf.method.errors import HistoryError, InvalidValue
from r3_openrlhf.method.history import HistoryStore, experts
from r3_openrlhf.method.history.codec import Codec
from r3_openrlhf.method.history.schema import EARLIER_VERSION, SCHEMA_VERSION
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.method.values import read_rollouts
from r3_openrlhf.operations.store.verification import verify
from tests.method.history.samples import make_rollout

SHAPES = array_shapes(min_dims=3, max_dims=3, max_side=5)
TOKENS = 4  # a prompt of two, a response of three, but for the last


def with_experts(dtype=np.uint8, **more):
    """A rollout with experts of two layers, two of each token."""
    chosen = np.arange(TOKENS * 4, dtype=dtype).reshape(TOKENS, 2, 2)
    return make_rollout(experts=chosen, **more)


def recalled(store, uid="p"):
    (found,) = store.recall(uid, Verdict.WRONG, step=1, k=1, max_policy_lag=9)
    return found.rollout


@given(arrays(np.uint8, SHAPES) | arrays(np.uint16, SHAPES))
def test_experts_come_back_as_sorted_sets(chosen):
    codec = Codec()
    back = experts.unpack(codec, experts.pack(codec, chosen))
    assert back.dtype == chosen.dtype
    assert back.tolist() == np.sort(chosen, axis=-1).tolist()


def test_a_set_of_8_of_128_takes_5_bytes():
    """The best code of a set takes log2(128 over 8) = 40.6 bits, as they are 64."""
    rng = np.random.default_rng(0)
    chosen = rng.random((500, 48, 128)).argpartition(8, -1)[..., :8].astype(np.uint8)
    sets = chosen[..., 0].size
    assert 5.07 < len(experts.pack(Codec(), chosen).data) / sets < 5.4


def test_damage_is_noticed():
    codec = Codec()
    packed = experts.pack(codec, np.arange(400, dtype=np.uint16).reshape(50, 4, 2))
    broken = bytearray(packed.data)
    broken[len(broken) // 2] ^= 1
    for wrong in (packed._replace(data=bytes(broken)), packed._replace(num_tokens=49)):
        with pytest.raises(HistoryError, match="a stored array is damaged"):
            experts.unpack(codec, wrong)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_stored_rollout_has_its_experts(tmp_path, dtype):
    rollout = with_experts(dtype)
    with HistoryStore.open(tmp_path / "history.sqlite") as store:
        store.commit_step(0, 1, [rollout, make_rollout("q")])
        found = recalled(store).experts
        assert found.dtype == dtype
        assert found.tolist() == rollout.experts.tolist()
        assert recalled(store, "q").experts is None
    assert verify(tmp_path / "history.sqlite") == ([], [])


def test_experts_count_against_the_limit_and_leave_with_their_row(tmp_path):
    path = tmp_path / "history.sqlite"
    sizes = {}
    for name, rollout in (("with", with_experts()), ("without", make_rollout())):
        with HistoryStore.open(tmp_path / f"{name}.sqlite") as store:
            store.commit_step(0, 1, [rollout])
        (sizes[name],) = (
            sqlite3.connect(tmp_path / f"{name}.sqlite")
            .execute("SELECT bytes FROM rollouts")
            .fetchone()
        )
    assert sizes["with"] > sizes["without"]
    with HistoryStore.open(path) as store:
        store.commit_step(0, 1, [make_rollout("q")])
        store.commit_step(1, 1, [with_experts()])
        store.roll_back(0)
        store.commit_step(1, 1, [with_experts(policy_step=1)])
        store.commit_step(2, 1, [with_experts(policy_step=2)])  # in the other's place
        store.set_rollback_floor(2)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT rollout FROM experts").fetchall() == [(3,)]
    assert verify(path) == ([], [])


@pytest.fixture
def earlier(tmp_path):
    """A store as the version before wrote it."""
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path) as store:
        store.commit_step(0, 1, [make_rollout()])
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE experts")
        connection.execute(f"PRAGMA user_version = {EARLIER_VERSION}")
    connection.close()
    return path


def version_of(path):
    with sqlite3.connect(path) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_a_store_from_before_is_read_as_it_is(earlier):
    before = earlier.read_bytes()
    with HistoryStore.open(earlier, writer=False) as store:
        assert recalled(store).experts is None
    assert verify(earlier) == ([], [])
    assert earlier.read_bytes() == before


def test_a_writer_adds_what_a_store_from_before_lacks(earlier):
    with HistoryStore.open(earlier) as store:
        assert recalled(store).experts is None
        store.commit_step(1, 1, [with_experts(uid="q")])
        assert recalled(store, "q").experts is not None
    assert version_of(earlier) == SCHEMA_VERSION
    assert verify(earlier) == ([], [])
    with HistoryStore.open(earlier, writer=False) as store:
        assert recalled(store, "q").experts is not None


def test_a_table_that_another_version_has_is_no_store(earlier):
    with sqlite3.connect(earlier) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for writer in (False, True):
        with pytest.raises(HistoryError, match="the table experts is missing"):
            HistoryStore.open(earlier, writer=writer)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        (np.zeros((3, 2, 2), np.uint8), "experts is .*; use those of 4 tokens, all of prompt"),
        (np.zeros((4, 2, 0), np.uint8), "use those of 4 tokens"),
        (np.zeros((4, 2), np.uint8), "use a three-dimensional array of numbers of experts"),
        (np.full((4, 1, 1), -1), r"experts\[0\] is -1; use numbers of experts"),
        (np.full((4, 1, 1), 0.5), r"experts\[0\] is 0.5; use numbers of experts"),
    ],
)
def test_other_arrays_are_refused(chosen, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        read_rollouts([make_rollout(experts=chosen)])


def test_whole_numbers_become_two_bytes():
    (found,) = read_rollouts([make_rollout(experts=np.full((4, 1, 1), 300))])
    assert found.experts.dtype == np.uint16
    same = dataclasses.replace(found, experts=np.zeros((4, 1, 1), np.uint8))
    assert read_rollouts([same])[0].experts.dtype == np.uint8
