"""The whole stack with its rewards from another process, which is killed in the middle of the run."""

import asyncio
import socket

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("these runs are for the CPU platform", allow_module_level=True)

from r3_openrlhf.config import RewardConfig  # noqa: E402
from r3_openrlhf.problems.sources import Label  # noqa: E402
from r3_openrlhf.rewards.answers.request import GradeRequest  # noqa: E402
from r3_openrlhf.rewards.client import make_grader  # noqa: E402
from tests.recordings import playback_of  # noqa: E402
from tests.rewards.server.service import Service  # noqa: E402
from tests.stack.training import LIMIT_S, Run, lines, rollouts_of  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
STEPS = 3


def run_with(service, run_dir):
    """The recorded run, so that there are right and wrong answers, with the rewards of `service`. It waits at the end of step 2."""
    url = f"reward.urls=[{service.url}]"
    settings = (*playback_of("r3"), url, "checkpoint.save_steps=-1", "reward.deadline_s=40")
    return Run(run_dir, *settings, held_in=2)


def wait_for_a_caller(port):
    """Stands in for a server that is gone: takes one connection and drops it. So somebody has asked in vain."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(LIMIT_S)
        listener.accept()[0].close()


def grade_again(rows, run_dir):
    """The grades of the rows' texts, by local worker processes."""
    labels = {
        label.uid: label for label in (Label.from_json(row["label"]) for row in lines(run_dir / "data/problems.jsonl"))
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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(the run, what it said): its service is killed in step 2 and comes back, and after step 3 it is killed for good."""
    service = Service("--workers", "1")
    try:
        # its processes start with an item
        assert httpx.get(service.url + "/ready", timeout=LIMIT_S).status_code == 200
        with run_with(service, tmp_path_factory.mktemp("runs") / "run") as run:
            run.wait_for_step(1)
            service.kill()
            run.open()
            wait_for_a_caller(service.port)
            assert run.steps_done() < STEPS
            service = Service("--workers", "1", port=service.port)
            run.wait_for_step(STEPS)
            service.kill()
            return run, run.finish()
    finally:
        if service.process.poll() is None:
            service.stop()


def test_the_service_is_killed_and_comes_back_and_no_reward_is_lost(run):
    run, _ = run
    metrics = lines(run.dir / "metrics.jsonl")
    assert [step["step"] for step in metrics] == list(range(1, len(metrics) + 1)) and len(metrics) >= STEPS
    assert [step["r3/grading/ungraded"] for step in metrics][:STEPS] == [0] * STEPS
    fresh = [row for row in rollouts_of(run.dir) if row["recalled_from"] is None and row["step"] <= STEPS]
    assert len(fresh) == 24 * 8  # of the first epoch, which has 30 problems
    again = grade_again(fresh, run.dir)
    assert [(row["verdict"], row["reason"]) for row in fresh] == [(g.verdict.value, g.reason) for g in again]
    assert [row["outcome_reward"] for row in fresh] == pytest.approx([grade.reward for grade in again])
    assert {row["verdict"] for row in fresh} == {"correct", "wrong"}


def test_a_service_that_stays_away_stops_the_run_with_a_sentence(run):
    run, done = run
    assert done.returncode == 1, run.story(done.stderr)
    assert "reward.max_ungraded_rate" in done.stderr and "Traceback" not in done.stderr, done.stderr
    reasons = {row["reason"] for row in rollouts_of(run.dir)}
    assert reasons <= {"correct", "wrong", "no_answer", "unreadable"}
