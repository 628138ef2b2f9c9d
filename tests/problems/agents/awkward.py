"""An environment whose actions are the ways in which an environment can fail."""

import time
from pathlib import Path

from r3_openrlhf.problems.agents.environment import Observation, Step
from tests.machine.processes.awkward import fail


class Awkward:
    """Most actions are disasters. `report`: a file that the action of this name makes."""

    def __init__(self, *, report: str = "", broken: bool = False) -> None:
        self.report = report
        self.broken = broken
        self.seed = -1

    def reset(self, seed: int) -> Observation:
        if self.broken:
            raise RuntimeError("no such level")
        self.seed = seed
        return Observation(text=f"task {seed}")

    def step(self, action: str) -> Step:
        fail(action)
        if action == "novel":
            return self._step("z" * 10_000_000)
        if action == "report":
            Path(self.report).touch()
        if action == "work":  # half a second of the processor
            end = time.process_time() + 0.5
            while time.process_time() < end:
                pass
        return self._step(f"{action} in task {self.seed}")

    def _step(self, text: str) -> Step:
        return Step(observation=Observation(text=text), reward=1.0, done=False)

    def close(self) -> None:
        pass
