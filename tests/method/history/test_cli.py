"""`r3 history`, as a user types it."""

import json
import os

import pytest

from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Context, Verdict
from tests.commands import command

from .samples import make_rollout

r3_history = command("history")


def as_json(*arguments):
    result = r3_history(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def run_dir(tmp_path):
    """Three steps: p fails and then succeeds, with a reflection; q was never graded."""
    with HistoryStore.open(
        tmp_path / "history.sqlite", limits=HistorySettings(max_per_problem_and_verdict=2)
    ) as store:
        store.commit_step(
            1, 1, [make_rollout(ids=[n], entropy=(2.5, 0.5), truncated=True) for n in (1, 2, 2)]
        )
        store.commit_step(
            2,
            1,
            [make_rollout(ids=[3], policy_step=1), make_rollout("q", verdict=Verdict.UNGRADED)],
        )
        store.commit_step(
            3,
            2,
            [
                make_rollout(ids=[4], verdict=Verdict.CORRECT, logprobs=[-0.1], policy_step=2),
                make_rollout(
                    ids=[5],
                    verdict=Verdict.CORRECT,
                    context=Context.REFLECTION,
                    prompt=[1, 2, 3],
                ),
            ],
        )
    return tmp_path


def test_stats(run_dir):
    numbers = as_json("stats", run_dir)
    assert numbers["steps"] == {
        "count": 3,
        "first": 1,
        "last": 3,
        "epoch": 2,
        "rollback_floor": None,
    }
    assert [tuple(row.values()) for row in numbers["rollouts"]] == [
        ("plain", "correct", 1, 1.5),
        ("plain", "wrong", 4, 0.0),
        ("plain", "ungraded", 1, None),
        ("reflection", "correct", 1, 1.5),
    ]
    assert numbers["problems"] == {
        "graded": 1,
        "never_correct": 0,
        "both": 1,
        "always_correct": 0,
    }
    assert (numbers["rows"]["recallable"], numbers["rows"]["kept_for_rollback"]) == (4, 1)
    assert numbers["writer"] is None
    assert numbers["bytes"]["file"] == (run_dir / "history.sqlite").stat().st_size


def test_stats_count_merged_duplicates_and_what_was_never_kept(tmp_path):
    with HistoryStore.open(
        tmp_path / "history.sqlite", limits=HistorySettings(max_per_problem_and_verdict=2)
    ) as store:
        store.commit_step(1, 1, [make_rollout("p", ids=[n]) for n in (1, 1, 1, 2)])
        store.commit_step(2, 1, [make_rollout("q", ids=[n]) for n in range(5)])
    rows = as_json("stats", tmp_path)["rows"]
    assert (rows["recallable"], rows["duplicates_merged"], rows["never_kept"]) == (4, 2, 3)


def test_show(run_dir):
    shown = as_json("show", run_dir, "p")
    assert [(row["step"], row["verdict"], row["context"]) for row in shown["attempts"]] == [
        (1, "wrong", "plain"),
        (1, "wrong", "plain"),
        (2, "wrong", "plain"),
        (3, "correct", "plain"),
        (3, "correct", "reflection"),
    ]
    first = [row for row in shown["attempts"] if row["step"] == 1]
    assert {row["copies"] for row in first} == {1, 2}
    assert all(
        (row["entropy_peak"], row["entropy_global"], row["truncated"]) == (2.5, 0.5, True)
        for row in first
    )
    assert sorted(row["evicted_at"] or 0 for row in first) == [0, 2]


def test_all_work_while_a_run_writes(run_dir, tmp_path):
    with HistoryStore.open(run_dir / "history.sqlite") as store:
        numbers = as_json("stats", run_dir)
        assert (
            numbers["writer"]["state"] == "running"
            and f"process {os.getpid()}" in numbers["writer"]["holder"]
        )
        as_json("show", run_dir, "p")
        as_json("verify", run_dir)
        store.commit_step(4, 2, [make_rollout(ids=[6])])
    assert as_json("verify", run_dir)["ok"] is True


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["stats", "{run}/nowhere"], "there is no history store at"),
        (["show", "{run}", "pp"], "has no problem 'pp'; did you mean p?"),
        (["show", "{run}", "zzz"], "has no problem 'zzz'; known: p, q"),
    ],
)
def test_a_mistake_is_one_sentence(run_dir, arguments, sentence):
    result = r3_history(*(argument.format(run=run_dir) for argument in arguments))
    assert result.exit_code == 1
    assert (
        sentence in result.output
        and "Traceback" not in result.output
        and len(result.output.splitlines()) == 1
    )


def test_an_unsound_store_is_exit_code_1(run_dir):
    import sqlite3

    with sqlite3.connect(run_dir / "history.sqlite") as connection:
        connection.execute("UPDATE counters SET count = count + 1 WHERE verdict = 1")
    connection.close()
    result = r3_history("verify", run_dir)
    assert (
        result.exit_code == 1
        and "NOT SOUND" in result.output
        and "problem p counts (5, 0.0)" in result.output
    )
    assert json.loads(r3_history("verify", run_dir, "--json").stdout)["ok"] is False
