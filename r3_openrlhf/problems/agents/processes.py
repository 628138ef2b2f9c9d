"""Environments in killable processes: one that hangs or crashes costs only its trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from operator import itemgetter
from typing import Any

from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool, Session
from r3_openrlhf.problems.agents.environment import Environment, Observation, Step, environment_class, make_environment

EnvironmentLost = ItemLost  # an environment gave no answer, and its trajectory is lost


Answer = tuple[Observation | None, Step | None]  # to a seed and to an action; one of the two


def make_worker(name: str, options: Mapping[str, Any]) -> Callable[[int | str], Answer]:
    """Handle a pool's work: import the environment's package, make one in each worker."""
    environment_class(name)
    made: list[Environment] = []

    def handle(call: int | str) -> Answer:
        if not made:
            made.append(make_environment(name, options))
        if isinstance(call, int):
            return made[0].reset(call), None
        return None, made[0].step(call)

    return handle


class RemoteEnvironment:
    """One environment of a pool. Futures raise EnvironmentLost; then only `reset` works."""

    def __init__(self, session: Session[Answer]) -> None:
        self._session = session

    def reset(self, seed: int) -> Future[Observation]:
        """Begin the task of this number, in a new process where there is none."""
        return self._session.submit(seed, then=itemgetter(0))

    def step(self, action: str) -> Future[Step]:
        """Act."""
        if not self._session.has_worker:
            lost: Future[Step] = Future()
            lost.set_exception(EnvironmentLost("closed", "step without reset"))
            return lost
        return self._session.submit(action, then=itemgetter(1))

    def release(self) -> None:
        """Free the process for others. Call it when an episode is over; twice is harmless."""
        self._session.close()


class EnvironmentPool(ProcessPool[Answer]):
    """Environments of one kind, as many as are open at once, each in a process of its own that is
    used again.

    Thread-safe. In asyncio: `await asyncio.wrap_future(environment.step(...))`.

    Raises:
        ConfigError: as `environment_class` does, before anything is started."""

    def __init__(self, name: str, options: Mapping[str, Any], *, timeout_s: float = 60.0) -> None:
        environment_class(name)
        self.name, self.options = name, dict(options)
        target = f"{__name__}:make_worker"
        super().__init__(target, {"name": name, "options": self.options}, answer_type=Answer, timeout_s=timeout_s)

    def environment(self) -> RemoteEnvironment:
        """One more; its process comes with its first `reset`."""
        return RemoteEnvironment(self.session())
