"""A teacher on the whole stack where rows are packed, sampled ahead or paused, and a run with an average that is killed."""

import numpy as np
import pytest

import tests.stack.cpu_only  # noqa: F401
from tests.recordings import MODEL, playback_of, settings_of
from tests.stack.same_weights import assert_same_weights, weights
from tests.stack.test_teacher_run import assert_metrics_are_those_of_the_files
from tests.stack.training import Run, lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
TAUGHT = (
    "distill.coef=0.5",
    "distill.loss=jensen_shannon",
    "distill.support=student",
    "distill.top_k=8",
    "distill.max_ratio=2",
    "distill.teacher=average",
    "distill.update_rate=0.2",
)


def assert_taught(run_dir, *, steps):
    found = lines(run_dir / "metrics.jsonl")
    assert len(found) == steps
    for line in found:
        assert line["r3/distill/taught"] > 0 and line["r3/update/divergence"] > 0
        assert np.isfinite(line["loss"]) and line["grad_norm"] > 0
    assert_metrics_are_those_of_the_files(run_dir)
    return found


def test_packed_rows_that_are_sampled_ahead(tmp_path):
    """By older weights. Two ranks, one engine, micro-batches by tokens."""
    run_dir = tmp_path / "run"
    train(
        run_dir,
        f"model.path={MODEL}",
        *TAUGHT,
        "logging.token_values=all",
        "openrlhf.train.async_enable=true",
        "openrlhf.train.async_queue_size=2",
        "cluster.gpus_per_node=2",
        "train.dynamic_batch=true",
        "train.max_tokens_per_gpu=2048",
        "train.learning_rate=1e-3",
        "train.max_steps=3",
        "checkpoint.save_steps=-1",
    )
    found = assert_taught(run_dir, steps=3)
    assert max(line["r3/async/max_lag"] for line in found) > 0


@pytest.mark.soak
def test_rows_that_were_paused(tmp_path):
    run_dir = tmp_path / "run"
    train(
        run_dir,
        f"model.path={MODEL}",
        *TAUGHT,
        "distill.rows=all",
        "logging.token_values=all",
        "rollout.partial=1.5",
        "cluster.vllm_max_num_seqs=48",
        "train.learning_rate=1e-3",
        "train.max_steps=6",
        "checkpoint.save_steps=-1",
    )
    found = assert_taught(run_dir, steps=6)
    assert max(line["partial/paused"] for line in found) > 0
    assert any(row["pieces"] for row in rollouts_of(run_dir) if row["distill"] == "taught")


def test_killed_and_resumed_the_average_is_that_of_a_run_that_was_never_stopped(tmp_path):
    """Between two checkpoints. The responses are played back; weights, moments and averages are compared."""
    settings = (*settings_of("r3"), *TAUGHT)
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    with Run(killed, *settings, environment=playback_of("r3"), held_in=4) as run:
        run.wait_for_step(3)
    train(killed, *settings, environment=playback_of("r3"))
    train(straight, *settings, environment=playback_of("r3"))
    assert_same_weights(killed, straight, step=8, masters=False)
    found = weights(straight, 8)
    averages = [name for name in found if name.startswith("_average/")]
    assert len(averages) > 5
    # the averages of older checkpoints went with them
    kept = {one.name for one in (straight / "checkpoints" / "_actor").glob("global_step*")}
    assert {one.name for one in (straight / "checkpoints" / "_average").iterdir()} == kept
