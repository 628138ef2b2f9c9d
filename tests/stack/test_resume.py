"""A run that is killed or preempted and started again with the same command is the run that was never interrupted.

The rollout engine does not repeat itself, so the responses of a recorded run are played back: a run asks for exactly the
same ones, or it fails. Everything else (order of the problems, epochs, reflection prompts, recalled rows, verdicts) must
follow.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from r3_openrlhf.runs.stop_request import SAME_S

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from tests.recordings import counts, lines, playback_of, recorded, recorded_counts, rollouts_of, story  # noqa: E402
from tests.stack.training import R3, Run, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
KILLS = int(os.environ.get("R3_TEST_KILLS", "1"))  # `make soak` takes more


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The run directory of the recorded run, played back: ended by SIGTERM to each of its processes, as `scancel` sends it,
    killed at moments that nobody chose, resumed. Beside it a copy of when it was preempted."""
    run_dir = tmp_path_factory.mktemp("runs") / "interrupted"
    with Run(run_dir, *playback_of("r3"), held_in=2) as run:  # no checkpoint is due after step 2
        run.wait_for_step(1)
        for member in run.family():
            member.send_signal(signal.SIGTERM)
        run.wait_until(lambda: (run_dir / "stop_request").read_text() != "")
        for line in run.process.stderr:
            if line.endswith(" SIGTERM: finishing step 2, then saving; again to stop now\n"):
                break
        run.open()
        done = run.finish()
        assert done.returncode == 85, run.story(done.stderr)
        found = re.search(r"preempted at step (\d+), saved \(signal SIGTERM\)", done.stderr)
        assert found and int(found[1]) == run.steps_done()
        assert (run_dir / "checkpoints" / "_actor" / "latest").read_text() == f"global_step{found[1]}"
        assert not (run_dir / "final_model").exists()
    shutil.copytree(run_dir, run_dir.with_name("preempted"))
    with Run(run_dir, *playback_of("r3"), held_in=2) as run:  # the first sync is that of its start
        run.wait_until(
            lambda: (run_dir / "events.jsonl").read_text().endswith('"weights to the engine", "step": 3}\n')
        )
        os.killpg(run.process.pid, signal.SIGINT)
        for line in run.process.stderr:
            if line.endswith(" SIGINT: finishing step 3, then saving; again to stop now\n"):
                break
        time.sleep(SAME_S)  # the time after which it is a second one
        os.killpg(run.process.pid, signal.SIGINT)
        began = time.monotonic()
        done = run.finish()
        assert (done.returncode, time.monotonic() - began < 10) == (130, True), run.story(done.stderr)
        assert done.stderr.endswith(
            "stopped by a second SIGINT; the same command goes on from the newest checkpoint, if there is one\n"
        )
    draw = random.Random(0)
    for _ in range(KILLS):
        with Run(run_dir, *playback_of("r3")) as run:
            run.wait_for_step(min(7, run.steps_done() + draw.randint(1, 2)))
            with contextlib.suppress(subprocess.TimeoutExpired):  # anywhere inside a step or a checkpoint
                run.process.wait(timeout=draw.uniform(0, 0.5))
    train(run_dir, *playback_of("r3"))
    return run_dir


def test_killed_preempted_and_resumed_is_the_same_run(resumed):
    about = recorded("r3")[1]
    assert story(resumed) == about["story"]
    assert counts(resumed) == recorded_counts("r3")
    verified = subprocess.run([R3, "history", "verify", str(resumed)], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_recorded_run_has_everything_that_a_resumed_one_could_lose():
    rows = recorded("r3")[1]["story"]
    assert {row[0] for row in rows} == set(range(1, 9))
    assert any(row[5] is not None for row in rows) and any(row[2] == "reflection" for row in rows)


def test_every_mechanism_fires(resumed):
    metrics = lines(resumed / "metrics.jsonl")
    for key in ("r3/replay/recalled", "r3/reflection/groups", "r3/ranking/groups"):
        assert sum(step[key] for step in metrics) > 0, key


def test_reflection_waits_for_the_second_epoch(resumed):
    for step in lines(resumed / "metrics.jsonl"):
        if step["epoch"] < 2:
            assert step["r3/reflection/groups"] == 0


def test_the_model_that_plays_is_the_model_that_was_recorded(resumed):
    """Step 1 is before any update: the stored log-probs are those of the model beside the recording."""
    assert lines(resumed / "metrics.jsonl")[0]["r3/sync/abs_logprob_gap"] < 0.02


def test_rollouts_can_be_read_afterwards(resumed):
    rollouts = rollouts_of(resumed)
    for step in lines(resumed / "metrics.jsonl"):
        mine = [r for r in rollouts if r["step"] == step["step"]]
        recalled = [r for r in mine if r["recalled_from"] is not None]
        assert len(recalled) == step["r3/replay/recalled"]
        assert all(r["recalled_from"] < step["step"] for r in recalled)
        fresh = [r["reward"] if not r["ranked"] else r["outcome_reward"] for r in mine if r["recalled_from"] is None]
        assert sum(fresh) / len(fresh) == pytest.approx(step["reward_mean"], abs=1e-6)


def test_recalled_rollouts_were_sampled_for_the_same_problem_with_the_opposite_verdict(resumed):
    rollouts = rollouts_of(resumed)
    earlier = {}
    for rollout in rollouts:
        if rollout["recalled_from"] is None:
            earlier.setdefault((rollout["uid"], rollout["verdict"], rollout["text"]), rollout["step"])
        else:
            group = [r for r in rollouts if (r["step"], r["group"]) == (rollout["step"], rollout["group"])]
            fresh = {r["verdict"] for r in group if r["recalled_from"] is None}
            assert fresh == {"correct": {"wrong"}, "wrong": {"correct"}}[rollout["verdict"]]
            assert earlier[rollout["uid"], rollout["verdict"], rollout["text"]] < rollout["step"]


def test_a_run_whose_history_is_gone_stops_with_a_sentence(resumed):
    """Without the flag nothing starts; with it the run goes on, and its next checkpoint is a witness of the new store."""
    run_dir = resumed.with_name("preempted")
    saved = lines(run_dir / "checkpoints" / "history.jsonl")[-1]["step"]
    for lost in run_dir.glob("history.sqlite*"):
        lost.unlink()
    more = (*playback_of("r3"), f"train.max_steps={saved + 2}")
    done = train(run_dir, *more, code=1)
    assert f"history.sqlite is not the history of the checkpoint of step {saved}" in done.stderr
    assert "Traceback" not in done.stderr and not (run_dir / "history.sqlite").exists()
    train(run_dir, *more, "checkpoint.accept_lost_history=true")
    assert [step["step"] for step in lines(run_dir / "metrics.jsonl")] == list(range(1, saved + 3))
    verified = subprocess.run([R3, "history", "verify", str(run_dir)], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
