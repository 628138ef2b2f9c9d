"""The world of keys: worked by hand, and what its two variants promise."""

import itertools

import pytest

from r3_openrlhf.problems.agents.vault import BACK, OPEN, TAKE, Vault


def play(world: Vault, actions: list[str], seed: int = 0):
    """The start and what each action led to."""
    return [world.reset(seed), *(world.step(action) for action in actions)]


def solution(world: Vault) -> list[str]:
    return [action for colour in world.needed for action in (f"go {colour}", TAKE, BACK)] + [
        OPEN
    ]


@pytest.mark.parametrize("shows_keys", [False, True])
def test_with_its_keys_the_gate_opens_and_without_one_it_is_over(shows_keys):
    world = Vault(shows_keys=shows_keys)
    world.reset(3)
    last = play(world, solution(world), 3)[-1]
    assert (last.reward, last.done, last.valid, last.success) == (1.0, True, True, True)
    without = [action for action in solution(world) if action != f"go {world.needed[0]}"]
    steps = play(world, without, 3)[1:]
    # no key and no door back in the hall
    assert [step.valid for step in steps[:2]] == [
        False,
        False,
    ]
    assert (steps[-1].reward, steps[-1].done, steps[-1].success) == (0.0, True, False)


def test_the_hall_is_one_state_whatever_was_taken_unless_the_keys_are_shown():
    for shows_keys, num_states in ((False, 1), (True, 4)):
        world = Vault(rooms=2, shows_keys=shows_keys)
        halls = set()
        for taken in itertools.chain.from_iterable(
            itertools.combinations(world.colours, n) for n in range(3)
        ):
            actions = [action for colour in taken for action in (f"go {colour}", TAKE, BACK)]
            found = play(world, actions)[-1]
            halls.add((found.observation if actions else found).anchor)
        assert len(halls) == num_states


def test_an_action_that_is_none_changes_nothing():
    world = Vault()
    start = world.reset(0)
    for action in ("", "fly", TAKE, "go gold", "go back"):
        step = world.step(action)
        assert (step.observation, step.valid, step.done, step.reward) == (
            start,
            False,
            False,
            0.0,
        )


def test_a_seed_is_a_task_and_seeds_differ():
    goals = [Vault().reset(seed).goal for seed in range(40)]
    assert goals == [Vault().reset(seed).goal for seed in range(40)]
    assert len(set(goals)) > 6  # of 12
