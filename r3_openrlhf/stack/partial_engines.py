"""The rollout engines as a step with paused responses asks them (partial_rollouts.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import ray

from r3_openrlhf.stack.partial_rollouts import Answer, Group

WAIT_S = 10.0  # upstream's (samples_generator.py:182)


class RayEngines:
    """vLLM Ray actors (rollout_engine.py).

    Args:
        asked: what `continue_group` is asked with besides the group.
        sends_finished: the reward function reads a whole group, so the engine needs all of it."""

    def __init__(
        self, engines: Sequence[Any], asked: dict[str, Any], *, sends_finished: bool
    ) -> None:
        self._engines = engines
        self._asked = asked
        self._sends_finished = sends_finished
        self._pending: dict[Any, tuple[Group, int]] = {}
        self._loads = [0] * len(engines)  # unfinished responses

    def ask(self, group: Group) -> None:
        """Ask the engine that has the fewest unfinished responses."""
        engine = self._loads.index(min(self._loads))
        self._loads[engine] += group.num_unfinished
        samples = [
            sample if isinstance(sample, list) or self._sends_finished else None
            for sample in group.samples
        ]
        reference = self._engines[engine].continue_group.remote(
            prompt=group.prompt, label=group.label, samples=samples, **self._asked
        )
        self._pending[reference] = group, engine

    def answers(self) -> list[Answer]:
        """Wait for one group."""
        ready: list[Any] = []
        while not ready:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=WAIT_S)
        return [self._answer(reference) for reference in ready]

    def pause(self) -> list[Answer]:
        """Pause every engine, and take what each group has."""
        if self._pending:
            ray.get([engine.pause_groups.remote() for engine in self._engines])
        return [self._answer(reference) for reference in list(self._pending)]

    def occupancy(self) -> float:
        """Return the share of the engines' places that responses took in this step, from 0 to 1."""
        return fmean(ray.get([engine.take_occupancy.remote() for engine in self._engines]))

    def _answer(self, reference: object) -> Answer:
        group, engine = self._pending.pop(reference)
        self._loads[engine] -= group.num_unfinished
        return group, ray.get(reference)


class Occupancy:
    """The mean share of an engine's places that requests take, from the first to the last.

    Args:
        places: requests that it decodes at once; others wait and count no place."""

    def __init__(self, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._clock = clock
        self._requests = 0
        self._area = 0.0  # places taken, times seconds
        self._begun: float | None = None
        self._last = 0.0

    def change(self, by: int) -> None:
        """Count a request that begins (1) or ends (-1)."""
        now = self._clock()
        if self._begun is None:
            self._begun = now
        else:
            self._area += min(self._requests, self._places) * (now - self._last)
        self._last = now
        self._requests += by

    def take(self) -> float:
        """Return the share since the last call; 0 without any request."""
        seconds = 0.0 if self._begun is None else self._last - self._begun
        share = self._area / (self._places * seconds) if seconds > 0 else 0.0
        self._begun, self._area = None, 0.0
        return share
