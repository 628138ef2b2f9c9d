"""The network of the lab for agents: what it reads, what moves it, and that it learns to remember."""

import math
import random

import pytest
import torch
from pytest import approx

from r3_openrlhf.problems.agents.vault import BACK, HALL, OPEN, TAKE
from research import agents as lab
from research.agents_network import (
    ACTIONS,
    NetworkPolicy,
    Turn,
    allowed,
    clipped_objective,
    imitator,
    read,
)
from research.agents_table import Choice, Played, agents_config


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices as small as these only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


PROMPT = """Goal: open the gate with white and red and black
Before:
hall -> go red
red -> take key
Now: red"""
SHOWN = """Goal: open the gate with white and red and black
Before:
hall, keys none -> go blue
Now: blue, keys red blue"""


def test_it_reads_turns_by_parts_of_the_goal():
    reading, parts = read(PROMPT)
    assert reading == (
        Turn(HALL, (), "go second"),
        Turn("second", (), TAKE),
        Turn("second", (), None),
    )
    assert (parts["white"], parts["blue"]) == ("first", "other0")
    assert read(SHOWN)[0] == (
        Turn(HALL, (), "go other0"),
        Turn("other0", ("second", "other0"), None),
    )
    with pytest.raises(ValueError, match="no prompt of the vault"):
        read("Now: hall")
    with pytest.raises(ValueError, match="no state"):
        read(PROMPT.partition("\nNow")[0])


def some_readings(seed, num, *, shows_keys=False):
    """The readings of one group that a fresh network plays."""
    group = NetworkPolicy(seed).play_group(
        agents_config("grpo"), seed=3, num=num, shows_keys=shows_keys, rng=random.Random(seed)
    )
    return group, [choice.key for played in group for choice in played.choices]


def test_a_row_is_a_distribution_over_what_the_place_allows_whatever_else_is_in_the_batch():
    policy = NetworkPolicy(1)
    _, readings = some_readings(1, 6)
    together = policy(readings)
    for reading, row in zip(readings, together, strict=True):
        assert row.exp().sum().item() == approx(1, abs=1e-5)
        assert (row > -math.inf).tolist() == allowed(reading[-1].where)
        torch.testing.assert_close(policy([reading])[0], row, atol=1e-5, rtol=1e-5)
    assert {ACTIONS[i] for i, may in enumerate(allowed("first")) if may} == {TAKE, BACK}
    assert OPEN in {ACTIONS[i] for i, may in enumerate(allowed(HALL)) if may}


@pytest.mark.parametrize("shows_keys", [False, True])
def test_what_it_is_said_to_have_done_is_what_happened_in_the_world(shows_keys):
    """The action that a choice names, in colours, is what its turn did; its probability is the network's."""
    group, _ = some_readings(2, 8, shows_keys=shows_keys)
    policy, turns = NetworkPolicy(2), 0
    for played in group:
        for turn, choice in zip(played.trajectory.turns, played.choices, strict=True):
            reading, parts = read(turn.prompt)
            assert reading == choice.key and turn.valid
            assert (
                " ".join(parts.get(word, word) for word in turn.action.split()) == choice.action
            )
            row = policy([reading])[0]
            assert row[ACTIONS.index(choice.action)].exp().item() == approx(
                choice.probability, abs=1e-5
            )
            turns += 1
    assert turns > 30


@pytest.mark.parametrize(
    ("ratio", "advantage", "value"),
    [
        (1.0, 2.0, 2.0),
        (1.5, 2.0, 2.4),
        (0.5, 2.0, 1.0),
        (0.5, -2.0, -1.6),
        (1.5, -2.0, -3.0),
        (9.0, -2.0, -6.0),
    ],
)
def test_the_objective_by_hand(ratio, advantage, value):
    """Clipped at 1.2 and 0.8 where that is less; never below 3 A."""
    assert clipped_objective(torch.tensor([ratio]), torch.tensor([advantage])).item() == approx(
        value
    )


def one_turn(policy, action, *, probability=None):
    reading = (Turn("first", (), None),)
    now = policy([reading])[0, ACTIONS.index(action)].exp().item()
    return Played(None, [Choice(reading, action, probability or now)])


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [
        (1.0, 1.3, False),
        (1.0, 0.5, True),
        (-1.0, 0.7, False),
        (-1.0, 2.0, True),
        (-1.0, 3.5, False),
    ],
)
def test_a_recalled_turn_is_clipped_as_with_the_table(advantage, ratio, moves):
    policy = NetworkPolicy(3)
    before = policy([(Turn("first", (), None),)])[0, ACTIONS.index(TAKE)].item()
    old = one_turn(policy, TAKE, probability=math.exp(before) / ratio)
    policy.update([(old, [advantage], True)], learning_rate=0.01)
    after = policy([(Turn("first", (), None),)])[0, ACTIONS.index(TAKE)].item()
    assert (
        (after > before)
        if moves and advantage > 0
        else (after < before)
        if moves
        else (after == before)
    )


def test_lost_trajectories_and_advantages_of_zero_change_nothing():
    policy = NetworkPolicy(4)
    before = [parameter.clone() for parameter in policy.parameters()]
    policy.update(
        [(one_turn(policy, TAKE), [0.0], False), (one_turn(policy, BACK), None, False)],
        learning_rate=0.1,
    )
    assert all(map(torch.equal, before, policy.parameters()))


@pytest.fixture
def player(one_thread):
    return imitator(1, shows_keys=True)  # learned once


def test_before_training_it_succeeds_in_a_tenth_to_three_tenths(player):
    group = [
        played
        for task in range(20)
        for played in player.play_group(
            agents_config("grpo"), seed=task, num=16, shows_keys=True, rng=random.Random(task)
        )
    ]
    assert 0.1 < sum(bool(played.trajectory.success) for played in group) / len(group) < 0.3


def test_a_run_learns_recalls_and_is_the_same_again(player):
    first = lab.train(
        "state", "hgpo_k2_replay", 1, policy="network", tokens=25_000, learning_rate=3e-3
    )
    assert first.policy == "network" and first.success[0] < 0.5 < 0.6 < first.final
    again = lab.train(
        "state", "hgpo_k2_replay", 1, policy="network", tokens=25_000, learning_rate=3e-3
    )
    assert again == first
    # what one run learned is not in the next one's beginning
    assert imitator(1, shows_keys=True) is not player
