"""A run that is killed and started again with the same command is the run that was never killed.

The rollout engine does not repeat itself, so the first run's responses are recorded and played back to the second:
it asks for exactly the same ones, or it fails. Everything else (order of the problems, epochs, reflection prompts,
recalled rows, verdicts) must follow.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

pytestmark = [pytest.mark.stack, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
R3 = Path(sys.executable).with_name("r3")
KILLS = int(os.environ.get("R3_TEST_KILLS", "2"))
# 30 problems in batches of 8: epochs end with a short batch, inside and outside of checkpoints
SETTINGS = ["experiment=cpu_smoke", "data.max_samples=30", "checkpoint.save_steps=2", "checkpoint.max_num=2"]


def start(run_dir, *settings):
    return subprocess.Popen(
        [R3, "train", *SETTINGS, f"run_dir={run_dir}", *settings],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, run_dir):
    _, said = process.communicate(timeout=600)
    log = run_dir / "train.log"
    assert process.returncode == 0, said + (log.read_text()[-3000:] if log.is_file() else "")


def kill_tree(process):
    """SIGKILL for the program and everything that it started, as a node failure would."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue  # ended by itself meanwhile
    psutil.wait_procs(family, timeout=30)
    process.communicate()


def steps_done(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def story(run_dir):
    """What happened, row by row."""
    keys = ("step", "uid", "context", "verdict", "outcome_reward", "recalled_from", "truncated", "text")
    rows = [json.loads(line) for line in (run_dir / "rollouts.jsonl").read_text().splitlines()]
    return [tuple(row[key] for key in keys) for row in rows]


def tokens(run_dir):
    """What each step sampled, and all until then."""
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(step["step"], step["generated_tokens"], step["generated_tokens_total"]) for step in steps]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run, and the folder of its recorded responses."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(start(folder / "whole", f"rollout.record={folder / 'recording'}"), folder / "whole")
    return folder / "whole", folder / "recording"


def test_killed_and_resumed_is_the_same_run(whole, tmp_path):
    undisturbed, recording = whole
    draw = random.Random(0)
    run_dir = tmp_path / "killed"
    for kill in range(KILLS):
        process = start(run_dir, f"rollout.playback={recording}")
        wanted = steps_done(run_dir) + draw.randint(0, 3) if kill else 3
        deadline = time.monotonic() + 300
        while steps_done(run_dir) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 2))  # anywhere inside a step or a checkpoint
        kill_tree(process)
    finish(start(run_dir, f"rollout.playback={recording}"), run_dir)
    assert story(run_dir) == story(undisturbed)
    assert tokens(run_dir) == tokens(undisturbed)
    rows = story(run_dir)
    assert {row[0] for row in rows} == set(range(1, 9))
    assert any(row[5] is not None for row in rows) and any(row[2] == "reflection" for row in rows)
    verified = subprocess.run([R3, "history", "verify", str(run_dir)], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_run_whose_history_is_gone_stops_with_a_sentence(tmp_path):
    """Without the flag nothing starts; with it the run goes on, and its next checkpoint is a witness of the new store."""
    run_dir = tmp_path / "run"
    finish(start(run_dir, "train.max_steps=2"), run_dir)
    records = (run_dir / "checkpoints" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in records] == [2]
    for lost in run_dir.glob("history.sqlite*"):
        lost.unlink()
    process = start(run_dir, "train.max_steps=4")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 1 and "history.sqlite is not the history of the checkpoint of step 2" in said
    assert "Traceback" not in said and not (run_dir / "history.sqlite").exists()
    finish(start(run_dir, "train.max_steps=4", "checkpoint.accept_lost_history=true"), run_dir)
    assert steps_done(run_dir) == 4
    verified = subprocess.run([R3, "history", "verify", str(run_dir)], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_preempted_and_resumed_is_the_same_run_and_loses_no_step(whole, tmp_path):
    """SIGTERM, then SIGUSR1, anywhere in the run: it ends its step, saves, and says with its code that it goes on. No
    checkpoint is due by itself."""
    undisturbed, recording = whole
    run_dir = tmp_path / "preempted"
    settings = (f"rollout.playback={recording}", "checkpoint.save_steps=-1")
    for number in (signal.SIGTERM, signal.SIGUSR1):
        before = steps_done(run_dir)
        process = start(run_dir, *settings)
        deadline = time.monotonic() + 300
        while steps_done(run_dir) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)  # only the pace of asking
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 85, said
        found = re.search(rf"preempted at step (\d+), saved \(signal {number.name}\)", said)
        assert found and int(found[1]) == steps_done(run_dir) > before
        assert (run_dir / "checkpoints" / "_actor" / "latest").read_text() == f"global_step{found[1]}"
        assert not (run_dir / "final_model").exists()
    finish(start(run_dir, *settings), run_dir)
    assert story(run_dir) == story(undisturbed)
    assert tokens(run_dir) == tokens(undisturbed)
