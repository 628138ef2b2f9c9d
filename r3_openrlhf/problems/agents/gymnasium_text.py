"""FrozenLake and Taxi of gymnasium, in words. Offline, the same for the same seed."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from r3_openrlhf.problems.agents.environment import Observation, Step


class FrozenLake:
    """A lake with holes: walk from the corner to the goal. Each seed is a map of its own, with a
    way through.

    The state is the map with the walker in it. Reward 1 at the goal; a hole ends the episode.
    `is_slippery`: the walker may slide to a side, in the same way whenever the same actions follow
    the same seed. ValueError: `size` below 2."""

    ACTIONS = ("left", "down", "right", "up")  # gymnasium's order

    def __init__(self, *, size: int = 4, is_slippery: bool = False) -> None:
        if size < 2:
            raise ValueError(f"size is {size}; use 2 or more")
        self.size = size
        self.is_slippery = is_slippery
        self.rows: list[str] = []
        self._world: Any = None

    def reset(self, seed: int) -> Observation:
        """Makes the map."""
        self.close()
        self.rows = generate_random_map(size=self.size, seed=seed)
        self._world = gymnasium.make(
            "FrozenLake-v1", desc=self.rows, is_slippery=self.is_slippery, max_episode_steps=10**9
        )
        place, _ = self._world.reset(seed=seed)
        return self._observation(int(place))

    def step(self, action: str) -> Step:
        """Walks one field; against an edge it stays."""
        if action not in self.ACTIONS:
            return Step(
                observation=self._observation(int(self._world.unwrapped.s)), reward=0.0, done=False, valid=False
            )
        place, reward, done, _, _ = self._world.step(self.ACTIONS.index(action))
        return Step(
            observation=self._observation(int(place)),
            reward=float(reward),
            done=bool(done),
            success=float(reward) > 0 if done else None,
        )

    def close(self) -> None:
        """Lets the world go."""
        if self._world is not None:
            self._world.close()
            self._world = None

    def _observation(self, place: int) -> Observation:
        row, column = divmod(place, self.size)
        lines = list(self.rows)
        lines[row] = f"{lines[row][:column]}*{lines[row][column + 1 :]}"
        return Observation(
            text="/".join(lines),
            valid_actions=self.ACTIONS,
            goal="walk (*) over the ice (F) to G, not into a hole (H)",
        )


class Taxi:
    """Fetch a passenger and bring him to his stop, on five by five fields with walls.

    The state says where the taxi, the passenger and the destination are. gymnasium's rewards: -1 a
    step, 20 for the right drop. An action that changes nothing (a wall, no one to pick up) is not
    valid; the world's own reward for it (-1 or -10) is, and `agents.invalid_penalty` comes on top.
    """

    ACTIONS = ("south", "north", "east", "west", "pick up", "drop off")  # gymnasium's order
    STOPS = ("red", "green", "yellow", "blue")

    def __init__(self) -> None:
        name = max(name for name in gymnasium.registry if name.startswith("Taxi-v"))
        self._world: Any = gymnasium.make(name, max_episode_steps=10**9)

    def reset(self, seed: int) -> Observation:
        """Draws where everybody is."""
        _, info = self._world.reset(seed=seed)
        return self._observation(info)

    def step(self, action: str) -> Step:
        """Drives one field, picks up or drops off."""
        state = int(self._world.unwrapped.s)
        if action not in self.ACTIONS:
            info = {"action_mask": self._world.unwrapped.action_mask(state)}
            return Step(observation=self._observation(info), reward=-1.0, done=False, valid=False)
        number = self.ACTIONS.index(action)
        valid = bool(self._world.unwrapped.action_mask(state)[number])
        _, reward, done, _, info = self._world.step(number)
        return Step(
            observation=self._observation(info),
            reward=float(reward),
            done=bool(done),
            valid=valid,
            success=True if done else None,
        )

    def close(self) -> None:
        """Lets the world go."""
        self._world.close()

    def _observation(self, info: dict[str, Any]) -> Observation:
        row, column, passenger, destination = map(int, self._world.unwrapped.decode(self._world.unwrapped.s))
        stops = ", ".join(
            f"{name} {place[0]} {place[1]}" for name, place in zip(self.STOPS, self._world.unwrapped.locs, strict=True)
        )
        where = "in the taxi" if passenger == len(self.STOPS) else f"at {self.STOPS[passenger]}"
        return Observation(
            text=f"taxi at row {row}, column {column}; passenger {where}",
            valid_actions=tuple(
                action for action, works in zip(self.ACTIONS, info["action_mask"], strict=True) if works
            ),
            goal=f"bring the passenger to {self.STOPS[destination]} (stops by row and column: {stops})",
        )
