"""gymnasium's and TextWorld's worlds in words: solved by a search, the same for the same seed, played in processes."""

from collections import deque

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.agents.environment import make_environment
from r3_openrlhf.problems.agents.processes.pool import EnvironmentPool

PATIENCE_S = 300


def solution(name: str, seed: int, options: dict, *, longest: int = 30) -> list[str]:
    """The shortest way to a success, by trying every way from the start."""
    world = make_environment(name, options)
    start = world.reset(seed)
    seen, waiting = {start.anchor}, deque([([], start.valid_actions)])
    try:
        while waiting:
            way, actions = waiting.popleft()
            for action in actions:
                world.reset(seed)
                step = None
                for one in [*way, action]:
                    step = world.step(one)
                if step.success:
                    return [*way, action]
                if not step.done and step.observation.anchor not in seen and len(way) < longest:
                    seen.add(step.observation.anchor)
                    waiting.append(([*way, action], step.observation.valid_actions))
    finally:
        world.close()
    raise AssertionError("there is no way")


@pytest.mark.parametrize(
    ("name", "seed", "total"), [("frozen_lake", 3, 1.0), ("frozen_lake", 4, 1.0), ("taxi", 1, None)]
)
def test_a_way_is_found_and_is_the_same_in_a_process(name, seed, total):
    way = solution(name, seed, {})
    rewards = 1.0 if total else 21.0 - len(way)  # a step of a taxi costs 1, the last one pays 20
    with EnvironmentPool(name, {}) as pool:
        for _ in range(2):
            world = pool.environment()
            world.reset(seed).result(PATIENCE_S)
            steps = [world.step(action).result(PATIENCE_S) for action in way]
            assert sum(step.reward for step in steps) == rewards
            assert (steps[-1].done, steps[-1].success, all(step.valid for step in steps)) == (True, True, True)
            world.release()


def test_frozen_lake_by_hand():
    """Seed 3: SFHF/FFFF/FFFF/FFFG. Right once, then right again: a hole."""
    world = make_environment("frozen_lake", {})
    assert world.reset(3).text == "*FHF/FFFF/FFFF/FFFG"
    assert world.step("up").observation.text == "*FHF/FFFF/FFFF/FFFG"
    assert world.step("right").observation.text == "S*HF/FFFF/FFFF/FFFG"
    step = world.step("right")
    assert (step.done, step.success, step.reward) == (True, False, 0.0)
    world.reset(3)
    assert world.step("swim").valid is False
    world.close()
    world.close()
    with pytest.raises(ConfigError, match="size is 1; use 2 or more"):
        make_environment("frozen_lake", {"size": 1})


def test_taxi_by_hand():
    """Seed 1: in the middle, the passenger at blue (row 4, column 3), to red."""
    world = make_environment("taxi", {})
    start = world.reset(1)
    assert start.text == "taxi at row 2, column 2; passenger at blue"
    assert start.goal.startswith("bring the passenger to red (stops by row and column: red 0 0, green 0 4,")
    assert start.valid_actions == ("south", "north", "east", "west")
    step = world.step("pick up")
    assert (step.valid, step.reward, step.observation) == (False, -10.0, start)
    step = world.step("fly")
    assert (step.valid, step.observation) == (False, start)
    step = world.step("north")
    assert (step.valid, step.reward) == (True, -1.0)
    assert step.observation.text == "taxi at row 1, column 2; passenger at blue"


def test_textworld_is_won_by_a_search_and_made_once(tmp_path):
    pytest.importorskip("textworld")
    options = {"directory": str(tmp_path), "rooms": 1, "objects": 2, "quest_length": 1}
    way = solution("textworld", 3, options, longest=4)
    world = make_environment("textworld", options)
    start = world.reset(3)
    assert start.goal and set(way[:1]) <= set(start.valid_actions)
    assert world.step("fly away").valid is False
    steps = [world.step(action) for action in way]
    assert (steps[-1].success, sum(step.reward for step in steps)) == (True, 1.0)
    made = sorted(path.name for path in tmp_path.glob("*/*"))
    assert made == ["3.json", "3.z8"]
    mine = make_environment("textworld", {"games": str(tmp_path / "1-2-1")})
    assert mine.reset(11) == start
    with pytest.raises(ConfigError, match="holds no .z8 or .ulx game"):
        make_environment("textworld", {"games": str(tmp_path)})
