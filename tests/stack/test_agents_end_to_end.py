"""Trajectories through the real stack on a tiny model, sampling as it comes: one run with what R³ adds, its numbers, files and
advantages."""

import itertools
import json
import math
import subprocess

import pytest

import tests.stack.cpu_only  # noqa: F401
from tests.method.core.hierarchies import brute_force
from tests.stack.training import R3, lines, rollouts_of, train

pytestmark = [pytest.mark.stack, pytest.mark.slow]
KEYS = [
    "trajectories",
    "lost",
    "rows",
    "success_rate",
    "reward_mean",
    "turns_mean",
    "turns_max",
    "turn_limit",
]
KEYS += ["prompt_limit", "invalid_rate", "truncated_rate", "alone_0", "alone_1", "alone_2"]
# four tasks that come three times
SETTINGS = [
    "data.max_samples=4",
    "rollout.batch_size=4",
    "train.num_epochs=3",
    "train.max_steps=3",
]
SETTINGS += [
    "replay.enabled=true",
    "reflection.enabled=true",
    "reflection.threshold=0.9",
    "reflection.max_share=1",
    "data.max_len=512",
]
PLAYED = 16  # trajectories of a step: four of each task


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("agents") / "run"
    train(place, *SETTINGS, experiment="agent_smoke")
    return place


def test_every_number_is_there_and_finite(run):
    steps = lines(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert not {f"r3/agents/{key}" for key in KEYS} - set(step)
        assert all(math.isfinite(value) for value in step.values())
        assert step["r3/agents/trajectories"] == PLAYED and step["r3/agents/lost"] == 0


def test_the_engine_computes_with_the_weights_that_were_trained(run):
    """From step 2 on the engine's log-probs come from synchronised weights. A stale layer shows 0.07 and more."""
    assert max(step["r3/sync/abs_logprob_gap"] for step in lines(run / "metrics.jsonl")) < 0.02


def test_every_turn_is_a_row(run):
    """Prompts grow with the memory; what the metrics count is what the rows hold."""
    for step in lines(run / "metrics.jsonl"):
        rows = [row for row in rollouts_of(run) if row["step"] == step["step"]]
        assert len(rows) == step["r3/agents/rows"]
        plain = [
            row for row in rows if row["context"] == "plain" and row["recalled_from"] is None
        ]
        assert len(plain) == step["r3/agents/turns_mean"] * PLAYED
        trajectories = {}
        for row in plain:
            trajectories.setdefault((row["uid"], row["trajectory"]), []).append(row)
        assert len(trajectories) == PLAYED
        assert len({uid for uid, _ in trajectories}) == 4
        for turns in trajectories.values():
            check_turns(turns)
        right = sum(turns[0]["verdict"] == "correct" for turns in trajectories.values())
        assert step["r3/agents/success_rate"] == pytest.approx(right / PLAYED)
        invalid = sum(not row["valid"] for row in plain)
        assert step["r3/agents/invalid_rate"] == pytest.approx(invalid / len(plain))


def check_turns(turns):
    """The rows of one trajectory: in order, with one verdict, a memory of two turns, discounted returns."""
    assert [row["turn"] for row in turns] == list(range(len(turns)))
    assert len(turns) <= 6
    assert len({row["verdict"] for row in turns}) == 1
    for row in turns:
        assert row["prompt"].count(" -> ") == min(row["turn"], 2)
    for row, following in zip(turns, turns[1:], strict=False):
        paid = row["turn_reward"] - (0 if row["valid"] else 0.1)
        assert row["step_return"] == pytest.approx(paid + 0.95 * following["step_return"])


def test_held_out_tasks_are_played(run):
    first, last = (
        json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()
    )
    assert (first["step"], last["step"]) == (0, 3)
    assert first["num_problems"] == last["num_problems"] == 8 and first["num_ungraded"] == 0
    assert 0 <= last["pass_at_1"] <= last["pass_at_n"] <= 1


def test_a_trajectory_is_read_turn_by_turn(run):
    uid = next(iter(rollouts_of(run)))["uid"]
    shown = subprocess.run(
        [R3, "show", str(run), "--step", "1", "--uid", uid], capture_output=True, text=True
    )
    assert (
        shown.returncode == 0
        and "\ttrajectory\tturn\t" in shown.stdout
        and "<action>" in shown.stdout
    )


def groups_of(rows):
    """(step, task, context) -> the rows of each trajectory."""
    groups = {}
    for row in rows:
        group = groups.setdefault((row["step"], row["uid"], row["context"]), {})
        group.setdefault(row["trajectory"], []).append(row)
    return {key: list(group.values()) for key, group in groups.items()}


def test_advantages_are_those_of_the_hierarchy(run):
    """As the rows of the run give them again; recalled trajectories and reflection groups are compared in the same way."""
    for trajectories in groups_of(rollouts_of(run)).values():
        states, returns = (
            [[row[key] for row in turns] for turns in trajectories]
            for key in ("state", "step_return")
        )
        expected = brute_force(states, returns, depth=2, alpha=1.0, eps=1e-6)
        for turns, advantages in zip(trajectories, expected, strict=True):
            assert [row["advantage"] for row in turns] == pytest.approx(advantages, abs=1e-4)


def test_a_task_is_joined_by_what_ended_otherwise_and_played_again_behind_a_failure(run):
    """Step 2 knows what step 1 stored: an attempt is shown where less than 90% of the task's trajectories succeeded."""
    groups = groups_of(rollouts_of(run))
    for uid in {uid for _, uid, _ in groups}:
        verdicts = [turns[0]["verdict"] for turns in groups[1, uid, "plain"]]
        now = groups[2, uid, "plain"]
        fresh = {turns[0]["verdict"] for turns in now if turns[0]["recalled_from"] is None}
        recalled = {turns[0]["verdict"] for turns in now if turns[0]["recalled_from"] == 1}
        assert recalled == (set(verdicts) - fresh if len(fresh) == 1 else set())
        reflected = groups.get((2, uid, "reflection"), [])
        assert len(reflected) == (4 if verdicts.count("correct") / 4 < 0.9 else 0)
        assert all("It failed." in row["prompt"] for row in itertools.chain(*reflected))
