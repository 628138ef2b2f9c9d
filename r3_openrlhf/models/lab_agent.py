"""A Qwen2 of 0.1M parameters that plays the vault (agents/vault.py) with a bad memory, for learning experiments on agents.

Trained here, in a minute or two, by plain supervised learning on episodes of a player that knows what to do and often
forgets what it has done: in the hall it goes to any of the needed rooms or opens the gate, whatever it has taken. So the
model succeeds in about a fifth of its episodes, and what it has to learn is to look at its memory. Half of the episodes
show the keys at hand.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.agents.trajectory import Episode, Trajectory
from r3_openrlhf.agents.vault import BACK, COLOURS, HALL, OPEN, TAKE, Vault
from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.models import pretraining
from r3_openrlhf.models.pretraining import Example, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

VOCAB_SIZE = 320  # a multiple of 64: 256 bytes, the special tokens, and the words of the vault
ROOMS, KEYS = 4, 2
FORGETS, CARELESS, NOISE = 0.75, 0.2, 0.15
MAX_TURNS, MEMORY_TURNS = 12, 6
NUM_STEPS, BATCH_SIZE, SEED = 900, 64, 0
RECIPE = Recipe(
    vocab_size=VOCAB_SIZE,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    learning_rate=5e-3,
    num_warmup_steps=30,
    seed=SEED,
)


def settings() -> AgentsConfig:
    """How its episodes are played."""
    return AgentsConfig(
        environment="vault", max_turns=MAX_TURNS, memory_turns=MEMORY_TURNS, lists_actions=False, instruction=""
    )


def build(directory: Path) -> None:
    """Train the model and write it with its tokenizer into `directory` (float32, 0.5 MB)."""
    tokenizer = train_tokenizer()
    model = train_model(tokenizer)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def forgetful_action(vault: Vault, rng: random.Random) -> str:
    """What the player does: right, forgetful in the hall, careless in the rooms, or anything at all."""
    if rng.random() < NOISE:
        return rng.choice(vault.valid_actions)
    missing = [colour for colour in vault.needed if colour not in vault.taken]
    if vault.place != HALL:
        return TAKE if vault.place not in vault.taken and rng.random() >= CARELESS else BACK
    if rng.random() < FORGETS:
        return rng.choice([*(f"go {colour}" for colour in vault.needed), OPEN])
    return f"go {missing[0]}" if missing else OPEN


def demonstration(rng: random.Random) -> Trajectory:
    """One episode of the player, in one of the two variants."""
    vault = Vault(rooms=ROOMS, keys=KEYS, shows_keys=rng.random() < 0.5)
    episode = Episode(vault.reset(rng.randrange(2**31)), task_uid="vault", trajectory_uid="0", settings=settings())
    while episode.next_prompt(count=len, max_tokens=10_000) is not None:
        episode.advance(vault.step(episode.act(forgetful_action(vault, rng), truncated=False)))
    return episode.trajectory()


def draw_examples(rng: random.Random) -> list[Example]:
    """BATCH_SIZE turns."""
    found: list[Example] = []
    while len(found) < 2 * BATCH_SIZE:
        found += [(turn.prompt, turn.response) for turn in demonstration(rng).turns]
    return rng.sample(found, BATCH_SIZE)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Over the words of the vault; the fixed beginnings of a prompt's lines are a token each."""
    words = [*COLOURS[:ROOMS], "none", "hall", "go", "take", "key", "back", "open", "gate", "and", "user", "assistant"]
    corpus = [f"{word} {word}\n" for word in words] * 4
    lines = ["Goal: open the gate with", "Before:\n", "Now:", ", keys", " -> "]
    return pretraining.train_tokenizer(corpus, vocab_size=VOCAB_SIZE, lines=lines)


def train_model(tokenizer: PreTrainedTokenizerFast, *, num_steps: int = NUM_STEPS) -> Qwen2ForCausalLM:
    """On one thread: more are slower for a model of this size. torch's number of threads is as before afterwards."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = pretraining.train_model(tokenizer, RECIPE, draw_examples, num_steps=num_steps)
    torch.set_num_threads(threads)
    return model
