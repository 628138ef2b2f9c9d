"""TextWorld's games: solved by a search, the same for the same seed."""

from collections import deque

import pytest

from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.agents.environment import make_environment


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
