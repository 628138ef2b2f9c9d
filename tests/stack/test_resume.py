"""A run that is killed or preempted and started again with the same command is the run that was never interrupted.

The rollout engine does not repeat itself, so the responses of a recorded run are played back: a run asks for exactly the
same ones, or it fails. Everything else (order of the problems, epochs, reflection prompts, recalled rows, verdicts) must
follow.

A copy of the run as it was preempted loses its history and gets its rewards from another process, which is killed, too.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess

import httpx
import pyarrow.parquet
import pytest

import tests.stack.cpu_only  # noqa: F401
from r3_openrlhf.config import RewardConfig
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.runs import checkpoint_record
from r3_openrlhf.stack.phases import Phase
from tests.recordings import (
    counts,
    lines,
    playback_of,
    recorded,
    recorded_counts,
    rollouts_of,
    settings_of,
    story,
)
from tests.rewards.graders import graded
from tests.rewards.server.service import Service
from tests.stack.same_weights import assert_same_weights
from tests.stack.training import LIMIT_S, R3, Run, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
TOKEN = "of-both-services"
KILLS = int(os.environ.get("R3_TEST_KILLS", "1"))  # `make soak` takes more


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A small file system of its own; None where nothing can be mounted."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=300m", "small", folder]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk):
    """Leave no byte. Returns the file that has them."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**20))
    return ballast


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, disk):
    """The run directory of the recorded run, played back: ended by SIGTERM to each of its processes, as `scancel` sends it,
    killed at moments that nobody chose, resumed, and once without room on its disk. Beside it a copy of when it was preempted."""
    run_dir = (disk or tmp_path_factory.mktemp("runs")) / "interrupted"
    # no checkpoint is due after step 2
    with Run(run_dir, *settings_of("r3"), environment=playback_of("r3"), held_in=2) as run:
        run.wait_for_step(1)
        run.send(signal.SIGTERM)
        run.wait_until(lambda: (run_dir / "stop_request").read_text() != "")
        for line in run.process.stderr:
            if line.endswith(" SIGTERM: finishing step 2, then saving; again to stop now\n"):
                break
        run.open()
        done = run.finish()
        assert done.returncode == 85, run.story(done.stderr)
        found = re.search(r"preempted at step (\d+), saved \(signal SIGTERM\)", done.stderr)
        assert found and int(found[1]) == run.steps_done()
        assert (
            run_dir / "checkpoints" / "_actor" / "latest"
        ).read_text() == f"global_step{found[1]}"
        assert not (run_dir / "final_model").exists()
    shutil.copytree(run_dir, run_dir.with_name("preempted"))
    if disk is not None:
        with Run(run_dir, *settings_of("r3"), environment=playback_of("r3")) as run:
            run.wait_for_step(3)
            ballast = fill(disk)
            done = run.finish()
            ballast.unlink()
            assert done.returncode == 1, run.story(done.stderr)
            run_dir.with_name("full.txt").write_text(done.stderr)
    draw = random.Random(0)
    for _ in range(KILLS):
        with Run(run_dir, *settings_of("r3"), environment=playback_of("r3")) as run:
            run.wait_for_step(min(7, run.steps_done() + draw.randint(1, 2)))
            # anywhere inside a step or a checkpoint
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(timeout=draw.uniform(0, 0.5))
    train(run_dir, *settings_of("r3"), environment=playback_of("r3"))
    return run_dir


def test_killed_preempted_and_resumed_is_the_same_run(resumed):
    about = recorded("r3")[1]
    assert story(resumed) == about["story"]
    assert counts(resumed) == recorded_counts("r3")
    verified = subprocess.run(
        [R3, "history", "verify", str(resumed)], capture_output=True, text=True
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_its_weights_are_those_of_a_run_that_was_never_stopped(resumed, tmp_path):
    train(tmp_path / "straight", *settings_of("r3"), environment=playback_of("r3"))
    # On a loaded machine the masters differed once while weights and moments were equal; the cause is not known.
    assert_same_weights(resumed, tmp_path / "straight", step=8, masters=False)


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(resumed, disk):
    if disk is None:
        pytest.skip("only root can mount a small file system")
    said = resumed.with_name("full.txt").read_text()
    assert "Traceback" not in said, said
    # of the writer that met it first: SQLite, or any other
    assert re.search(
        rf"^Error: (there is no room left on the disk of {resumed} \(No space left on device\); .*the same command continues from there"
        rf"|cannot commit step \d+ to {resumed}/history.sqlite: the disk is full; .* nothing earlier is lost: free space and resume)$",
        said.splitlines()[-1],
    ), said
    assert (resumed / "final_model").is_dir()


def test_the_model_that_plays_is_the_model_that_was_recorded(resumed):
    """Step 1 is before any update: the stored log-probs are those of the model beside the recording."""
    assert lines(resumed / "metrics.jsonl")[0]["r3/sync/abs_logprob_gap"] < 0.02


def test_what_was_sampled_is_told_from_what_was_trained(resumed):
    """fresh/ from the step's Parquet file; OpenRLHF's score is a mean over micro-batches of the trained rows."""
    differing = 0
    for step in lines(resumed / "metrics.jsonl"):
        table = pyarrow.parquet.read_table(
            resumed / "rollouts" / f"step_{step['step']:06d}.parquet"
        ).to_pandas()
        fresh = table[table.recalled_from.isna()]
        graded = fresh[fresh.verdict != "ungraded"]
        expected = {
            "reward": graded[graded.context == "plain"].outcome_reward.mean(),
            "score": (graded.verdict == "correct").mean(),
            "accuracy": (graded[graded.context == "plain"].verdict == "correct").mean(),
            "response_length": fresh.num_tokens.mean(),
            "truncated": fresh.truncated.mean(),
        }
        assert {name: step[f"fresh/{name}"] for name in expected} == pytest.approx(
            expected, abs=1e-9
        )
        differing += step["score"] != pytest.approx(step["fresh/score"], abs=1e-6)
    assert differing


# ── without its history, with rewards from another process ──


def phases_of(run_dir):
    return {(event["phase"], event["step"]) for event in lines(run_dir / "events.jsonl")}


def wait_for_a_caller(port):
    """Stands in for a server that is gone: takes one connection and drops it. So somebody has asked in vain."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(LIMIT_S)
        listener.accept()[0].close()


def grade_again(rows, run_dir):
    """The grades of the rows' texts, by local worker processes."""
    labels = {
        label.uid: label
        for label in (
            Label.from_json(row["label"]) for row in lines(run_dir / "data/problems.jsonl")
        )
    }

    requests = [
        GradeRequest.about(
            labels[row["uid"]],
            row["text"],
            num_tokens=row["num_tokens"],
            truncated=row["truncated"],
        )
        for row in rows
    ]
    return graded(RewardConfig(length_reward_max_tokens=48), requests)


def step_saved(run_dir):
    return checkpoint_record.read(
        checkpoint_record.newest(run_dir / "checkpoints")
    ).history.step


@pytest.fixture(scope="module")
def served(resumed):
    """(run directory, step of its checkpoint, how it was refused, the run that went on and what it said).

    The service is killed before the first step of this part and comes back, and after that step it is killed for good: all this is
    in the first epoch, for the reflection prompts of another history were not recorded."""
    run_dir = resumed.with_name("preempted")
    saved = step_saved(run_dir)
    for lost in run_dir.glob("history.sqlite*"):
        lost.unlink()
    refused = train(run_dir, *settings_of("r3"), environment=playback_of("r3"), code=1)
    assert not (run_dir / "history.sqlite").exists()
    # which nobody takes while it is gone
    service = Service("--workers", "1", port=free_port(), token=TOKEN)
    try:
        # its processes start with an item
        assert (
            httpx.get(
                service.url + "/ready", headers=service.headers, timeout=LIMIT_S
            ).status_code
            == 200
        )
        settings = ("checkpoint.force=true", "checkpoint.save_steps=1")
        settings += (f"reward.urls=[{service.url}]", "reward.deadline_s=120")
        environment = playback_of("r3") | {"R3_REWARD_TOKEN": TOKEN}
        with Run(
            run_dir, *settings_of("r3"), *settings, environment=environment, held_in=1
        ) as run:
            run.wait_until(lambda: (Phase.SYNC, saved + 1) in phases_of(run_dir))
            service.kill()
            run.open()
            wait_for_a_caller(service.port)
            assert run.steps_done() == saved
            service = Service("--workers", "1", port=service.port, token=TOKEN)
            run.wait_for_step(saved + 1)
            service.kill()
            return run_dir, saved, refused, run, run.finish()
    finally:
        if service.process.poll() is None:
            service.stop()


@pytest.mark.soak
def test_a_run_whose_history_is_gone_stops_with_a_sentence(served):
    """Without the flag nothing starts; with it the run goes on, and its next checkpoint is a witness of the new store."""
    run_dir, saved, refused, *_ = served
    assert (
        f"history.sqlite is not the history of the checkpoint of step {saved}" in refused.stderr
    )
    assert "Traceback" not in refused.stderr
    steps = [step["step"] for step in lines(run_dir / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= saved + 1
    assert step_saved(run_dir) > saved
    verified = subprocess.run(
        [R3, "history", "verify", str(run_dir)], capture_output=True, text=True
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.soak
def test_the_service_is_killed_and_comes_back_and_no_reward_is_lost(served):
    run_dir, saved, *_ = served
    (metrics,) = [
        line for line in lines(run_dir / "metrics.jsonl") if line["step"] == saved + 1
    ]
    assert metrics["r3/grading/ungraded"] == 0
    fresh = [
        row
        for row in rollouts_of(run_dir)
        if row["recalled_from"] is None and row["step"] == saved + 1
    ]
    again = grade_again(fresh, run_dir)
    assert [(row["verdict"], row["reason"]) for row in fresh] == [
        (g.verdict.value, g.reason) for g in again
    ]
    assert [row["outcome_reward"] for row in fresh] == pytest.approx(
        [grade.reward for grade in again]
    )
    assert {row["verdict"] for row in fresh} == {"correct", "wrong"}


@pytest.mark.soak
def test_a_service_that_stays_away_stops_the_run_with_a_sentence(served):
    run_dir, _, _, run, done = served
    assert done.returncode == 1, run.story(done.stderr)
    assert "reward.max_ungraded_rate" in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )
    reasons = {row["reason"] for row in rollouts_of(run_dir)}
    assert reasons <= {"correct", "wrong", "no_answer", "unreadable"}
