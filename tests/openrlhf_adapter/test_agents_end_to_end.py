"""Trajectories through the real stack on a tiny model, sampling as it comes: its numbers and its files."""

import json
import math
import subprocess

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("this run is for the CPU platform", allow_module_level=True)

from tests.openrlhf_adapter.training import R3, lines, rollouts_of, train  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.slow]
KEYS = ["trajectories", "lost", "rows", "success_rate", "reward_mean", "turns_mean", "turns_max", "turn_limit"]
KEYS += ["prompt_limit", "invalid_rate", "truncated_rate", "shown_turns_mean", "alone_0", "alone_1", "alone_2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("agents") / "run"
    train(place, "train.max_steps=3", experiment="agent_smoke")
    return place


def test_every_number_is_there_and_finite(run):
    steps = lines(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert not {f"r3/agents/{key}" for key in KEYS} - set(step)
        assert all(math.isfinite(value) for value in step.values())
        assert step["r3/agents/trajectories"] == 32 and step["r3/agents/lost"] == 0


def test_the_engine_computes_with_the_weights_that_were_trained(run):
    """From step 2 on the engine's log-probs come from synchronised weights. A stale layer shows 0.07 and more."""
    assert max(step["r3/sync/abs_logprob_gap"] for step in lines(run / "metrics.jsonl")) < 0.02


def test_every_turn_is_a_row(run):
    """Prompts grow with the memory; what the metrics count is what the rows hold."""
    for step in lines(run / "metrics.jsonl"):
        rows = [row for row in rollouts_of(run) if row["step"] == step["step"]]
        assert len(rows) == step["r3/agents/rows"] == step["r3/agents/turns_mean"] * 32
        trajectories = {}
        for row in rows:
            trajectories.setdefault((row["uid"], row["trajectory"]), []).append(row)
        assert len(trajectories) == 32 and len({uid for uid, _ in trajectories}) == 8
        for turns in trajectories.values():
            assert [row["turn"] for row in turns] == list(range(len(turns))) and len(turns) <= 6
            assert len({row["verdict"] for row in turns}) == 1
            assert all(row["prompt"].count(" -> ") == min(row["turn"], 2) for row in turns)
            for row, following in zip(turns, turns[1:], strict=False):
                paid = row["turn_reward"] - (0 if row["valid"] else 0.1)
                assert row["step_return"] == pytest.approx(paid + 0.95 * following["step_return"])
        right = sum(turns[0]["verdict"] == "correct" for turns in trajectories.values())
        assert step["r3/agents/success_rate"] == pytest.approx(right / 32)
        assert step["r3/agents/invalid_rate"] == pytest.approx(sum(not row["valid"] for row in rows) / len(rows))


def test_rows_per_step_vary(run):
    assert len({step["r3/agents/rows"] for step in lines(run / "metrics.jsonl")}) > 1


def test_held_out_tasks_are_played(run):
    first, last = (json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines())
    assert (first["step"], last["step"]) == (0, 3)
    assert first["num_problems"] == last["num_problems"] == 8 and first["num_ungraded"] == 0
    assert 0 <= last["pass_at_1"] <= last["pass_at_n"] <= 1


def test_a_trajectory_is_read_turn_by_turn(run):
    uid = next(iter(rollouts_of(run)))["uid"]
    shown = subprocess.run([R3, "show", str(run), "--step", "1", "--uid", uid], capture_output=True, text=True)
    assert shown.returncode == 0 and "trajectory" in shown.stdout and "hall" in shown.stdout
