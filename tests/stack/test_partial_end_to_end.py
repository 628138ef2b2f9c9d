"""Paused responses on the real stack, killed and resumed.

Where a response is paused depends on timing. That every problem is trained, what is counted, and the log-probs of every token do not."""

import json
import subprocess
from collections import Counter

import pytest

import tests.stack.cpu_only  # noqa: F401
from tests.recordings import settings_of
from tests.stack.training import R3, Run, lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.soak]
# fewer places than responses, so that a step ends while others are decoded and wait
PARTIAL = (
    "rollout.partial=1.5",
    "cluster.vllm_max_num_seqs=48",
    "train.learning_rate=1e-3",  # so that older weights can be told from the current ones
)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Killed behind step 3, of which there is no checkpoint, and gone on with from step 2, inside the first epoch."""
    run_dir = tmp_path_factory.mktemp("runs") / "partial"
    with Run(run_dir, *settings_of("r3"), *PARTIAL, held_in=4) as run:
        run.wait_for_step(3)
    train(run_dir, *settings_of("r3"), *PARTIAL)
    return run_dir


def fresh(run_dir):
    return [row for row in rollouts_of(run_dir) if row["recalled_from"] is None]


def test_every_problem_is_trained_once_an_epoch_and_every_token_counts_once(resumed):
    metrics = lines(resumed / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, len(metrics) + 1))
    rows = [row for row in fresh(resumed) if row["context"] == "plain"]
    epochs = {line["step"]: line["epoch"] for line in metrics}
    asked = Counter((epochs[row["step"]], row["uid"]) for row in rows)
    assert len(set(asked.values())) == 1  # the responses of a group, and never fewer
    problems = [json.loads(line) for line in (resumed / "data" / "problems.jsonl").open()]
    assert len(asked) == len(problems) * max(epochs.values())
    total = sum(line["generated_tokens"] for line in metrics)
    assert metrics[-1]["generated_tokens_total"] == total
    assert total == sum(row["num_tokens"] for row in fresh(resumed))


def test_responses_were_paused_and_their_weights_are_known(resumed):
    metrics = lines(resumed / "metrics.jsonl")
    assert max(line["partial/paused"] for line in metrics) > 0
    assert metrics[-1]["partial/paused_groups"] == 0
    pieces = [
        (row["step"], json.loads(row["pieces"])) for row in fresh(resumed) if row["pieces"]
    ]
    assert pieces
    for step, runs in pieces:
        steps = [sampled for _, sampled in runs]
        assert steps == sorted(set(steps)) and 1 <= steps[0] and steps[-1] <= step
    assert max(line["partial/max_age"] for line in metrics) >= 1
    # a step that finds its groups whole needs no engine
    shares = [line["partial/occupancy"] for line in metrics]
    assert 0 < max(shares) <= 1


def test_the_engine_computes_with_the_weights_that_were_trained(resumed):
    """Tokens of current weights agree with the actor, behind pauses and behind the resume."""
    gaps = [line.get("r3/sync/abs_logprob_gap") for line in lines(resumed / "metrics.jsonl")]
    assert max(gap for gap in gaps if gap is not None) < 0.02
    # a step that finds its groups whole has no token of current weights
    assert sum(gap is not None for gap in gaps) >= 3


def test_the_history_is_whole(resumed):
    done = subprocess.run(
        [R3, "history", "verify", str(resumed)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = sorted(path.stem for path in (resumed / "checkpoints" / "_partial").iterdir())
    saved = sorted(path.name for path in (resumed / "checkpoints" / "_actor").glob("global*"))
    assert kept == saved
