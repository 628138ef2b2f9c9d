"""TextWorld: a game per seed, or from a directory (`pip install "r3-openrlhf[textworld]"`)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import textworld

from r3_openrlhf.problems.agents.environment import Observation, Step

SUFFIXES = (".z8", ".ulx")


class TextWorld:
    """A quest in a house. The state is the room's description and what is carried.

    directory: made games are kept there and found again (the compiler takes seconds); None:
    $XDG_CACHE_HOME/r3_openrlhf/ textworld. games: a directory of .z8 or .ulx games of one's own, in
    the order of their names; a seed beyond the last begins again. rooms, objects, quest_length: of
    a made game. Rewards are the game's points over its highest score. ValueError: a directory
    without games."""

    def __init__(
        self,
        *,
        rooms: int = 2,
        objects: int = 4,
        quest_length: int = 2,
        directory: str | None = None,
        games: str | None = None,
    ) -> None:
        self.shape = (rooms, objects, quest_length)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "r3_openrlhf" / "textworld"
        self.directory = Path(directory) if directory else cache
        self.games = (
            None if games is None else sorted(path for path in Path(games).glob("*") if path.suffix in SUFFIXES)
        )
        if self.games == []:
            raise ValueError(f"games is {games}, which holds no .z8 or .ulx game")
        self.score = 0
        self._world: Any = None
        self._state: Any = None

    def reset(self, seed: int) -> Observation:
        """Starts the game of this number, after it is made where it is new."""
        self.close()
        path = self.games[seed % len(self.games)] if self.games else self._made(seed)
        wanted = textworld.EnvInfos(
            admissible_commands=True,
            description=True,
            inventory=True,
            objective=True,
            won=True,
            max_score=True,
            score=True,
        )
        self._world = textworld.start(str(path), wanted)
        self._state = self._world.reset()
        self.score = 0
        return self._observation()

    def step(self, action: str) -> Step:
        """One command. One that is not admissible changes nothing."""
        if action not in self._state["admissible_commands"]:
            return Step(observation=self._observation(), reward=0.0, done=False, valid=False)
        self._state, score, done = self._world.step(action)
        gained, self.score = score - self.score, score
        return Step(
            observation=self._observation(),
            reward=gained / max(1, self._state["max_score"]),
            done=bool(done),
            success=bool(self._state["won"]) if done else None,
        )

    def close(self) -> None:
        """Ends the game."""
        if self._world is not None:
            self._world.close()
            self._world = None

    def _observation(self) -> Observation:
        text = f"{self._state['description']} {self._state['inventory']}"
        return Observation(
            text=" ".join(text.split()),
            valid_actions=tuple(self._state["admissible_commands"]),
            goal=" ".join((self._state["objective"] or "").split()),
        )

    def _made(self, seed: int) -> Path:
        """The game of a seed; several processes may ask for it at once."""
        rooms, objects, quest_length = self.shape
        target = self.directory / f"{rooms}-{objects}-{quest_length}" / f"{seed}.z8"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".made-") as scratch:
                options = textworld.GameOptions()
                options.seeds = seed
                options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest_length
                options.path = str(Path(scratch) / "game.z8")
                made, _ = textworld.make(options)
                # the file of the commands is next to the game, so the game is written last
                Path(made).with_suffix(".json").rename(target.with_suffix(".json"))
                Path(made).rename(target)
        return target
