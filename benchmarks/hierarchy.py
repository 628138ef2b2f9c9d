"""What the hierarchy of groups costs a step of the paper's size: 16 tasks, 8 trajectories of each, 50 turns of each.

    python benchmarks/hierarchy.py [--depth 4] [--states 30]

Processor time, which a busy machine does not change, of `hierarchy_advantages` over all tasks of a step; the least and the
median of 21 steps. States are drawn from so many; with fewer of them the groups are larger, and each has a mean and a std.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from r3_openrlhf.problems.agents.hierarchy import hierarchy_advantages, step_returns

TASKS, TRAJECTORIES, TURNS, STEPS = 16, 8, 50, 21


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--depth", type=int, default=4)
    arguments.add_argument("--states", type=int, default=30)
    given = arguments.parse_args()
    rng = random.Random(0)
    step = []
    for _ in range(TASKS):
        states = [[f"room {rng.randrange(given.states)}" for _ in range(TURNS)] for _ in range(TRAJECTORIES)]
        returns = [step_returns([rng.random() for _ in range(TURNS)], gamma=0.95) for _ in range(TRAJECTORIES)]
        step.append((states, returns))
    found = []
    for _ in range(STEPS):
        started = time.process_time()
        for states, returns in step:
            hierarchy_advantages(states, returns, depth=given.depth)
        found.append(1000 * (time.process_time() - started))
    print(
        f"{TASKS} x {TRAJECTORIES} x {TURNS} turns, depth {given.depth}, {given.states} states: "
        f"{min(found):.1f} ms at least, {statistics.median(found):.1f} ms in the median of {STEPS}"
    )


if __name__ == "__main__":
    main()
