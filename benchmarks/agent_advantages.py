"""How far the advantages of each estimator are from the true ones, in the vault, where these can be computed.

    python benchmarks/agent_advantages.py [--tasks 400] [--trained 12]

The policy is the table of study/lab/agents_table.py: as it begins, and after some steps of GiGPO. Its true values follow by going back
from the turn limit over every state (turn, place, keys). Of each estimator, over the turns of so many tasks with 8
trajectories each:

    correlation    of its advantages with the true ones, A* = r + gamma V' - V
    with V         of its advantages with V, the value of the turn's state before the action; 0 for the true ones. Above 0 it
                   pays a turn for where it was, not for what it did
    cosine         between the policy gradient of one step (4 tasks) and the true one over all tasks; mean over steps
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from dataclasses import replace
from functools import cache
from statistics import fmean

import numpy as np

from r3_openrlhf.problems.agents.advantages import advantages_of_task
from r3_openrlhf.problems.agents.vault import BACK, HALL, OPEN, TAKE
from r3_openrlhf.study.lab.agents import REPLAYS, TASKS, TRAJECTORIES, VARIANTS
from r3_openrlhf.study.lab.agents_table import (
    ARMS,
    KEYS,
    MAX_TURNS,
    PARTS,
    ROOMS,
    Key,
    Played,
    TablePolicy,
    agents_config,
    play,
    update,
)

ESTIMATORS = {arm: agents_config(arm) for arm in ARMS if arm not in REPLAYS} | {
    "hgpo_k8": replace(agents_config("hgpo_k2"), depth=8),
    "hgpo_k0_mean": replace(agents_config("hgpo_k0"), std_norm=False),
    "hgpo_k2_mean": replace(agents_config("hgpo_k2"), std_norm=False),
}


class TrueValues:
    """V and A* of a policy, by dynamic programming over (turn, place, keys)."""

    def __init__(self, policy: TablePolicy, *, gamma: float) -> None:
        self.policy, self.gamma = policy, gamma
        self.value = cache(self.value)

    def value(self, turn: int, key: Key) -> float:
        """Expected discounted reward from here on."""
        if turn == MAX_TURNS:
            return 0.0
        return sum(p * self.after(turn, key, action) for action, p in self.policy.probabilities(key).items())

    def after(self, turn: int, key: Key, action: str) -> float:
        """The same, once this action is chosen."""
        place, held = key
        if action == OPEN:
            return float(set(PARTS) <= set(held))
        if action == TAKE:
            following = (place, tuple(sorted({*held, place})))
        else:
            following = (HALL if action == BACK else action.removeprefix("go "), held)
        return self.gamma * self.value(turn + 1, following)

    def advantages(self, played: Played) -> list[float]:
        """A* of each turn."""
        return [
            self.after(t, choice.key, choice.action) - self.value(t, choice.key)
            for t, choice in enumerate(played.choices)
        ]

    def values(self, played: Played) -> list[float]:
        """V of each turn."""
        return [self.value(t, choice.key) for t, choice in enumerate(played.choices)]


def gradient(policy: TablePolicy, rows: list[tuple[Played, list[float]]]) -> dict[tuple[Key, str], float]:
    """The policy gradient with these advantages."""
    found: dict[tuple[Key, str], float] = defaultdict(float)
    for played, advantages in rows:
        for choice, advantage in zip(played.choices, advantages, strict=True):
            for action, probability in policy.probabilities(choice.key).items():
                found[choice.key, action] += advantage * ((action == choice.action) - probability)
    return found


def cosine(one: dict, other: dict) -> float:
    dot = sum(value * other.get(place, 0.0) for place, value in one.items())
    norms = [sum(value**2 for value in each.values()) ** 0.5 for each in (one, other)]
    return dot / (norms[0] * norms[1]) if all(norms) else 0.0


def trained_policy(steps: int) -> TablePolicy:
    """After so many steps of GiGPO where the keys are shown."""
    policy, settings, rng = TablePolicy(), agents_config("gigpo"), random.Random("trained")
    for _ in range(steps):
        rows = []
        for task in rng.sample(range(10_000), TASKS):
            group = [
                play(policy, settings, seed=task, uid=str(i), shows_keys=True, rng=rng) for i in range(TRAJECTORIES)
            ]
            found = advantages_of_task([one.trajectory for one in group], settings)
            rows += [(one, mine, False) for one, mine in zip(group, found, strict=True)]
        update(policy, rows, learning_rate=5.0)
    return policy


def report(policy: TablePolicy, *, num_tasks: int, label: str) -> None:
    for variant in VARIANTS:
        rng = random.Random(label)  # the same trajectories in both variants: only what is called a state differs
        groups = [
            [
                play(policy, agents_config("grpo"), seed=task, uid=str(i), shows_keys=variant == "state", rng=rng)
                for i in range(TRAJECTORIES)
            ]
            for task in range(num_tasks)
        ]
        truth = TrueValues(policy, gamma=agents_config("hgpo_k2").gamma)
        right = [[truth.advantages(one) for one in group] for group in groups]
        values = np.concatenate([truth.values(one) for group in groups for one in group])
        true = np.concatenate([mine for group in right for mine in group])
        whole = gradient(
            policy, [pair for group, mine in zip(groups, right, strict=True) for pair in zip(group, mine, strict=True)]
        )
        success = fmean(bool(one.trajectory.success) for group in groups for one in group)
        for arm in ["truth", *ESTIMATORS]:
            found = (
                right
                if arm == "truth"
                else [advantages_of_task([one.trajectory for one in group], ESTIMATORS[arm]) for group in groups]
            )
            flat = np.concatenate([mine for group in found for mine in group])
            pairs = [list(zip(group, mine, strict=True)) for group, mine in zip(groups, found, strict=True)]
            steps = [
                gradient(policy, [pair for group in step for pair in group])
                for step in (pairs[i : i + TASKS] for i in range(0, len(pairs), TASKS))
            ]
            print(
                f"| {label} ({success:.2f}) | {variant} | {arm} | {np.corrcoef(flat, true)[0, 1]:.3f} | "
                f"{np.corrcoef(flat, values)[0, 1]:+.3f} | {fmean(cosine(step, whole) for step in steps):.3f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--trained", type=int, default=12, help="steps of GiGPO before the second look")
    arguments = parser.parse_args()
    print(f"{ROOMS} rooms, {KEYS} keys, {arguments.tasks} tasks x {TRAJECTORIES} trajectories\n")
    print(
        "| policy (success) | what is a state | estimator | correlation | with V | cosine |\n|---|---|---|---|---|---|"
    )
    report(TablePolicy(), num_tasks=arguments.tasks, label="start")
    report(trained_policy(arguments.trained), num_tasks=arguments.tasks, label=f"{arguments.trained} steps")


if __name__ == "__main__":
    main()
