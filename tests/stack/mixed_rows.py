"""Rows of uneven length for tests of the update: token ids, action mask and one advantage per row."""

import random

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from r3_openrlhf.method.core.distill import Target

VOCAB = 64


def mixed_rows(count: int, *, seed: int) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        prompt, response = draw.randint(2, 6), draw.randint(1, 20)
        rows.append(
            {
                "tokens": [draw.randint(1, VOCAB - 1) for _ in range(prompt + response)],
                "prompt": prompt,
                "advantage": draw.uniform(-2, 2),
            }
        )
    return rows


def log_ratios(count: int) -> list[float]:
    """How much likelier each row's tokens are now than when they were sampled; 0 for a fresh row. Far from every bound."""
    return [(0.0, 2.0, -1.0)[row % 3] for row in range(count)]


def target_of(row: dict, *, coef: float, top_k: int = 5) -> Target:
    """A made-up teacher of the row's response: some tokens at each place, which need not be the likeliest."""
    draw = np.random.default_rng(row["tokens"])
    size = len(row["tokens"]) - row["prompt"]
    ids = np.stack([draw.permutation(VOCAB)[:top_k] for _ in range(size)]).astype(np.int32)
    shares = draw.dirichlet(np.ones(top_k + 1), size)[:, :top_k]
    weights = coef * draw.uniform(0.5, 1.5, size)
    return Target(ids, np.log(shares).astype(np.float32), weights.astype(np.float32))


def experience_of(row: dict) -> Experience:
    length = len(row["tokens"])
    mask = torch.zeros(1, length - 1, dtype=torch.long)
    mask[0, row["prompt"] - 1 :] = 1
    return Experience(
        sequences=torch.tensor([row["tokens"]]),
        attention_mask=torch.ones(1, length, dtype=torch.long),
        action_mask=mask,
        rollout_log_probs=torch.zeros(1, length - 1),
        prompts=[""],
        labels=[""],
        images=[None],
        mm_train_inputs=[None],
        rewards=torch.zeros(1),
        scores=torch.zeros(1),
        response_length=torch.tensor([length - row["prompt"]]),
        truncated=torch.tensor([False]),
        total_length=torch.tensor([float(length)]),
        info={"reward": torch.tensor([row["advantage"]])},
    )


def save_model(path):
    """A model of a few thousand parameters, far from uniform, in that directory; its name."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return str(path)
