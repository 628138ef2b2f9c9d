"""An environment of one's own: guess a number. Played here by halving; on the stack by agents.environment=own_environment:Guess.

python examples/own_environment.py
"""

import random
import re
import sys

from r3_openrlhf.problems.agents.environment import Observation, Step, environment_pool


class Guess:
    """A number from 1 to `highest`; every guess is answered with higher or lower."""

    def __init__(self, *, highest: int = 16) -> None:
        self.highest = highest

    def reset(self, seed: int) -> Observation:
        self.number = random.Random(f"guess/{seed}").randint(1, self.highest)
        self.low, self.high = 1, self.highest
        return self.observation()

    def step(self, action: str) -> Step:
        if not re.fullmatch(r"\d{1,6}", action):
            return Step(observation=self.observation(), reward=0.0, done=False, valid=False)
        guess = int(action)
        if guess == self.number:
            return Step(observation=self.observation(), reward=1.0, done=True, success=True)
        if guess < self.number:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        return Step(observation=self.observation(), reward=0.0, done=False)

    def close(self) -> None:
        pass

    def observation(self) -> Observation:
        return Observation(text=f"between {self.low} and {self.high}", goal="guess the number")


if __name__ == "__main__":
    # in a process of its own
    with environment_pool("own_environment:Guess", {"highest": 100}, timeout_s=60) as pool:
        world = pool.session()
        step = world.submit(7).result()  # a seed begins a task
        while not step.done:
            low, high = map(int, re.findall(r"\d+", step.observation.text))
            print(step.observation.text, "->", (low + high) // 2)
            step = world.submit(str((low + high) // 2)).result()
        print("success:", step.success)
    sys.exit(not step.success)
