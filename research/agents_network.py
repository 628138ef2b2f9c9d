"""A policy for the lab for agents (agents.py) that is a recurrent network: it reads the turns that its prompt shows.

A turn is a place, the keys that the observation lists and what was done, by parts of the goal. A GRU goes over the turns
before; what it holds then and the state now give the logits of the actions that the place allows. It is told neither which
keys it has taken nor that they matter, and shares what it learns between states. It begins as an imitation of the forgetful
player, learned from that player's own episodes in other tasks.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from r3_openrlhf.method.errors import quoted
from r3_openrlhf.problems.agents.environment import task_uid
from r3_openrlhf.problems.agents.trajectory import Episode
from r3_openrlhf.problems.agents.vault import BACK, HALL, OPEN, TAKE, Vault
from research.agents_estimators import LabAgents
from research.agents_table import (
    DUAL_CLIP,
    EPS_CLIP,
    FORGETS,
    KEYS,
    NOW,
    NUM_TASKS,
    PARTS,
    ROOMS,
    Choice,
    Played,
    Row,
    TablePolicy,
    agents_config,
    forgetful_probabilities,
    parts_of,
)

ROOM_PARTS = (*PARTS, *(f"other{i}" for i in range(ROOMS - KEYS)))
PLACES = (HALL, *ROOM_PARTS)
ACTIONS = (*(f"go {part}" for part in ROOM_PARTS), OPEN, TAKE, BACK)
NUM_FEATURES = len(PLACES) + len(ROOM_PARTS) + len(ACTIONS)
HIDDEN = 64
MAX_GRADIENT_NORM = 1.0
IMITATION_STEPS, IMITATION_EPISODES, IMITATION_RATE = 300, 32, 3e-3

_TURN = re.compile(r"^(\w+)(?:, keys ([\w ]+))? -> ([\w ]+?)$", re.MULTILINE)


class Turn(NamedTuple):
    """Place, keys that are listed there, and action (None: it is still to come); by parts of the goal."""

    where: str
    keys: tuple[str, ...]
    action: str | None


# the turns that a prompt shows, the oldest first; the last one is now
Reading = tuple[Turn, ...]


def read(prompt: str) -> tuple[Reading, dict[str, str]]:
    """Read what a prompt shows, and colour -> its part in the goal. ValueError: no prompt of the vault."""
    parts, now = parts_of(prompt), NOW.search(prompt)
    if now is None:
        raise ValueError(f"this prompt of the vault has no state: {quoted(prompt)}")

    def turn(where: str, keys: str | None, action: str | None) -> Turn:
        held = tuple(parts[key] for key in (keys or "").split() if key in parts)
        action_by_part = (
            None
            if action is None
            else " ".join(parts.get(word, word) for word in action.split())
        )
        return Turn(parts.get(where, where), held, action_by_part)

    return (
        *(turn(*turn_texts) for turn_texts in _TURN.findall(prompt)),
        turn(now[1], now[2], None),
    ), parts


@lru_cache(maxsize=4096)
def features(turn: Turn) -> Tensor:
    """(NUM_FEATURES,): place, keys and action, each as ones among zeros."""
    ones = torch.zeros(NUM_FEATURES)
    ones[PLACES.index(turn.where)] = 1
    for key in turn.keys:
        ones[len(PLACES) + ROOM_PARTS.index(key)] = 1
    if turn.action is not None:
        ones[len(PLACES) + len(ROOM_PARTS) + ACTIONS.index(turn.action)] = 1
    return ones


def allowed(where: str) -> list[bool]:
    """Say of each action whether it is possible there."""
    return [(action in (TAKE, BACK)) != (where == HALL) for action in ACTIONS]


class NetworkPolicy(nn.Module):
    """About 35,000 parameters. The same seed gives the same network."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Linear(NUM_FEATURES, HIDDEN)
            self.memory = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
            self.head = nn.Sequential(
                nn.Linear(2 * HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, len(ACTIONS))
            )
        self._optimizer: torch.optim.Optimizer | None = None

    def forward(self, readings: Sequence[Reading]) -> Tensor:
        """Log-probs (rows, actions); -inf where the place does not allow the action."""
        lengths = [len(reading) for reading in readings]
        turns = torch.zeros(len(readings), max(lengths), NUM_FEATURES)
        for row, reading in zip(turns, readings, strict=True):
            torch.stack([features(turn) for turn in reading], out=row[: len(reading)])
        embedded = torch.tanh(self.embed(turns))
        packed = pack_padded_sequence(
            embedded, torch.tensor(lengths), batch_first=True, enforce_sorted=False
        )
        _, held = self.memory(packed)
        now = embedded[torch.arange(len(readings)), torch.tensor(lengths) - 1]
        logits = self.head(torch.cat([held[0], now], dim=1))
        possible = torch.tensor([allowed(reading[-1].where) for reading in readings])
        return logits.masked_fill(~possible, -torch.inf).log_softmax(dim=1)

    def play_group(
        self, settings: LabAgents, *, seed: int, num: int, shows_keys: bool, rng: random.Random
    ) -> list[Played]:
        """Play `num` episodes of task `seed`, side by side."""
        worlds = [Vault(rooms=ROOMS, keys=KEYS, shows_keys=shows_keys) for _ in range(num)]
        uid = task_uid("vault", seed)
        episodes = [
            Episode(world.reset(seed), task_uid=uid, trajectory_uid=str(i), settings=settings)
            for i, world in enumerate(worlds)
        ]
        choices: list[list[Choice]] = [[] for _ in worlds]
        while prompts := {
            i: prompt
            for i, episode in enumerate(episodes)
            if (prompt := episode.next_prompt(count=len, max_tokens=10**6)) is not None
        }:
            read_prompts = [read(prompt) for prompt in prompts.values()]
            with torch.no_grad():
                probabilities = self([reading for reading, _ in read_prompts]).exp().tolist()
            for i, (reading, parts), row in zip(
                prompts, read_prompts, probabilities, strict=True
            ):
                action = rng.choices(range(len(ACTIONS)), weights=row)[0]
                choices[i].append(Choice(reading, ACTIONS[action], row[action]))
                colours = {part: colour for colour, part in parts.items()}
                text = " ".join(colours.get(word, word) for word in ACTIONS[action].split())
                episodes[i].advance(worlds[i].step(episodes[i].act(text, truncated=False)))
        return [
            Played(episode.trajectory(), made)
            for episode, made in zip(episodes, choices, strict=True)
        ]

    def update(
        self, rows: Sequence[Row], *, learning_rate: float, rescale: bool = True
    ) -> None:
        """One step of Adam on the clipped objective, mean over turns; what is clipped and scaled is as in TablePolicy.update."""
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(self.parameters(), lr=learning_rate)
        turns = [
            (choice, advantage, off_policy)
            for played, advantages, off_policy in rows
            if advantages is not None
            for choice, advantage in zip(played.choices, advantages, strict=True)
        ]
        advantages = torch.tensor([advantage for _, advantage, _ in turns])
        scale = advantages.square().mean().sqrt() if rescale else torch.tensor(1.0)
        if not advantages.any():
            return  # nothing was said, or of nothing
        logprobs = self([choice.key for choice, _, _ in turns])
        chosen = logprobs[
            torch.arange(len(turns)),
            torch.tensor([ACTIONS.index(choice.action) for choice, _, _ in turns]),
        ]
        sampled = torch.tensor([choice.probability for choice, _, _ in turns]).log()
        old = torch.where(
            torch.tensor([off_policy for _, _, off_policy in turns]), sampled, chosen.detach()
        )
        loss = -clipped_objective((chosen - old).exp(), advantages / scale).mean()
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()


def clipped_objective(ratio: Tensor, advantages: Tensor) -> Tensor:
    """PPO's, with the dual clip: element by element, without the mean."""
    gain = torch.minimum(
        ratio * advantages, ratio.clamp(1 - EPS_CLIP, 1 + EPS_CLIP) * advantages
    )
    return torch.where(advantages < 0, gain.maximum(DUAL_CLIP * advantages), gain)


def imitator(seed: int, *, shows_keys: bool, forgets: float = FORGETS) -> NetworkPolicy:
    """A network that has learned to play like the forgetful player; a copy, with an optimizer of its own."""
    return copy.deepcopy(_imitator(seed, shows_keys, forgets))


@lru_cache(maxsize=64)  # the arms of a study begin alike
def _imitator(seed: int, shows_keys: bool, forgets: float) -> NetworkPolicy:
    """Cross-entropy to the player's probabilities at each turn of its own episodes, in tasks that no run trains on."""
    network, player, settings = NetworkPolicy(seed), TablePolicy(forgets), agents_config("grpo")
    rng = random.Random(f"imitation/{seed}")
    optimizer = torch.optim.Adam(network.parameters(), lr=IMITATION_RATE)
    for _ in range(IMITATION_STEPS):
        readings, wanted = [], []
        for _ in range(IMITATION_EPISODES):
            task = NUM_TASKS + rng.randrange(10**6)
            (played,) = player.play_group(
                settings, seed=task, num=1, shows_keys=shows_keys, rng=rng
            )
            for turn, choice in zip(played.trajectory.turns, played.choices, strict=True):
                readings.append(read(turn.prompt)[0])
                right = forgetful_probabilities(choice.key, forgets)
                wanted.append([right.get(action, 0.0) for action in ACTIONS])
        logprobs = network(readings)
        target = torch.tensor(wanted)
        loss = -(target * logprobs.masked_fill(target == 0, 0.0)).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network
