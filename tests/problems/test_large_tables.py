"""Rows far into a table are read as the first ones are.

datasets 5.2.0 reads in pieces: of JSON 10 MiB, of CSV 10,000 rows. Its columns get one type a piece, so that one number
among texts changes the texts around it, or puts quotation marks around those of later pieces."""

import json

import pytest

from r3_openrlhf.config import DataConfig
from r3_openrlhf.problems.files import load_table

ROWS = 10_001  # one more than a piece of CSV
PIECE = 10 * 2**20  # bytes of a piece of JSON


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def answers(path):
    table = load_table(DataConfig(path=str(path)))
    return [row["answer"] for _, row in table.rows({"problem", "answer"})]


def every_way(file):
    """As a file, a pattern of files, and a directory, which is how a data set of the hub is read."""
    return {
        "file": answers(file),
        "pattern": answers(file.parent / f"*{file.suffix}"),
        "directory": answers(file.parent),
    }


@pytest.mark.parametrize("odd_row", [0, ROWS - 1])
def test_a_word_among_numbers_of_csv(tmp_path, odd_row):
    """A column of whole numbers but for one row, the first or the last of all, is text as it is written."""
    written = [f"{i:03d}" for i in range(ROWS)]
    written[odd_row] = "None"
    directory = tmp_path / "set"
    directory.mkdir()
    file = directory / "train.csv"
    lines = ["problem,answer", *(f"What is {i}?,{text}" for i, text in enumerate(written))]
    file.write_text("\n".join(lines) + "\n")
    assert every_way(file) == dict.fromkeys(("file", "pattern", "directory"), written)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_number_among_texts_of_json(tmp_path, is_first):
    """Answers are texts but for one number, before or after 11 MiB of rows; each is what the file says."""
    padding = "x" * 2_000
    num_rows = 11 * 2**20 // len(padding)
    written = [f"{i}/7" for i in range(num_rows)]
    written[0 if is_first else -1] = 0.5
    directory = tmp_path / "set"
    directory.mkdir()
    file = directory / "train.jsonl"
    with file.open("w") as out:
        for i, answer in enumerate(written):
            row = {"problem": f"What is {i}?", "answer": answer, "source": padding}
            out.write(json.dumps(row) + "\n")
    assert file.stat().st_size > PIECE
    expected = [str(answer) for answer in written]
    for way, found in every_way(file).items():
        assert [str(answer) for answer in found] == expected, way
