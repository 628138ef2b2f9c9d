"""The parts that the policies of the lab for agents (agents.py) share, and the policy that is a table. No torch.

The table draws from a row of logits, which is chosen by the place and by what the policy can know of its keys: those that
its memory shows it taking, or those that the observation lists. So nothing stands between an advantage and what is learned
from it: no network, no tokenizer, no optimizer's state.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

import msgspec
import yaml

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.problems.agents.environment import task_uid
from r3_openrlhf.problems.agents.trajectory import Episode, Trajectory
from r3_openrlhf.problems.agents.vault import BACK, HALL, OPEN, TAKE, Vault
from research.agents_estimators import LabAgents

ARMS: dict[str, dict[str, Any]] = {
    "grpo": {"estimator": "grpo"},
    "gigpo": {"estimator": "gigpo"},
    "hgpo_k0": {"depth": 0},
    "hgpo_k1": {"depth": 1},
    "hgpo_k2": {"depth": 2},
    "hgpo_k4": {"depth": 4},
    "hgpo_k2_episode": {"depth": 2, "episode_weight": 1.0},
    "hgpo_k2_replay": {"depth": 2},
}
ROOMS, KEYS = 5, 3
PARTS = ("first", "second", "third")  # of the goal
MAX_TURNS, MEMORY_TURNS = 20, 20
NUM_TASKS = 24  # seeds that come up again and again, so that replay has something to recall
FORGETS, CARELESS, NOISE = 0.85, 0.15, 0.1
EPS_CLIP, DUAL_CLIP = 0.2, 3.0

# place, keys at hand, in parts of the goal; the goal where tasks share nothing
Key = tuple[str, tuple[str, ...], str]
_GOAL = re.compile(r"Goal: open the gate with ([\w ]+)")
_TAKEN = re.compile(rf"^(\w+)[^\n]* -> {TAKE}$", re.MULTILINE)
NOW = re.compile(r"^Now: (\w+)(?:, keys ([\w ]+))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings that all arms of a study share.

    Attributes:
        trajectories: of each task in a step, the G of a group.
        minibatches: updates of a step; after the first one ratios differ from 1.
        rescale: divide the advantages of an update by their root mean square, because the estimators differ in scale.
        forgets: how often the first policy forgets what it holds; 0.85 succeeds in a quarter of its trajectories, 0.5 in a half.
        shared: what is learned in a task holds in all; without it the table has its own rows for each of the NUM_TASKS goals.
        settings: further keys of `agents`.
    """

    trajectories: Annotated[int, msgspec.Meta(ge=2)] = 8
    minibatches: Annotated[int, msgspec.Meta(ge=1)] = 1
    rescale: bool = True
    forgets: Annotated[float, msgspec.Meta(ge=0, le=1)] = FORGETS
    shared: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, settings: Sequence[str]) -> Recipe:
        """The recipe with these "key=value" changes. ConfigError: a word that sets nothing, a value of another type."""
        values: dict[str, Any] = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals:
                raise ConfigError(f"{quoted(setting)} sets nothing; use KEY=VALUE")
            values[key] = yaml.safe_load(value)
        changes = {
            part.name: values.pop(part.name) for part in fields(cls) if part.name in values
        }
        try:
            return msgspec.convert(changes | {"settings": values}, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the recipe cannot be used: {error}") from error

    @property
    def changed(self) -> str:
        """The differences from the defaults, for the name of a file."""
        plain = asdict(Recipe(settings=self.settings))
        changes = {
            key: value for key, value in asdict(self).items() if value != plain[key]
        } | self.settings
        return "".join(f"-{key}_{value}" for key, value in changes.items())


def agents_config(arm: str, settings: dict[str, Any] | None = None) -> LabAgents:
    """The settings of an arm; `settings` wins over it. ConfigError: no such arm or key."""
    if arm not in ARMS:
        raise ConfigError(f"the arm {quoted(arm)} does not exist; known: {', '.join(ARMS)}")
    of_all = {"environment": "vault", "max_turns": MAX_TURNS, "memory_turns": MEMORY_TURNS}
    known = {key.name for key in fields(LabAgents)}
    for key in settings or {}:
        if key not in known:
            raise ConfigError(f"{quoted(key)} is no key of agents; {nearest(key, known)}")
    return LabAgents(**{**of_all, **ARMS[arm], **(settings or {})})


def parts_of(prompt: str) -> dict[str, str]:
    """Colour -> its part in the goal of a prompt. ValueError: no prompt of the vault."""
    goal = _GOAL.search(prompt)
    if goal is None:
        raise ValueError(f"this is no prompt of the vault: {quoted(prompt)}")
    parts = dict(zip(goal[1].split(" and "), PARTS, strict=False))
    others = [colour for colour in Vault(rooms=ROOMS).colours if colour not in parts]
    return parts | {colour: f"other{i}" for i, colour in enumerate(others)}


class TablePolicy:
    """Logits per Key and action."""

    def __init__(self, forgets: float = FORGETS, *, shared: bool = True) -> None:
        self.forgets = forgets
        self.shared = shared
        self.logits: dict[Key, dict[str, float]] = {}

    def read(self, prompt: str) -> tuple[Key, dict[str, str]]:
        """The row for a prompt, and colour -> its part in the goal."""
        parts, now = parts_of(prompt), NOW.search(prompt)
        if now is None:
            raise ValueError(f"this prompt of the vault has no state: {quoted(prompt)}")
        held = now[2].split() if now[2] else _TAKEN.findall(prompt)
        keys = tuple(sorted({parts[colour] for colour in held if colour in parts}))
        return (parts.get(now[1], HALL), keys, "" if self.shared else " ".join(parts)), parts

    def row(self, key: Key) -> dict[str, float]:
        """The logits of each action, by parts of the goal."""
        if key not in self.logits:
            self.logits[key] = {
                action: math.log(probability)
                for action, probability in forgetful_probabilities(key, self.forgets).items()
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
        self, settings: LabAgents, *, seed: int, num: int, shows_keys: bool, rng: random.Random
    ) -> list[Played]:
        """Play `num` episodes of task `seed`, one after the other."""
        return [
            self.play(settings, seed=seed, uid=str(i), shows_keys=shows_keys, rng=rng)
            for i in range(num)
        ]

    def play(
        self, settings: LabAgents, *, seed: int, uid: str, shows_keys: bool, rng: random.Random
    ) -> Played:
        """One episode of task `seed`."""
        world = Vault(rooms=ROOMS, keys=KEYS, shows_keys=shows_keys)
        episode = Episode(
            world.reset(seed),
            task_uid=task_uid("vault", seed),
            trajectory_uid=uid,
            settings=settings,
        )
        choices = []
        while (prompt := episode.next_prompt(count=len, max_tokens=10**6)) is not None:
            key, parts = self.read(prompt)
            probabilities = self.probabilities(key)
            action = rng.choices(list(probabilities), weights=list(probabilities.values()))[0]
            choices.append(Choice(key, action, probabilities[action]))
            text = action
            for colour, part in parts.items():
                text = text.replace(part, colour)
            episode.advance(world.step(episode.act(text, truncated=False)))
        return Played(episode.trajectory(), choices)

    def update(
        self, rows: Sequence[Row], *, learning_rate: float, rescale: bool = True
    ) -> None:
        """One step up the gradient of the clipped objective, mean over turns.

        rescale: advantages are divided by their root mean square over the rows (the estimators differ in scale: GiGPO adds two).
        Fresh turns have ratio 1. An off-policy one has the ratio to the probability when it was sampled: clipped above 1 + EPS_CLIP
        for A > 0, below 1 - EPS_CLIP for A < 0, where the bound DUAL_CLIP holds as well.
        """
        gradient: dict[Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        turns, squares = 0, 0.0
        for played, advantages, off_policy in rows:
            if advantages is None:
                continue
            for choice, advantage in zip(played.choices, advantages, strict=True):
                turns += 1
                squares += advantage**2
                probabilities = self.probabilities(choice.key)
                ratio = probabilities[choice.action] / choice.probability if off_policy else 1.0
                if advantage > 0 and ratio > 1 + EPS_CLIP:
                    continue
                if advantage < 0 and (ratio < 1 - EPS_CLIP or ratio > DUAL_CLIP):
                    continue
                for action, probability in probabilities.items():
                    gradient[choice.key][action] += (
                        ratio * advantage * ((action == choice.action) - probability)
                    )
        scale = math.sqrt(squares / turns) if rescale and squares else 1.0
        for key, parts in gradient.items():
            row = self.row(key)
            for action, value in parts.items():
                row[action] += learning_rate * value / (turns * scale)


def forgetful_probabilities(key: Key, forgets: float = FORGETS) -> dict[str, float]:
    """Probabilities of the player's actions: right, forgetful in the hall (any needed room or the gate, whatever it has), careless in the
    rooms, or anything at all."""
    where, held, _ = key
    if where == HALL:
        forgot = [*(f"go {part}" for part in PARTS), OPEN]
        actions = [*forgot, *(f"go other{i}" for i in range(ROOMS - KEYS))]
        right = next((f"go {part}" for part in PARTS if part not in held), OPEN)
        chosen = {
            action: forgets * (action in forgot) / len(forgot)
            + (1 - forgets) * (action == right)
            for action in actions
        }
    else:
        takes = 0.0 if where in held else 1 - CARELESS
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


# a trajectory, its advantages by turn (None: lost), is it off-policy?
Row = tuple[Played, list[float] | None, bool]
