"""A small world of our own: fetch the right keys, then open the gate. Pure Python, the same for the
same seed.

A hall has a door to a room per colour, and a gate. Each room has a key of its colour. The goal is
the gate's keys. Opening it with all is success; opening it without one is the end, in failure.

`shows_keys=False`: an observation is the place alone. The hall is one state, reached with different
histories, and what is best there depends on the keys that were taken before. `shows_keys=True`: an
observation lists the keys at hand. What is best depends on the current state alone. Everything else
is the same in the two."""

import random

from r3_openrlhf.problems.agents.environment import Observation, Step

COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink", "grey")
HALL = "hall"
TAKE, BACK, OPEN = "take key", "go back", "open gate"


class Vault:
    """See above. ValueError: fewer than 1 key, more keys than rooms, more rooms than COLOURS."""

    def __init__(self, *, rooms: int = 4, keys: int = 2, shows_keys: bool = False) -> None:
        if not 1 <= keys <= rooms <= len(COLOURS):
            raise ValueError(
                f"keys is {keys} and rooms is {rooms}; use 1 <= keys <= rooms <= {len(COLOURS)}"
            )
        self.colours = COLOURS[:rooms]
        self.num_keys = keys
        self.shows_keys = shows_keys
        self.needed: tuple[str, ...] = ()
        self.taken: set[str] = set()
        self.place = HALL

    def reset(self, seed: int) -> Observation:
        """Draws the keys that the gate needs."""
        self.needed = tuple(random.Random(f"vault/{seed}").sample(self.colours, self.num_keys))
        self.taken = set()
        self.place = HALL
        return self._observation()

    def step(self, action: str) -> Step:
        """Walk, take or open. Reward 1 for opening the gate with all keys, else 0."""
        if action not in self.valid_actions:
            return Step(observation=self._observation(), reward=0.0, done=False, valid=False)
        if action == OPEN:
            success = set(self.needed) <= self.taken
            return Step(
                observation=self._observation(),
                reward=float(success),
                done=True,
                success=success,
            )
        if action == TAKE:
            self.taken.add(self.place)
        else:
            self.place = HALL if action == BACK else action.removeprefix("go ")
        return Step(observation=self._observation(), reward=0.0, done=False)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def valid_actions(self) -> tuple[str, ...]:
        """By the place alone: they must not tell what was taken."""
        return (
            (*(f"go {colour}" for colour in self.colours), OPEN)
            if self.place == HALL
            else (TAKE, BACK)
        )

    def _observation(self) -> Observation:
        held = [colour for colour in self.colours if colour in self.taken]
        keys = f", keys {' '.join(held) or 'none'}" if self.shows_keys else ""
        return Observation(
            text=f"{self.place}{keys}",
            valid_actions=self.valid_actions,
            goal=f"open the gate with {' and '.join(self.needed)}",
        )
