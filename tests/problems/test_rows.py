"""The whole row of a problem, for reward functions of the user."""

import gzip

import datasets

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.sources import load_problems
from tests.problems.files import load, refused, write_jsonl

ROWS = [
    {
        "problem": f"p{n}",
        "answer": str(n),
        "weight": n / 2,
        "tests": {"in": [1, None]},
        "big": 10**30 if n else None,
    }
    for n in range(4)
]


def rows_of(path, *, with_rows=True):
    labels = load_problems(DataConfig(path=str(path)), with_rows=with_rows).labels
    return [Label.from_json(label.to_json()).row for label in labels]


def test_every_column_reaches_the_label_as_plain_data(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    assert rows_of(tmp_path / "a.jsonl") == ROWS
    assert rows_of(tmp_path / "a.jsonl", with_rows=False) == [None] * 4
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("problem,answer,weight\np0,0,0.5\n")
    assert rows_of(tmp_path / "b.csv.gz") == [{"problem": "p0", "answer": "0", "weight": "0.5"}]
    typed = [{key: value for key, value in row.items() if key != "big"} for row in ROWS]
    datasets.Dataset.from_list(typed).to_parquet(str(tmp_path / "c.parquet"))
    assert rows_of(tmp_path / "c.parquet") == typed


def test_a_row_may_have_a_task_of_its_own(tmp_path):
    rows = [
        {"problem": f"p{n}", "answer": "3:30", "kind": kind}
        for n, kind in enumerate(["time of day", None])
    ]
    assert [one.task for one in load(tmp_path, rows, task_key="kind").labels] == [
        "time_of_day",
        "math",
    ]
    with refused(DataError, "the task (kind) is 'clock'; did you mean"):
        load(tmp_path, [rows[0] | {"kind": "clock"}], task_key="kind")


def test_a_reward_function_may_compare_with_anything(tmp_path):
    """A column of tests is no answer, and the graders of ours refuse it."""
    rows = [{"problem": f"p{n}", "answer": f"assert f({n}) == {n}\n" * 90} for n in range(40)]
    found = load(tmp_path, rows, with_rows=True)
    assert (
        len(found.labels) == 40
        and found.findings
        and not any(one.refuses for one in found.findings)
    )
