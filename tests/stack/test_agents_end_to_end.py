"""Trajectories through the real stack on a tiny model, sampling as it comes: its numbers and its files."""

import itertools
import json
import math
import statistics
import subprocess

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("this run is for the CPU platform", allow_module_level=True)

from tests.stack.training import R3, lines, rollouts_of, train  # noqa: E402

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


def test_held_out_tasks_are_played(run):
    first, last = (json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines())
    assert (first["step"], last["step"]) == (0, 3)
    assert first["num_problems"] == last["num_problems"] == 8 and first["num_ungraded"] == 0
    assert 0 <= last["pass_at_1"] <= last["pass_at_n"] <= 1


def test_a_trajectory_is_read_turn_by_turn(run):
    uid = next(iter(rollouts_of(run)))["uid"]
    shown = subprocess.run([R3, "show", str(run), "--step", "1", "--uid", uid], capture_output=True, text=True)
    assert shown.returncode == 0 and "trajectory" in shown.stdout and "hall" in shown.stdout


# ── another estimator, and what R³ adds, on four tasks that come twice ──

REPAIRS = ["replay.enabled=true", "reflection.enabled=true", "reflection.threshold=0.9", "data.max_len=512"]


def test_an_arm_trains_with_the_advantages_of_its_estimator(tmp_path):
    """gigpo, as the rows of a run give it again: sums of rewards among the trajectories of a group, and the returns of the
    turns at one state. A task whose trajectories of step 1 succeed in less than 90% has a group behind one of them in step 2;
    one that ends alike in step 2 is joined by what ended otherwise in step 1."""
    place = tmp_path / "run"
    common = [
        "agents.num_tasks=4",
        "agents.num_held_out=0",
        "rollout.batch_size=4",
        "train.num_epochs=2",
        "train.max_steps=2",
        "algo=gigpo",
    ]
    train(place, *common, *REPAIRS, experiment="agent_smoke")
    steps = lines(place / "metrics.jsonl")
    rows = rollouts_of(place)
    groups = {}
    for row in rows:
        groups.setdefault((row["step"], row["uid"], row["context"]), []).append(row)
    for mine in groups.values():
        trajectories = turns_of(mine)
        sums = [sum(row["turn_reward"] - 0.1 * (not row["valid"]) for row in turns) for turns in trajectories]
        for turns, of_episode in zip(trajectories, scores(sums), strict=True):
            for row in turns:
                alike = [other["step_return"] for other in mine if other["state"] == row["state"]]
                of_turn = scores(alike)[alike.index(row["step_return"])]
                assert row["advantage"] == pytest.approx(of_episode + of_turn, abs=1e-4)
    for step in steps:
        assert all(math.isfinite(value) for value in step.values()) and step["r3/sync/abs_logprob_gap"] < 0.02
    assert len(steps) == 2
    for number, uid in itertools.product(range(2, len(steps) + 1), {row["uid"] for row in rows}):
        before = {turns[0]["verdict"] for turns in turns_of(groups[1, uid, "plain"])}
        rate = statistics.fmean(turns[0]["verdict"] == "correct" for turns in turns_of(groups[1, uid, "plain"]))
        now = turns_of(groups[number, uid, "plain"])
        fresh = {turns[0]["verdict"] for turns in now if turns[0]["recalled_from"] is None}
        recalled = {turns[0]["verdict"] for turns in now if turns[0]["recalled_from"] == 1}
        assert recalled == (before - fresh if len(fresh) == 1 else set())
        reflected = groups.get((number, uid, "reflection"), [])
        assert len(turns_of(reflected)) == (4 if rate < 0.9 else 0)
        assert all("It failed." in row["prompt"] for row in reflected)


def turns_of(rows):
    """The rows of each trajectory."""
    found = {}
    for row in rows:
        found.setdefault(row["trajectory"], []).append(row)
    return list(found.values())


def scores(values):
    """(v - mean) / (std + 1e-6), with n - 1; 0 for one value alone."""
    if len(values) < 2:
        return [0.0]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    return [(value - mean) / (std + 1e-6) for value in values]
