"""A run that is killed and continued ends with the weights, moments and history choices of the one that was not, to the last digit.

With train.deterministic the engine samples again what it sampled before, so that this is the repeatability of a command, too.
tests/stack/test_resume.py has the same of R³ with recorded rollouts and a run that is really killed,
test_ppo.py a run of PPO that is really killed. `make soak` compares the weights of all three runs."""

import shutil

import pytest

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.runs.rollout_files import file_of, read_step, read_tokens
from tests.stack.same_weights import assert_same_weights
from tests.stack.training import lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
RUNS = {
    "grpo": ("algo=grpo", "train.max_steps=4", "checkpoint.save_steps=2"),
    "r3_teacher": ("algo=r3_teacher", "train.max_steps=4", "checkpoint.save_steps=2"),
    "ppo": ("algo=ppo", "checkpoint.save_steps=4"),
    "rrl": (
        "algo=rrl",
        "train.max_steps=8",
        "checkpoint.save_steps=4",
        "exploration.rrl.min_explained_variance=-1",
    ),
}


def as_killed(run_dir, copy, *, step):
    """A copy of a finished run as if it was killed before it had saved anything after `step`."""
    shutil.copytree(run_dir, copy)
    shutil.rmtree(copy / "final_model")
    for folder in [
        *(copy / "checkpoints").glob("_*/global_step*"),
        *(copy / "checkpoints").glob("global_step*_hf"),
    ]:
        if int(folder.name.removeprefix("global_step").removesuffix("_hf")) > step:
            shutil.rmtree(folder)
    for latest in (copy / "checkpoints").glob("_*/latest"):
        latest.write_text(f"global_step{step}")
    return copy


def assert_taught_alike(whole, continued):
    """The same rows have a teacher that says the same of each of their tokens, before and after the kill."""
    found, expected = (taught_rows(run) for run in (continued, whole))
    assert found == expected
    for line in lines(whole / "metrics.jsonl"):
        assert line["r3/distill/taught"] > 0


def taught_rows(run_dir):
    """(step, problem, response, teacher's log-probs) of every taught row."""
    found = []
    for step in range(1, 5):
        file = file_of(run_dir / "rollouts", step)
        for row, values in zip(read_step(file), read_tokens(file), strict=True):
            if row["distill"] == "taught":
                said = values["token_teacher_logprob"].tolist()
                found.append((step, row["uid"], row["text"], said))
    return found


@pytest.mark.soak
@pytest.mark.parametrize("algo", RUNS)
def test_a_run_that_was_killed_has_the_weights_of_one_that_was_not(tmp_path, algo):
    settings = (*RUNS[algo], "train.deterministic=true")
    whole = tmp_path / "whole"
    train(whole, *settings)
    metrics = lines(whole / "metrics.jsonl")
    last, half = len(metrics), len(metrics) // 2
    continued = as_killed(whole, tmp_path / "continued", step=half)
    train(continued, *settings)
    assert_same_weights(continued, whole, step=last)
    rows = [
        [(row["uid"], row["text"], row["prefix_state"]) for row in rollouts_of(run)]
        for run in (whole, continued)
    ]
    assert rows[0] == rows[1]
    if algo == "r3_teacher":
        assert_taught_alike(whole, continued)
    if algo == "ppo":  # the critic is better than a constant by then
        assert min(line["r3/critic/explained_variance"] for line in metrics[-2:]) > 0
    if algo == "rrl":
        assert sum(line["r3/rrl/continued"] for line in metrics[half:]) > 0
        starts = [row for row in rollouts_of(whole) if row["prefix_tokens"]]
        # half of 24
        assert {row["uid"] for row in starts} and max(
            row["prefix_tokens"] for row in starts
        ) <= 12
