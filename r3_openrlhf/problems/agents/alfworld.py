"""ALFWorld's text games (arXiv 2010.03768; package alfworld 0.4.2, on TextWorld's engine)."""

import json
import os
import re
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

from r3_openrlhf.problems.agents.environment import Observation, Step

REWARD = 10.0  # of a won game [P], arXiv 2505.10978
GOAL = "Your task is to: "


def games_in(option: str, folder: str) -> list[Path]:
    """List the games of a folder in order. ValueError, which names the option: there is none."""
    files = sorted(Path(os.path.expandvars(folder)).expanduser().rglob("*.tw-pddl"))
    found = [file for file in files if not re.search("movable|Sliced", str(file))]
    if not found:
        raise ValueError(
            f"{option} is {folder}, where no game.tw-pddl is; alfworld-download fetches them"
        )
    return found


class AlfWorld:
    """Games in files game.tw-pddl under `games`; a seed is the place of one in their order. What alfworld leaves out is
    left out: games with movable or sliced objects, and unsolvable ones. The valid actions are the admissible commands.

    held_out_games: folders of other games, one of each in turn for the seeds from num_tasks on, which are held out.

    ValueError: no games."""

    def __init__(
        self,
        *,
        games: str = "$ALFWORLD_DATA/json_2.1.1/train",
        held_out_games: Sequence[str] = (),
        num_tasks: int = 0,
    ) -> None:
        self.files = games_in("games", games)
        self.held_out = [games_in("held_out_games", folder) for folder in held_out_games]
        self.num_tasks = num_tasks
        self._infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._game: Any = None

    def reset(self, seed: int) -> Observation:
        """Begin the game of this number, or the next solvable one."""
        self.close()
        pool, number = self._pool_of(seed)
        first = number % len(pool)
        files = islice(cycle(pool), first, first + len(pool))
        file = next(file for file in files if json.loads(file.read_text())["solvable"])
        self._game = textworld.start(str(file), self._infos, wrappers=[AlfredDemangler])
        state = self._game.reset()
        text, _, goal = state.feedback.partition(GOAL)
        self._goal, text = goal.strip(), text.partition("\n\n")[2]  # without the welcome
        return self._observed(text, state)

    def _pool_of(self, seed: int) -> tuple[list[Path], int]:
        """Return the games that a seed chooses from, and its number among the seeds that do."""
        if not self.held_out or seed < self.num_tasks:
            return self.files, seed
        number, place = divmod(seed - self.num_tasks, len(self.held_out))
        return self.held_out[place], number

    def step(self, action: str) -> Step:
        """Act; REWARD for winning the game."""
        if action not in self._last.valid_actions:
            return Step(observation=self._last, reward=0.0, done=False, valid=False)
        state, _, done = self._game.step(action)
        won = bool(state.won)
        return Step(
            observation=self._observed(state.feedback, state),
            reward=REWARD * won,
            done=done or won,
            success=won,
        )

    def close(self) -> None:
        """End the game."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _observed(self, text: str, state: Any) -> Observation:
        actions = tuple(one for one in state.admissible_commands if one != "help")
        self._last = Observation(text=text.strip(), valid_actions=actions, goal=self._goal)
        return self._last
