"""The rollouts of a step in one Parquet file: what goes in comes out, whole or not at all."""

import math
import os
import random

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import EntropyStatistics, Verdict
from r3_openrlhf.runs.rollout_files import (
    COLUMNS,
    ROW_GROUP_ROWS,
    TOKEN_COLUMNS,
    forget_after,
    read_step,
    read_tokens,
    schema,
    steps_in,
    write_step,
)
from r3_openrlhf.runs.rollout_records import TokenPieces, records_of
from tests.method.history.samples import make_rollout
from tests.runs.records import PLACE, STATES, rollout

MISSING = {
    "origin": None,
    "distill": None,
    "answer": None,
    "extras": None,
    "prompt": None,
    "prefix_tokens": None,
    "given": None,
    "pieces": None,
    **STATES,
    **PLACE,
}
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
    answer=st.none() | st.text(max_size=5),
)


@given(before=st.lists(rows, max_size=6))
@settings(max_examples=40, deadline=None)
def test_what_goes_in_comes_out(tmp_path_factory, before):
    """Any text, any number to the last bit, an empty step, a column of nulls; and the types are the same ones."""
    file = write_step(tmp_path_factory.mktemp("rollouts"), 1, before)
    assert list(read_step(file)) == before
    assert pq.read_schema(file).remove_metadata() == schema()
    for start in {row["uid"][:1] for row in before}:
        assert list(read_step(file, uid_start=start)) == [
            row for row in before if row["uid"].startswith(start)
        ]


def test_the_columns_are_those_of_a_rollout(tmp_path):
    """Of one in a group, an ungraded one, and one with neither entropy nor text."""
    found = [
        make_rollout(ids=[1, 2], verdict=Verdict.CORRECT, entropy=(2.0, 1.0)),
        *(
            make_rollout(ids=[n], verdict=verdict)
            for n, verdict in ((3, Verdict.WRONG), (4, Verdict.UNGRADED))
        ),
    ]
    found[0].extras = {"format": 1.0}
    records = records_of(MixedBatch(found, ["g", "g", "g"]), step=7)
    stored = list(read_step(write_step(tmp_path, 7, records)))
    assert set(stored[0]) == set(COLUMNS) and set(records[0]) == set(COLUMNS | TOKEN_COLUMNS)
    for record, row in zip(records, stored, strict=True):
        assert {name: record.get(name) for name in COLUMNS} == row
    assert [row["group"] for row in stored] == [0, 0, None]
    assert [row["extras"] for row in stored] == ['{"format": 1.0}', None, None]
    assert [row["entropy_source"] for row in stored] == ["exact", None, None]


def test_datasets_loads_every_step_with_the_same_types(tmp_path):
    """A step without a recalled rollout has nothing but nulls in a column that the next one fills."""
    write_step(tmp_path, 1, [rollout(advantage=None, text=None, entropy_source=None)])
    write_step(tmp_path, 2, [rollout(2, recalled_from=1)] * 2)
    source = {
        "data_files": f"{tmp_path}/*.parquet",
        "split": "train",
        "cache_dir": str(tmp_path / "cache"),
    }
    table = datasets.load_dataset("parquet", **source)
    assert table.num_rows == 3 and table["recalled_from"][:] == [None, 1, 1]
    scalars = {name: table.features[name].dtype for name in COLUMNS}
    lists = {name: f"list<{table.features[name].feature.dtype}>" for name in TOKEN_COLUMNS}
    assert (scalars, lists) == (COLUMNS, TOKEN_COLUMNS) and set(table.features) == {
        *COLUMNS,
        *TOKEN_COLUMNS,
    }


TOKENS = {
    "token_chars": np.array([1, 0, 8], dtype=np.uint16),
    "token_entropy": np.array([0.0, 1.5, 11.75], dtype=np.float16),
    "token_logprob": None,
    "token_policy_logprob": np.array([-0.25, -1000, 0], dtype=np.float16),
}


def test_values_of_tokens_come_out_as_they_went_in(tmp_path):
    """Of some rows; `read_step` knows nothing of them, and `read_tokens` gives them in its order."""
    rows = [rollout(uid="a"), rollout(uid="b", **TOKENS), rollout(uid="b", text=None)]
    file = write_step(tmp_path, 1, rows)
    assert list(read_step(file)) == [
        rollout(uid="a"),
        rollout(uid="b"),
        rollout(uid="b", text=None),
    ]
    none, first, last = read_tokens(file)
    assert none == last == dict.fromkeys(TOKEN_COLUMNS)
    for name, value in TOKENS.items():
        assert (first[name] is None) == (value is None)
        if value is not None:
            assert first[name].dtype == value.dtype and first[name].tolist() == value.tolist()
    assert [found["token_chars"] is None for found in read_tokens(file, uid_start="b")] == [
        False,
        True,
    ]
    assert list(read_tokens(file, uid_start="x")) == []


def test_a_problem_is_found_in_any_row_group(tmp_path):
    rows = [
        rollout(uid=f"{number % 7}-{number}", text=str(number))
        for number in range(3 * ROW_GROUP_ROWS + 5)
    ]
    file = write_step(tmp_path, 1, rows)
    assert pq.ParquetFile(file).num_row_groups == 4 and list(read_step(file)) == rows
    for start in ("3-", "6-202"[:3], "5-5"):
        assert list(read_step(file, uid_start=start)) == [
            row for row in rows if row["uid"].startswith(start)
        ]
    (one,) = read_step(file, uid_start="4-186", without=("text", "prompt"))
    assert "text" not in one and one["uid"] == "4-186"


def test_columns_that_a_file_does_not_have_are_null(tmp_path):
    file = write_step(tmp_path, 1, [rollout(), rollout(uid="q")])
    new = (
        "distill",
        "answer",
        "prompt",
        "prefix_tokens",
        "given",
        "pieces",
        *STATES,
        *PLACE,
        *TOKEN_COLUMNS,
    )
    pq.write_table(pq.read_table(file).drop_columns(new), file)
    assert list(read_step(file)) == [rollout(**MISSING), rollout(uid="q", **MISSING)]
    assert list(read_step(file, uid_start="q")) == [rollout(uid="q", **MISSING)]
    assert list(read_tokens(file)) == [dict.fromkeys(TOKEN_COLUMNS)] * 2


def test_values_of_tokens_that_do_not_fit_are_damage(tmp_path):
    file = write_step(tmp_path, 1, [rollout(**TOKENS)])
    table = pq.read_table(file)
    place = table.schema.get_field_index("num_tokens")
    pq.write_table(table.set_column(place, table.schema.field(place), [[2]]), file)
    with pytest.raises(
        R3Error, match="damaged: token_chars of a rollout of 2 tokens has 3 values"
    ):
        list(read_tokens(file))


def test_which_rows_keep_values_of_their_tokens(tmp_path):
    """One collapsed group that was ranked and has a recalled row, one ungraded rollout."""
    failures = [
        make_rollout(ids=[n, 2, 3], verdict=Verdict.WRONG, truncated=True) for n in range(2)
    ]
    ungraded = make_rollout(ids=[9], verdict=Verdict.UNGRADED)
    stored = make_rollout(ids=[5, 6], verdict=Verdict.CORRECT, policy_step=3)
    for one in (*failures, ungraded, stored):
        one.text = "".join(map(str, one.response_ids))
    failures[0].answer = "x" * 5000

    def kept(token_values):
        batch = MixedBatch([*failures, ungraded], ["g", "g", "g"])
        batch.recall(lambda uid, verdict: [stored], mode="add", rng=random.Random(0))
        tokens = np.array([0.5, 1.5, 0.25], dtype=np.float16)
        measured = EntropyStatistics(peak=1.5, global_=0.75, source="exact", tokens=tokens)
        records = records_of(
            batch,
            step=7,
            prompts=["the prompt"] * 3,
            entropies={0: measured},
            token_values=token_values,
            policy_logprobs={2: np.array([-2000.0, -0.5])},
            token_chars=TokenPieces(lambda ids: "".join(map(str, ids))),
        )
        file = write_step(tmp_path, 7, records)
        found = [
            {key: one.tolist() for key, one in row.items() if one is not None}
            for row in read_tokens(file)
        ]
        return list(read_step(file)), found

    rows, (first, second, recalled, alone) = kept("used")
    # a group stands together
    assert [row["recalled_from"] for row in rows] == [
        None,
        None,
        4,
        None,
    ]
    assert {row["prompt"] for row in rows} == {"the prompt"}
    assert [row["entropy_peak"] for row in rows] == [1.5, None, None, None]
    assert [row["answer"] and len(row["answer"]) for row in rows] == [2000, None, None, None]
    assert (
        first == {"token_entropy": [0.5, 1.5, 0.25], "token_chars": [1, 1, 1]}
        and second == alone == {}
    )
    assert recalled == {
        "token_logprob": [-0.125, -0.25],
        "token_policy_logprob": [-2000.0, -0.5],
        "token_chars": [1, 1],
    }
    of_ranked, of_recalled = (
        ["token_chars", "token_entropy"],
        ["token_chars", "token_policy_logprob"],
    )
    assert [sorted(row) for row in kept("none")[1]] == [of_ranked, [], of_recalled, []]
    assert all("token_logprob" in row for row in kept("all")[1])
    with pytest.raises(ValueError, match="token_values is 'al'; did you mean 'all'"):
        kept("al")


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (rollout(reward=math.nan), "reward is nan, which is not finite"),
        (rollout(advantage=-math.inf), "advantage is -inf, which is not finite"),
        (rollout(2), "a rollout of step 2 among those of step 1"),
        (rollout(uid=None), "'uid' is declared non-nullable"),
        (rollout(score=1.0), "a rollout has no score"),
        (rollout(num_tokens="many"), "many"),
        (
            rollout(token_entropy=np.array([1.0, math.inf, 0.0])),
            "token_entropy holds a value that is not finite",
        ),
        (
            rollout(token_chars=np.array([1, 2])),
            "token_chars has 2 values in a rollout of 3 tokens",
        ),
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
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "step_000002.parquet",
    ]
