"""Environments in killable processes: one that hangs or crashes costs only its trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from r3_openrlhf.machine.processes.pool import ProcessPool
from r3_openrlhf.problems.agents.environment import Environment, Step, environment_class, make_environment


def make_worker(name: str, options: Mapping[str, Any]) -> Callable[[int | str], Step]:
    """Handle a pool's work: import the environment's package, make one in each worker."""
    environment_class(name)
    made: list[Environment] = []

    def handle(call: int | str) -> Step:
        if not made:
            made.append(make_environment(name, options))
        if isinstance(call, int):
            return Step(observation=made[0].reset(call), reward=0.0, done=False)
        return made[0].step(call)

    return handle


def environment_pool(name: str, options: Mapping[str, Any], *, timeout_s: float) -> ProcessPool[Step]:
    """Make a pool whose sessions are environments, each in a process that is used again.

    `session.submit` takes a seed, which begins that task, and then actions. Its future has the Step,
    or raises ItemLost, and the trajectory is lost. `session.close` frees the process.

    Raises:
        ConfigError: as `environment_class` does, before anything is started."""
    environment_class(name)
    options = {"name": name, "options": dict(options)}
    return ProcessPool(f"{__name__}:make_worker", options, answer_type=Step, timeout_s=timeout_s)
