"""The rollouts of a step in one Parquet file: what goes in comes out, whole or not at all."""

import math
import os

import datasets
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.config_loading import load_config
from r3_openrlhf.core.mixed_batch import MixedBatch
from r3_openrlhf.errors import R3Error
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_files import COLUMNS, forget_after, read_step, schema, steps_in, write_step
from r3_openrlhf.runs.rollout_records import records_of
from r3_openrlhf.types import Verdict
from tests.history.samples import make_rollout


def rollout(step=1, **changes):
    """A row with every column."""
    return {
        "step": step, "uid": "p", "context": "plain", "group": 0, "verdict": "wrong", "reason": "wrong",
        "outcome_reward": 0.0, "reward": 0.25, "ranked": True, "advantage": -0.5, "recalled_from": None,
        "truncated": True, "num_tokens": 3, "entropy_peak": 1.5, "entropy_global": 0.4, "entropy_source": "exact",
        "entropy_peak_lower": 1.0, "entropy_peak_upper": 2.0, "entropy_global_lower": 0.3, "entropy_global_upper": 0.5,
        "text": "3 + 4 = 8", **changes,
    }  # fmt: skip


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
rows = st.builds(
    rollout,
    uid=st.text(max_size=5),
    group=st.none() | st.integers(0, 200),
    advantage=numbers,
    reward=numbers,
    recalled_from=st.none() | st.integers(1, 900),
    num_tokens=st.integers(0, 40_000),
    text=st.none() | st.text(max_size=40),
)


@given(before=st.lists(rows, max_size=6))
@settings(max_examples=40, deadline=None)
def test_what_goes_in_comes_out(tmp_path_factory, before):
    """Any text, any number to the last bit, an empty step, a column of nulls; and the types are the same ones."""
    file = write_step(tmp_path_factory.mktemp("rollouts"), 1, before)
    assert list(read_step(file)) == before
    assert pq.read_schema(file).remove_metadata() == schema()
    for start in {row["uid"][:1] for row in before}:
        assert list(read_step(file, uid_start=start)) == [row for row in before if row["uid"].startswith(start)]


def test_the_columns_are_those_of_a_rollout(tmp_path):
    """Of one in a group, an ungraded one, and one with neither entropy nor text."""
    found = [
        make_rollout(ids=[1, 2], verdict=Verdict.CORRECT, entropy=(2.0, 1.0)),
        make_rollout(ids=[3], verdict=Verdict.WRONG),
        make_rollout(ids=[4], verdict=Verdict.UNGRADED),
    ]  # fmt: skip
    for texts in (True, False):
        records = records_of(MixedBatch(found, ["g", "g", "g"]), step=7, texts=texts)
        stored = list(read_step(write_step(tmp_path, 7, records)))
        assert set(stored[0]) == set(COLUMNS) and set(records[0]) == set(COLUMNS) - (set() if texts else {"text"})
        assert [{**dict.fromkeys(COLUMNS), **record} for record in records] == stored
        assert [row["group"] for row in stored] == [0, 0, None]
        assert [row["entropy_source"] for row in stored] == ["exact", None, None]


def test_datasets_loads_every_step_with_the_same_types(tmp_path):
    """A step without a recalled rollout has nothing but nulls in a column that the next one fills."""
    write_step(tmp_path, 1, [rollout(advantage=None, text=None, entropy_source=None)])
    write_step(tmp_path, 2, [rollout(2, recalled_from=1)] * 2)
    table = datasets.load_dataset(
        "parquet", data_files=f"{tmp_path}/*.parquet", split="train", cache_dir=str(tmp_path / "cache")
    )
    assert table.num_rows == 3 and table["recalled_from"][:] == [None, 1, 1]
    assert {name: feature.dtype for name, feature in table.features.items()} == COLUMNS


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (rollout(reward=math.nan), "reward is nan, which is not finite"),
        (rollout(advantage=-math.inf), "advantage is -inf, which is not finite"),
        (rollout(2), "a rollout of step 2 among those of step 1"),
        (rollout(uid=None), "'uid' is declared non-nullable"),
        (rollout(score=1.0), "a rollout has no score"),
        (rollout(num_tokens="many"), "many"),
    ],
)
def test_a_step_is_written_whole_or_not_at_all(tmp_path, bad, sentence):
    write_step(tmp_path, 1, [rollout(text="kept")])
    with pytest.raises(ValueError, match=sentence):
        write_step(tmp_path, 1, [rollout(), bad])
    assert [row["text"] for row in read_step(steps_in(tmp_path)[1])] == ["kept"]
    assert len(steps_in(tmp_path)) == 1


def test_a_writer_that_is_killed_leaves_the_file_of_before(tmp_path, monkeypatch):
    """It dies when all is written and nothing is on disk yet."""
    write_step(tmp_path, 1, [rollout(text="kept")])
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(KeyboardInterrupt))
        write_step(tmp_path, 1, [rollout(text="new")])
    assert [row["text"] for row in read_step(steps_in(tmp_path)[1])] == ["kept"]
    forget_after(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001.parquet"]


def test_going_on_deletes_the_files_behind_the_checkpoint_and_reads_none(tmp_path):
    """Nothing in them could be read."""
    for name in ("step_000002", "step_000010", "step_1000000"):
        (tmp_path / f"{name}.parquet").write_bytes(b"no Parquet")
    (tmp_path / "notes.txt").write_text("mine")
    assert list(steps_in(tmp_path)) == [2, 10, 1_000_000]
    forget_after(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step_000002.parquet"]


def test_one_step_is_read_without_the_others(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    run.write_rollouts(2, [rollout(2)])
    (run.rollouts / "step_000001.parquet").write_bytes(b"no Parquet")
    assert list(run.read_rollouts(step=2)) == [rollout(2)]
    with pytest.raises(R3Error, match="step_000001.parquet is damaged: .*; restore it from a copy, or remove it"):
        list(run.read_rollouts())


def test_the_required_columns_are_columns():
    assert set(COLUMNS) >= rollout_files.REQUIRED
