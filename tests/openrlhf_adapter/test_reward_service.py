"""The whole stack with its rewards from another process, which is killed in the middle of the run."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.config import RewardConfig  # noqa: E402
from r3_openrlhf.grading.answers.request import GradeRequest  # noqa: E402
from r3_openrlhf.grading.client import make_grader  # noqa: E402
from r3_openrlhf.problems.sources import Label  # noqa: E402
from tests.reward_server.service import Service  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
R3 = Path(sys.executable).with_name("r3")
STEPS = 4


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


class Run:
    """`r3 train` with the rewards of `service`."""

    def __init__(self, run_dir, service, *settings):
        self.dir = run_dir
        self.process = subprocess.Popen(
            [R3, "train", "experiment=cpu_smoke", f"run_dir={run_dir}", f"train.max_steps={STEPS}"]
            + [f"reward.urls=[{service.url}]", "checkpoint.save_steps=-1", *settings],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_step(self, step):
        deadline = time.monotonic() + 300
        while len(read(self.dir / "metrics.jsonl")) < step:
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline, f"step {step} was not reached"
            time.sleep(0.02)

    def finish(self):
        _, said = self.process.communicate(timeout=300)
        return self.process.returncode, said

    def end(self):
        """Also of a run that a failed test left."""
        if self.process.poll() is None:
            for member in psutil.Process(self.process.pid).children(recursive=True):
                member.kill()
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


def wait_for_a_caller(port):
    """Stands in for a server that is gone: takes one connection and drops it. So somebody has asked in vain."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(120)
        listener.accept()[0].close()


def grade_again(rows, run_dir):
    """The grades of the rows' texts, by local worker processes."""
    labels = {
        label.uid: label for label in (Label.from_json(row["label"]) for row in read(run_dir / "data/problems.jsonl"))
    }

    async def run():
        grader = make_grader(RewardConfig(length_reward_max_tokens=48))
        requests = [
            GradeRequest(
                response=row["text"],
                references=tuple(labels[row["uid"]].references),
                task=labels[row["uid"]].task,
                num_tokens=row["num_tokens"],
                truncated=row["truncated"],
                metadata=labels[row["uid"]].metadata,
            )
            for row in rows
        ]
        try:
            return await asyncio.gather(*map(grader.grade, requests))
        finally:
            grader.close()

    return asyncio.run(run())


def test_the_service_is_killed_and_comes_back_and_no_reward_is_lost(tmp_path):
    service = Service("--workers", "1")
    run = Run(tmp_path / "run", service)
    try:
        run.wait_for_step(1)
        service.kill()
        wait_for_a_caller(service.port)
        steps_before = len(read(run.dir / "metrics.jsonl"))
        service = Service("--workers", "1", port=service.port)
        code, said = run.finish()
    finally:
        run.end()
        service.stop()
    assert code == 0, said
    metrics = read(run.dir / "metrics.jsonl")
    assert [step["step"] for step in metrics] == list(range(1, STEPS + 1)) and 1 <= steps_before < STEPS
    assert [step["r3/grading/ungraded"] for step in metrics] == [0] * STEPS
    fresh = [row for row in read(run.dir / "rollouts.jsonl") if row["recalled_from"] is None]
    assert len(fresh) >= STEPS * 64
    again = grade_again(fresh, run.dir)
    assert [(row["verdict"], row["reason"]) for row in fresh] == [(g.verdict.value, g.reason) for g in again]
    assert [row["outcome_reward"] for row in fresh] == pytest.approx([grade.reward for grade in again])
    assert {row["verdict"] for row in fresh} == {"correct", "wrong"}


def test_a_service_that_stays_away_stops_the_run_with_a_sentence(tmp_path):
    service = Service("--workers", "1")
    assert httpx.get(service.url + "/ready", timeout=60).status_code == 200  # its processes start with the first item
    run = Run(tmp_path / "run", service, "reward.deadline_s=8")
    try:
        run.wait_for_step(1)
        service.kill()
        code, said = run.finish()
    finally:
        run.end()
        if service.process.poll() is None:
            service.stop()
    assert code == 1
    assert "reward.max_ungraded_rate" in said and "Traceback" not in said, said
    assert {row["reason"] for row in read(run.dir / "rollouts.jsonl")} <= {
        "correct",
        "wrong",
        "no_answer",
        "unreadable",
    }
