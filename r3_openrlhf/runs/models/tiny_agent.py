"""A Qwen2 of 0.1M parameters that plays the vault (problems/agents/vault.py) badly, for runs that
must end in a minute or two.

Trained here, in seconds, by plain supervised learning on episodes of a player that does what is
right SKILL of the time and anything that the place allows otherwise. So a trajectory succeeds now
and then, most of them end early at a gate that stays shut, and there is something to learn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.problems.agents.trajectory import Episode
from r3_openrlhf.problems.agents.vault import BACK, HALL, OPEN, TAKE, Vault
from r3_openrlhf.runs.models import pretraining
from r3_openrlhf.runs.models.pretraining import BATCH_SIZE, Example, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SKILL = 0.55
ROOMS, KEYS = (2, 3, 4), 1
MAX_TURNS, MEMORY_TURNS = 6, 2
NUM_STEPS = 400
RECIPE = Recipe(vocab_size=384)


def build(directory: Path) -> None:
    """Train the model and write it with its tokenizer into `directory` (bfloat16, 0.3 MB)."""
    pretraining.write(directory, train_tokenizer(), RECIPE, draw_examples, num_steps=NUM_STEPS)


def right_action(vault: Vault) -> str:
    """Return the next action on the shortest way to an open gate."""
    missing = [colour for colour in vault.needed if colour not in vault.taken]
    if vault.place == HALL:
        return f"go {missing[0]}" if missing else OPEN
    return TAKE if vault.place in missing else BACK


def episode_examples(rng: random.Random) -> list[Example]:
    """(user turn, response) of one episode."""
    vault = Vault(rooms=rng.choice(ROOMS), keys=KEYS)
    settings = AgentsConfig(max_turns=MAX_TURNS, memory_turns=MEMORY_TURNS)
    episode = Episode(
        vault.reset(rng.randrange(2**31)),
        task_uid="vault",
        trajectory_uid="0",
        settings=settings,
    )
    found = []
    while (prompt := episode.next_prompt(count=len, max_tokens=10_000)) is not None:
        action = (
            right_action(vault) if rng.random() < SKILL else rng.choice(vault.valid_actions)
        )
        response = f"<action>{action}</action>"
        found.append((prompt, response))
        episode.advance(vault.step(episode.act(response, truncated=False)))
    return found


def draw_examples(rng: random.Random) -> list[Example]:
    """BATCH_SIZE turns."""
    found: list[Example] = []
    while len(found) < BATCH_SIZE:
        found += episode_examples(rng)
    return rng.sample(found, BATCH_SIZE)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Over the words of the vault."""
    rng = random.Random(RECIPE.seed)
    corpus = [
        f"{role}\n{text}"
        for _ in range(100)
        for pair in episode_examples(rng)
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return pretraining.train_tokenizer(corpus, vocab_size=RECIPE.vocab_size)
