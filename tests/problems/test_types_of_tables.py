"""A directory of typed files: every row as its own file has it."""

import itertools
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.files import load_table
from tests.problems.files import refused

ANSWERS = {
    "bool": pyarrow.array([True, False]),
    "int64": pyarrow.array([5, 2**60 + 1]),
    "float16": pyarrow.array([0.1, 2.0], pyarrow.float16()),
    "float32": pyarrow.array([0.1, 3.0], pyarrow.float32()),
    "float64": pyarrow.array([0.1, 1e300]),
    "text": pyarrow.array(["007", "true"]),
    "null": pyarrow.array([None, None], pyarrow.null()),
}
PAIRS = list(itertools.permutations(ANSWERS, 2))


def write_arrow(table, path):
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


WRITERS = {"parquet": pyarrow.parquet.write_table, "arrow": write_arrow}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(directory, kind, **files):
    """Files of two rows each: name -> the answers' type, or columns."""
    directory.mkdir()
    for name, kind_of_answer in files.items():
        columns = {"problem": ["a", "b"], "answer": ANSWERS[kind_of_answer]}
        WRITERS[kind](pyarrow.table(columns), directory / f"{name}.{kind}")
    return directory


def answers(path, **data):
    rows = [row for _, row in load_table(DataConfig(path=str(path), **data)).rows(None)]
    return [(type(row["answer"]), row["answer"]) for row in rows]


def python(*kinds):
    """What Arrow gives for these answers, numpy's float16 as a float."""
    values = [value for kind in kinds for value in ANSWERS[kind].to_pylist()]
    values = [float(value) if hasattr(value, "dtype") else value for value in values]
    return [(type(value), value) for value in values]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_row_keeps_the_type_of_its_file(first, second, tmp_path):
    """Law, over pairs of types in either order: what is read is what Arrow reads of each file."""
    directory = write(tmp_path / "set", "parquet", one=first, two=second)
    assert answers(directory) == python(first, second)


def test_a_pattern_reads_the_same(tmp_path):
    directory = write(tmp_path / "set", "parquet", **{kind: kind for kind in ANSWERS})
    assert answers(directory) == python(*sorted(ANSWERS)) == answers(directory / "*.parquet")


@pytest.mark.parametrize(("first", "second"), [("bool", "int64"), ("text", "null")])
def test_of_arrow_files_too(first, second, tmp_path):
    directory = write(tmp_path / "set", "arrow", one=first, two=second)
    assert answers(directory) == python(first, second)


@pytest.mark.parametrize(("first", "second"), PAIRS[::13])
def test_of_another_split_and_of_a_part_too(first, second, tmp_path):
    """`datasets` gives every split the types of the first one."""
    directory = write(tmp_path / "set", "parquet", train_1=first, train_2=second, test=second)
    rows = python(first, second)
    assert answers(directory, split="test") == python(second)
    for part, expected in [
        ("train[1:3]", rows[1:3]),
        ("train[3:]", rows[3:]),
        ("train[:1]+test", rows[:1] + python(second)),
    ]:
        assert answers(directory, split=part) == expected, part
    with refused(DataError, 'Unknown split "other"'):
        answers(directory, split="other")


def test_a_sentence_names_the_file_of_a_row(tmp_path):
    directory = write(tmp_path / "set", "parquet", one="bool", two="text")
    places = [place for place, _ in load_table(DataConfig(path=str(directory))).rows(None)]
    assert [Path(place.partition(", ")[2]).as_posix() for place in places] == [
        "one.parquet, row 1",
        "one.parquet, row 2",
        "two.parquet, row 1",
        "two.parquet, row 2",
    ]
    assert load_table(DataConfig(path=str(directory))).files == ("one.parquet", "two.parquet")
