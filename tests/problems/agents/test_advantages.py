"""Trajectories of a task -> advantages: by hand, and what each estimator is a special case of."""

import random

import pytest
from pytest import approx

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.method.types import PlayedTurn
from r3_openrlhf.problems.agents.advantages import advantages_of_task, steps_alone
from r3_openrlhf.problems.agents.hierarchy import step_returns
from r3_openrlhf.problems.agents.trajectory import NO_TOKENS, End, Trajectory
from tests.method.core.hierarchies import hierarchy_advantages


def trajectory(
    states: str, rewards: list[float], *, uid="0", task="t", end=End.DONE, invalid=()
) -> Trajectory:
    """One letter and one reward per turn."""
    turns = tuple(
        PlayedTurn(
            prompt_ids=NO_TOKENS,
            num_tokens=0,
            state=state,
            observation=state,
            action="a",
            truncated=False,
            valid=t not in invalid,
            reward=reward,
        )
        for t, (state, reward) in enumerate(zip(states, rewards, strict=True))
    )
    return Trajectory(task_uid=task, uid=uid, turns=turns, end=end, success=None, reason="")


def test_grpo_gives_every_turn_of_a_trajectory_its_place_in_the_group():
    """Sums 1, 0, 2 -> mean 1, std 1."""
    task = [trajectory("ab", [0, 1]), trajectory("a", [0]), trajectory("abc", [1, 0, 1])]
    found = advantages_of_task(task, AgentsConfig(estimator="grpo"))
    assert found == [
        approx([0.0, 0.0]),
        approx([-1.0], abs=2e-6),
        approx([1.0, 1.0, 1.0], abs=2e-6),
    ]


def test_gigpo_adds_the_state_to_the_trajectory_by_hand():
    """gamma 1/2: returns (1/2, 1), (0), (0, 0). State a: 1/2, 0, 0; state b: 1, 0. Sums 1, 0, 0."""
    task = [trajectory("ab", [0, 1]), trajectory("a", [0]), trajectory("ab", [0, 0])]
    found = advantages_of_task(task, AgentsConfig(estimator="gigpo", gamma=0.5))
    # of two returns that differ; of three of which one does: 2 t, -t, -t
    s, t = (
        2**-0.5,
        3**-0.5,
    )
    assert found[0] == approx([2 * t + 2 * t, s + 2 * t], abs=1e-5)
    assert found[1] == approx([-t - t], abs=1e-5)
    assert found[2] == approx([-t - t, -s - t], abs=1e-5)


def test_hgpo_is_the_hierarchy_of_the_returns_and_of_depth_0_gigpo_without_the_episode():
    draw = random.Random(1)
    lengths = (3, 5, 4, 6)
    rows = [
        ("".join(draw.choices("ab", k=n)), [draw.choice([0, 0, 1]) for _ in range(n)])
        for n in lengths
    ]
    task = [trajectory(*row, uid=str(n)) for n, row in zip(lengths, rows, strict=True)]
    settings = AgentsConfig(depth=3, gamma=0.9)
    states = [one.anchors for one in task]
    returns = [step_returns([turn.reward for turn in one.turns], gamma=0.9) for one in task]
    assert advantages_of_task(task, settings) == hierarchy_advantages(states, returns, depth=3)
    flat = advantages_of_task(task, AgentsConfig(depth=0, gamma=0.9))
    gigpo = advantages_of_task(task, AgentsConfig(estimator="gigpo", gamma=0.9))
    episode = group_advantages(
        [sum(turn.reward for turn in one.turns) for one in task], lam=1e-6
    )
    for with_it, without, a in zip(gigpo, flat, episode, strict=True):
        assert with_it == approx([value + a for value in without])


def test_a_lost_trajectory_has_none_and_takes_no_part():
    lost = trajectory("ab", [0, 0], uid="2", end=End.LOST)
    task = [trajectory("ab", [0, 1]), trajectory("ab", [0, 0], uid="1")]
    for estimator in ("grpo", "gigpo", "hgpo"):
        settings = AgentsConfig(estimator=estimator)
        found = advantages_of_task([task[0], lost, task[1]], settings)
        assert found == [
            advantages_of_task(task, settings)[0],
            None,
            advantages_of_task(task, settings)[1],
        ]
    assert advantages_of_task([lost], AgentsConfig()) == [None]


def test_an_action_that_was_none_lowers_its_return():
    task = [trajectory("a", [0], invalid={0}), trajectory("a", [0], uid="1")]
    found = advantages_of_task(task, AgentsConfig(invalid_penalty=0.5))
    assert found == [approx([-(2**-0.5)], abs=1e-5), approx([2**-0.5], abs=1e-5)]


def test_tasks_are_not_compared_with_each_other():
    with pytest.raises(ValueError, match="of several tasks"):
        advantages_of_task(
            [trajectory("a", [0]), trajectory("a", [0], task="u")], AgentsConfig()
        )


def test_the_share_of_steps_alone_by_hand():
    """Task t: a b | a c | c c. k = 0: b is alone. k = 1: of the second steps b, c, c behind a, a, c all are alone, and of the
    first c. Task u: one step, alone everywhere."""
    tasks = [trajectory("ab", [0, 0]), trajectory("ac", [0, 0]), trajectory("cc", [0, 0])]
    tasks += [trajectory("a", [0], task="u"), trajectory("b", [0], end=End.LOST)]
    assert steps_alone(tasks, depth=1) == approx([2 / 7, 5 / 7])
    assert steps_alone([], depth=0) == [0.0]
