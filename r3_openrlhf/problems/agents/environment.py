"""The interface of an environment, its answers, the table of environments by name, and environments in
processes that can be killed: one that hangs or crashes costs only its trajectory."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from r3_openrlhf.machine.processes.pool import ProcessPool
from r3_openrlhf.method.core.checks import finite_value
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import load_object, nearest

ENVIRONMENTS = {
    "alfworld": "r3_openrlhf.problems.agents.alfworld:AlfWorld",
    "vault": "r3_openrlhf.problems.agents.vault:Vault",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state that the next action meets."""

    text: str  # as the policy reads it
    anchor: str = ""  # equal for equal states, to group steps. "": the text
    valid_actions: tuple[str, ...] = ()  # (): any text may be one
    goal: str = ""  # what is to be reached; the same in all of an episode

    def __post_init__(self) -> None:
        if not self.anchor:
            object.__setattr__(self, "anchor", self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of an action. ValueError: a reward that is not finite."""

    observation: Observation  # the state after it
    reward: float
    done: bool  # the episode is over
    valid: bool = True  # False: it was no action here, and the state is as before
    success: bool | None = None  # of the finished episode; None: no such word
    info: Mapping[str, Any] = field(default_factory=dict)  # plain values, for people

    def __post_init__(self) -> None:
        finite_value("reward", self.reward)


class Environment(Protocol):
    """One world at a time. A seed is a task; equal actions then lead to equal states.

    An action is any text of a policy. A senseless one gets `valid=False`; nothing is raised.
    """

    def reset(self, seed: int) -> Observation:
        """Begin the task of this number, 0 or more."""
        ...

    def step(self, action: str) -> Step:
        """Act. Only between `reset` and a step that is `done`."""
        ...

    def close(self) -> None:
        """Let go of files and processes. Twice is harmless."""
        ...


def environment_class(name: str) -> type:
    """Return the class of one of ENVIRONMENTS, or of an import path "package.module:Class".

    Raises:
        ConfigError: no such name, module or class, or a package that it needs is missing.
    """
    if name not in ENVIRONMENTS and ":" not in name:
        known = nearest(name, list(ENVIRONMENTS))
        raise ConfigError(
            f"agents.environment is {quoted(name)}; {known}, or package.module:Class of your own"
        )
    found = load_object("agents.environment", ENVIRONMENTS.get(name, name))
    missing = [
        method
        for method in ("reset", "step", "close")
        if not callable(getattr(found, method, None))
    ]
    if not callable(found) or missing:
        raise ConfigError(
            f"agents.environment is {quoted(name)}, which has no {', '.join(missing) or 'constructor'}; an environment has "
            "reset, step and close"
        )
    return found


def make_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """Make an environment by its name; `options` are the keyword arguments of its class.

    Raises:
        ConfigError: as `environment_class` does; an option that it does not have, or a value that
            it refuses (ValueError).
    """
    made = environment_class(name)
    try:
        inspect.signature(made).bind(**options)
        return made(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"agents.options is {dict(options)}, which {name} does not take: {error}"
        ) from error


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


def environment_pool(
    name: str, options: Mapping[str, Any], *, timeout_s: float
) -> ProcessPool[Step]:
    """Make a pool whose sessions are environments, each in a process that is used again.

    `session.submit` takes a seed, which begins that task, and then actions. Its future has the Step,
    or raises ItemLost, and the trajectory is lost. `session.close` frees the process.

    Raises:
        ConfigError: as `environment_class` does, before anything is started."""
    environment_class(name)
    options = {"name": name, "options": dict(options)}
    return ProcessPool(
        f"{__name__}:make_worker", options, answer_type=Step, timeout_s=timeout_s
    )


def task_uid(name: str, seed: int) -> str:
    """Return the uid of a task: trajectories with the same one are compared with each other."""
    return f"{name}/{seed}"
