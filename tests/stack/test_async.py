"""Asynchronous training on the real stack, killed and resumed, against what holds of a synchronous run.

Which weights sample a row depends on timing. The order of the problems, what a step counts, what it may recall and what the history
knows of a row must not.
"""

import itertools
import shutil
import sqlite3
import subprocess

import pytest

import tests.stack.cpu_only  # noqa: F401
from tests.recordings import recorded, settings_of
from tests.stack.training import R3, Run, lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
QUEUE = 2
AHEAD = (
    "openrlhf.train.async_enable=true",
    f"openrlhf.train.async_queue_size={QUEUE}",
    "cluster.gpus_per_node=2",
    "train.learning_rate=1e-3",  # so that older weights can be told from the current ones
)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Killed behind step 5, of which there is no checkpoint, and gone on with from step 4, inside the second epoch."""
    run_dir = tmp_path_factory.mktemp("runs") / "ahead"
    with Run(run_dir, *settings_of("r3"), *AHEAD, held_in=6) as run:
        run.wait_for_step(5)
    shutil.copy(run_dir / "checkpoints" / "_actor" / "latest", run_dir.with_name("latest"))
    train(run_dir, *settings_of("r3"), *AHEAD)
    return run_dir


def fresh(rollouts):
    return [r for r in rollouts if r["recalled_from"] is None]


def test_every_step_asks_the_problems_of_the_synchronous_run(resumed):
    """Which they are and their order within a step: a function of the seed and the epoch, killed or not."""
    found = {}
    for kind, story in (
        (
            "ahead",
            [
                [r["step"], r["uid"], r["context"], r["recalled_from"]]
                for r in rollouts_of(resumed)
            ],
        ),
        ("in turn", [[row[0], row[1], row[2], row[5]] for row in recorded("r3")[1]["story"]]),
    ):
        steps = found.setdefault(kind, {})
        for step, uid, context, recalled_from in story:
            if context == "plain" and recalled_from is None:
                steps.setdefault(step, {}).setdefault(uid, 0)
                steps[step][uid] += 1
    assert found["ahead"] == found["in turn"]
    assert [list(uids) for uids in found["ahead"].values()] == [
        list(uids) for uids in found["in turn"].values()
    ]
    assert [line["step"] for line in lines(resumed / "metrics.jsonl")] == list(range(1, 9))


def test_the_engine_computes_with_the_weights_that_were_trained(resumed):
    """Shown by rows of the current weights: those of the first step, and of the first one behind a resume."""
    saved = int(resumed.with_name("latest").read_text().removeprefix("global_step"))
    metrics = lines(resumed / "metrics.jsonl")
    gaps = {
        line["step"]: line["r3/sync/abs_logprob_gap"]
        for line in metrics
        if "r3/sync/abs_logprob_gap" in line
    }
    assert {1, saved + 1} <= set(gaps) and max(gaps.values()) < 0.02
    assert {line["step"] for line in metrics if line["r3/async/mean_lag"] == 0} <= set(gaps)


def test_recalls_follow_the_steps_that_were_trained(resumed):
    """Every collapsed group of a problem that had the opposite verdict in an earlier step gets some of those responses."""
    rollouts = rollouts_of(resumed)
    groups = {}
    for row in rollouts:
        groups.setdefault((row["step"], row["group"]), []).append(row)
    recalls = 0
    for (step, _), rows in groups.items():
        recalled = {row["text"] for row in rows if row["recalled_from"] is not None}
        possible = texts_to_recall(rows, [r for r in fresh(rollouts) if r["step"] < step])
        assert recalled <= possible and bool(recalled) == bool(possible)
        recalls += sum(row["recalled_from"] is not None for row in rows)
    metrics = lines(resumed / "metrics.jsonl")
    assert recalls == sum(line["r3/replay/recalled"] for line in metrics)


def texts_to_recall(rows, earlier):
    """The earlier responses to a group's problem with the opposite verdict; none if it has two verdicts."""
    verdicts = {row["verdict"] for row in fresh(rows)}
    if len(verdicts) != 1:
        return set()
    opposite = {"correct": "wrong", "wrong": "correct"}[verdicts.pop()]
    of_problem = [row for row in earlier if row["uid"] == rows[0]["uid"]]
    return {row["text"] for row in of_problem if row["verdict"] == opposite}


def test_the_history_knows_which_weights_sampled_a_row(resumed):
    """At most as many steps behind as upstream's queue holds. Recomputed from the store alone."""
    lags = {}
    with sqlite3.connect(resumed / "history.sqlite") as store:
        for step, policy_step in store.execute("SELECT step, policy_step FROM rollouts"):
            lags.setdefault(step, set()).add(step - 1 - policy_step)
    assert lags[1] == {0}
    for found in lags.values():
        assert found <= set(range(QUEUE + 1))
    metrics = lines(resumed / "metrics.jsonl")
    assert [line["r3/async/max_lag"] for line in metrics] == [
        max(lags[step]) for step in range(1, 9)
    ]


def test_nothing_of_a_trained_step_was_lost(resumed):
    done = subprocess.run(
        [R3, "history", "verify", str(resumed)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = lines(resumed / "metrics.jsonl")
    total = 0
    for line in metrics:
        total += line["generated_tokens"]
        assert line["generated_tokens_total"] == total
        assert line["generated_tokens"] == line["response_tokens"]


@pytest.mark.soak
def test_a_stock_algorithm_samples_ahead_with_its_own_estimator(tmp_path):
    """Upstream's groups and filter; what a step counts and which weights sampled a row are ours."""
    train(tmp_path / "run", "algo=dapo", *AHEAD, "train.max_steps=4", "checkpoint.save_steps=2")
    metrics, rollouts = lines(tmp_path / "run" / "metrics.jsonl"), rollouts_of(tmp_path / "run")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    assert metrics[0]["r3/sync/abs_logprob_gap"] < 0.02 and metrics[0]["r3/async/max_lag"] == 0
    assert all(0 <= line["r3/async/max_lag"] <= QUEUE for line in metrics)
    assert [line["generated_tokens_total"] for line in metrics] == list(
        itertools.accumulate(line["generated_tokens"] for line in metrics)
    )
    # of the checkpoint after step 2
    assert [line["step"] for line in metrics if line.get("timing/save", 0) > 0] == [3]
    for line in metrics:
        dropped = line["r3/filter/dropped_tokens"] + line["r3/filter/left_over_tokens"]
        assert line["generated_tokens"] == line["response_tokens"] + dropped
    groups = {}
    for row in rollouts:
        assert row["recalled_from"] is None and row["context"] == "plain"
        groups.setdefault((row["step"], row["group"]), []).append(row["verdict"])
    assert all(len(group) == 8 and len(set(group)) == 2 for group in groups.values())
