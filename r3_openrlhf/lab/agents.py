"""The lab for agents: estimators x seeds in the vault (agents/vault.py), with a policy that is a table or a small network.

The policy reads the prompt that its memory gives, as a model would. Colours are named by their part in the goal, so what is
learned in one task holds in all. It begins as a player that knows what to do and often forgets what it has done
(`forgetful_probabilities`).

The table draws from a row of logits, which is chosen by the place and by what the policy can know of its keys: those that
its memory shows it taking, or those that the observation lists. So nothing stands between an advantage and what is learned
from it: no network, no tokenizer, no optimizer's state. The network (agents_network.py) has to find out by itself what in
its memory matters, and what it learns in one place changes what it does in others.
Trajectories, memory and advantages are those of the stack.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from r3_openrlhf.agents.advantages import advantages_of_task, steps_alone
from r3_openrlhf.agents.environment import task_uid
from r3_openrlhf.agents.trajectory import Episode, Trajectory
from r3_openrlhf.agents.vault import BACK, HALL, OPEN, TAKE, Vault
from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.errors import ConfigError

POLICIES = ("table", "network")
VARIANTS = ("history", "state")  # is what is best a matter of the history, or of the current state alone?
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {"estimator": "grpo"},
    "gigpo": {"estimator": "gigpo"},
    "hgpo_k0": {"depth": 0},
    "hgpo_k1": {"depth": 1},
    "hgpo_k2": {"depth": 2},
    "hgpo_k4": {"depth": 4},
    "hgpo_k1_code": {"depth": 1, "reading": "code"},
    "hgpo_k2_code": {"depth": 2, "reading": "code"},
    "hgpo_k4_code": {"depth": 4, "reading": "code"},
    "hgpo_k2_episode": {"depth": 2, "episode_weight": 1.0},
    "hgpo_k2_replay": {"depth": 2},
}
REPLAYS = ("hgpo_k2_replay",)
ROOMS, KEYS = 5, 3
PARTS = ("first", "second", "third")  # of the goal
MAX_TURNS, MEMORY_TURNS = 20, 20
TASKS, TRAJECTORIES = 4, 8  # of a step
NUM_TASKS = 24  # seeds that come up again and again, so that replay has something to recall
FORGETS, CARELESS, NOISE = 0.85, 0.15, 0.1
TOKENS = 40_000  # of a run
LEARNING_RATES = {"table": 5.0, "network": 3e-3}
EPS_CLIP, DUAL_CLIP = 0.2, 3.0
RESAMPLES = 2000
DEEPEST = 4  # level up to which lone steps are counted

Key = tuple[str, tuple[str, ...]]  # place, keys at hand; in parts of the goal
_GOAL = re.compile(r"Goal: open the gate with ([\w ]+)")
_TAKEN = re.compile(rf"^(\w+)[^\n]* -> {TAKE}$", re.MULTILINE)
_NOW = re.compile(r"Now: (\w+)(?:, keys ([\w ]+))?$")


def agents_config(arm: str) -> AgentsConfig:
    """The settings of an arm. ConfigError: no such arm."""
    if arm not in ARMS:
        raise ConfigError(f"the arm {arm!r} does not exist; known: {', '.join(ARMS)}")
    return AgentsConfig(
        environment="vault",
        max_turns=MAX_TURNS,
        memory_turns=MEMORY_TURNS,
        lists_actions=False,
        instruction="",
        **ARMS[arm],
    )


def parts_of(prompt: str) -> dict[str, str]:
    """Colour -> its part in the goal of a prompt. ValueError: no prompt of the vault."""
    goal = _GOAL.search(prompt)
    if goal is None:
        raise ValueError(f"this is no prompt of the vault: {prompt!r}")
    parts = dict(zip(goal[1].split(" and "), PARTS, strict=False))
    others = [colour for colour in Vault(rooms=ROOMS).colours if colour not in parts]
    return parts | {colour: f"other{i}" for i, colour in enumerate(others)}


class TablePolicy:
    """Logits per Key and action."""

    def __init__(self) -> None:
        self.logits: dict[Key, dict[str, float]] = {}

    def read(self, prompt: str) -> tuple[Key, dict[str, str]]:
        """The row for a prompt, and colour -> its part in the goal."""
        parts, now = parts_of(prompt), _NOW.search(prompt)
        if now is None:
            raise ValueError(f"this prompt of the vault has no state: {prompt!r}")
        held = now[2].split() if now[2] else _TAKEN.findall(prompt)
        return (parts.get(now[1], HALL), tuple(sorted({parts[one] for one in held if one in parts}))), parts

    def row(self, key: Key) -> dict[str, float]:
        """The logits of each action, by parts of the goal."""
        if key not in self.logits:
            self.logits[key] = {
                action: math.log(probability) for action, probability in forgetful_probabilities(key).items()
            }
        return self.logits[key]

    def probabilities(self, key: Key) -> dict[str, float]:
        """Softmax of the row."""
        row = self.row(key)
        highest = max(row.values())
        weights = {action: math.exp(logit - highest) for action, logit in row.items()}
        total = sum(weights.values())
        return {action: weight / total for action, weight in weights.items()}

    def play_group(
        self, settings: AgentsConfig, *, seed: int, num: int, shows_keys: bool, rng: random.Random
    ) -> list[Played]:
        """So many episodes of task `seed`, one behind the other."""
        return [play(self, settings, seed=seed, uid=str(i), shows_keys=shows_keys, rng=rng) for i in range(num)]

    def update(self, rows: Sequence[Row], *, learning_rate: float) -> None:
        """See `update`."""
        update(self, rows, learning_rate=learning_rate)


def forgetful_probabilities(key: Key) -> dict[str, float]:
    """What the player does: right, forgetful in the hall (any needed room or the gate, whatever it has), careless in the
    rooms, or anything at all."""
    place, held = key
    if place == HALL:
        forgot = [*(f"go {part}" for part in PARTS), OPEN]
        actions = [*forgot, *(f"go other{i}" for i in range(ROOMS - KEYS))]
        right = next((f"go {part}" for part in PARTS if part not in held), OPEN)
        chosen = {
            action: FORGETS * (action in forgot) / len(forgot) + (1 - FORGETS) * (action == right)
            for action in actions
        }
    else:
        takes = 0.0 if place in held else 1 - CARELESS
        chosen = {TAKE: takes, BACK: 1 - takes}
    return {action: NOISE / len(chosen) + (1 - NOISE) * p for action, p in chosen.items()}


@dataclass(slots=True)
class Choice:
    """One turn as the policy sees it."""

    key: Any  # what the policy reads: the Key of the table, the Reading of the network
    action: str
    probability: float  # when it was sampled


@dataclass(slots=True)
class Played:
    """A trajectory and its choices, turn by turn."""

    trajectory: Trajectory
    choices: list[Choice]


Row = tuple[Played, list[float] | None, bool]  # a trajectory, its advantages by turn (None: lost), was it recalled?


class Policy(Protocol):
    """What plays and learns."""

    def play_group(
        self, settings: AgentsConfig, *, seed: int, num: int, shows_keys: bool, rng: random.Random
    ) -> list[Played]:
        """So many episodes of task `seed`."""

    def update(self, rows: Sequence[Row], *, learning_rate: float) -> None:
        """One update by these rows."""


@dataclass(slots=True)
class AgentRun:
    """What one run found."""

    variant: str
    arm: str
    seed: int
    learning_rate: float
    tokens: list[int] = field(default_factory=list)  # generated before each step
    success: list[float] = field(default_factory=list)  # of the trajectories of each step
    alone: list[float] = field(default_factory=list)  # share of steps in groups of one, by level; mean over steps
    collapsed: float = 0.0  # share of task groups that all failed or all succeeded
    recalled: int = 0  # trajectories
    policy: str = "table"

    @property
    def area(self) -> float:
        """Mean success rate over the generated tokens (trapezoids)."""
        points = list(zip(self.tokens, self.success, strict=True))
        parts = [(b - a) * (p + q) / 2 for (a, p), (b, q) in zip(points, points[1:], strict=False)]
        return sum(parts) / (self.tokens[-1] - self.tokens[0])

    @property
    def final(self) -> float:
        """Mean success rate over the last tenth of the steps."""
        return fmean(self.success[-max(1, len(self.success) // 10) :])


def play(
    policy: TablePolicy, settings: AgentsConfig, *, seed: int, uid: str, shows_keys: bool, rng: random.Random
) -> Played:
    """One episode of task `seed`."""
    world = Vault(rooms=ROOMS, keys=KEYS, shows_keys=shows_keys)
    episode = Episode(world.reset(seed), task_uid=task_uid("vault", seed), trajectory_uid=uid, settings=settings)
    choices = []
    while (prompt := episode.next_prompt(count=len, max_tokens=10**6)) is not None:
        key, parts = policy.read(prompt)
        probabilities = policy.probabilities(key)
        action = rng.choices(list(probabilities), weights=list(probabilities.values()))[0]
        choices.append(Choice(key, action, probabilities[action]))
        said = action
        for colour, part in parts.items():
            said = said.replace(part, colour)
        episode.advance(world.step(episode.act(said, truncated=False)))
    return Played(episode.trajectory(), choices)


def num_tokens(played: Played) -> int:
    """Words of the actions, and an end for each."""
    return sum(len(choice.action.split()) + 1 for choice in played.choices)


def update(policy: TablePolicy, rows: Sequence[Row], *, learning_rate: float) -> None:
    """One step up the gradient of the clipped objective, mean over turns.

    Advantages are divided by their root mean square over the step: the estimators differ in scale (GiGPO adds two), and the
    length of a step is not what is compared.
    Fresh turns have ratio 1. A recalled one has the ratio to the probability when it was sampled: clipped above 1 + EPS_CLIP
    for A > 0, below 1 - EPS_CLIP for A < 0, where the bound DUAL_CLIP holds as well.
    """
    gradient: dict[Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    turns, squares = 0, 0.0
    for played, advantages, recalled in rows:
        if advantages is None:
            continue
        for choice, advantage in zip(played.choices, advantages, strict=True):
            turns += 1
            squares += advantage**2
            probabilities = policy.probabilities(choice.key)
            ratio = probabilities[choice.action] / choice.probability if recalled else 1.0
            if advantage > 0 and ratio > 1 + EPS_CLIP:
                continue
            if advantage < 0 and (ratio < 1 - EPS_CLIP or ratio > DUAL_CLIP):
                continue
            for action, probability in probabilities.items():
                gradient[choice.key][action] += ratio * advantage * ((action == choice.action) - probability)
    scale = math.sqrt(squares / turns) if squares else 1.0
    for key, parts in gradient.items():
        row = policy.row(key)
        for action, value in parts.items():
            row[action] += learning_rate * value / (turns * scale)


def recall(group: list[Played], stored: Sequence[Played], rng: random.Random) -> Played | None:
    """For a task whose trajectories all failed: a whole stored success. None where none is needed or there is none."""
    if any(one.trajectory.success for one in group) or not stored:
        return None
    return rng.choice(list(stored))


def make_policy(kind: str, *, variant: str, seed: int) -> Policy:
    """The policy with which a run begins. ConfigError: no such kind."""
    if kind not in POLICIES:
        raise ConfigError(f"the policy {kind!r} does not exist; known: {', '.join(POLICIES)}")
    if kind == "table":
        return TablePolicy()
    from r3_openrlhf.lab.agents_network import imitator

    return imitator(seed, shows_keys=variant == "state")


def train(
    variant: str,
    arm: str,
    seed: int,
    *,
    policy: str = "table",
    tokens: int = TOKENS,
    learning_rate: float | None = None,
) -> AgentRun:
    """One run until so many tokens are generated. The same arguments give the same run.

    learning_rate: None is that of LEARNING_RATES.
    ConfigError: no such variant, arm or policy.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"the variant {variant!r} does not exist; known: {', '.join(VARIANTS)}")
    settings = agents_config(arm)
    rng = random.Random(f"{variant}/{seed}")
    player = make_policy(policy, variant=variant, seed=seed)
    rate = learning_rate or LEARNING_RATES[policy]
    run = AgentRun(variant, arm, seed, rate, policy=policy)
    successes: dict[str, list[Played]] = defaultdict(list)
    alone, collapsed, groups, generated = [], 0, 0, 0
    while generated < tokens:
        rows: list[Row] = []
        fresh: list[Played] = []
        before = generated
        for task in rng.sample(range(NUM_TASKS), TASKS):
            group = player.play_group(settings, seed=task, num=TRAJECTORIES, shows_keys=variant == "state", rng=rng)
            fresh += group
            num_right = sum(bool(one.trajectory.success) for one in group)
            collapsed += num_right in (0, TRAJECTORIES)
            groups += 1
            uid = group[0].trajectory.task_uid
            found = recall(group, successes[uid], rng) if arm in REPLAYS else None
            members = [*group, found] if found else group
            run.recalled += found is not None
            advantages = advantages_of_task([one.trajectory for one in members], settings)
            rows += [(one, mine, one is found) for one, mine in zip(members, advantages, strict=True)]
            successes[uid] = [*successes[uid], *(one for one in group if one.trajectory.success)][-16:]
        player.update(rows, learning_rate=rate)
        generated += sum(map(num_tokens, fresh))
        run.tokens.append(before)
        run.success.append(fmean(bool(one.trajectory.success) for one in fresh))
        alone.append(steps_alone([one.trajectory for one in fresh], depth=DEEPEST))
    run.alone = [fmean(level) for level in zip(*alone, strict=True)]
    run.collapsed = collapsed / groups
    return run


def run_study(
    directory: Path,
    *,
    variants: Sequence[str],
    arms: Sequence[str],
    seeds: Sequence[int],
    policy: str,
    tokens: int,
    learning_rate: float | None,
) -> list[AgentRun]:
    """Every combination; one that is in `directory` already is read, not run. ConfigError: as `train`."""
    if policy not in POLICIES:
        raise ConfigError(f"the policy {policy!r} does not exist; known: {', '.join(POLICIES)}")
    rate = learning_rate or LEARNING_RATES[policy]
    found = []
    for variant in variants:
        for arm in arms:
            agents_config(arm)
            for seed in seeds:
                name = f"{variant}-{arm}-{seed}-{tokens}-{rate:g}"
                file = directory / f"{name if policy == 'table' else f'{policy}-{name}'}.json"
                if not file.is_file():
                    run = train(variant, arm, seed, policy=policy, tokens=tokens, learning_rate=rate)
                    directory.mkdir(parents=True, exist_ok=True)
                    unfinished = file.with_suffix(".part")
                    unfinished.write_text(json.dumps(asdict(run)) + "\n", encoding="utf-8")
                    unfinished.rename(file)
                found.append(AgentRun(**json.loads(file.read_text(encoding="utf-8"))))
    return found


def by_arm(runs: Sequence[AgentRun]) -> Mapping[tuple[str, str], list[AgentRun]]:
    """(variant, arm) -> its runs by seed."""
    found: dict[tuple[str, str], list[AgentRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        found[run.variant, run.arm].append(run)
    return found


def interval(values: Sequence[float]) -> str:
    """Mean and its 95% percentile bootstrap interval over runs, as text."""
    array = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.percentile(array[draws].mean(axis=1), [2.5, 97.5])
    return f"{array.mean():.3f} [{low:.3f}, {high:.3f}]"


def table(runs: Sequence[AgentRun], *, against: Sequence[str] = ("gigpo", "hgpo_k0")) -> str:
    """One line per variant and arm, in Markdown. Differences are between runs of the same seed."""
    groups = by_arm(runs)
    differences = " | ".join(f"area - {other}" for other in against)
    lines = [
        f"| variant | arm | seeds | area | {differences} | first step | last tenth | alone at k = 0 ... {DEEPEST} | collapsed "
        "| recalled |",
        f"|{'---|' * (8 + len(against))}",
    ]
    for (variant, arm), mine in groups.items():
        cells = [variant, arm, str(len(mine)), interval([run.area for run in mine])]
        for other in against:
            theirs = {run.seed: run.area for run in groups.get((variant, other), [])}
            found = [run.area - theirs[run.seed] for run in mine if run.seed in theirs]
            cells.append("" if arm == other or not found else interval(found))
        cells += [
            f"{fmean(run.success[0] for run in mine):.2f}",
            interval([run.final for run in mine]),
            " ".join(f"{fmean(run.alone[k] for run in mine):.2f}" for k in range(DEEPEST + 1)),
            f"{fmean(run.collapsed for run in mine):.2f}",
            f"{fmean(run.recalled for run in mine):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
