"""An environment that can be followed by hand. Its process imports nothing else of the tests."""

from r3_openrlhf.problems.agents.environment import Observation, Step


class Stairs:
    """Three steps up from the ground; "up" and "down" are actions, and the top is worth 1. Seed 5 crashes at its reset,
    "jump" crashes."""

    height = 3

    def __init__(self, **options):
        self.place = 0

    def reset(self, seed):
        if seed == 5:
            raise RuntimeError("no stairs here")
        self.place = 0
        return Observation(text=f"step {self.place}", goal="top")

    def step(self, action):
        if action == "jump":
            raise RuntimeError("you fell")
        moved = {"up": 1, "down": -1}.get(action, 0)
        self.place = max(0, self.place + moved)
        done = self.place == self.height
        observation = Observation(text=f"step {self.place}", goal="top")
        return Step(
            observation=observation,
            reward=float(done),
            done=done,
            valid=moved != 0,
            success=done or None,
        )

    def close(self):
        pass
