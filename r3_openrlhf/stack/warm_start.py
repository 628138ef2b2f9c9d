"""Supervised training on stored successes before step 1 (replay.imported.warm_start).

The run's own actors, optimizer and micro-batches make the updates. OpenRLHF's SFTTrainer (trainer/sft_trainer.py)
loads a model and a strategy of its own; the loss is that of its SFTLoss (models/loss.py:87), over tokens."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import ray
import torch
from openrlhf.trainer.ray.launcher import RayActorGroup

from r3_openrlhf.method.types import Rollout
from r3_openrlhf.stack.batching import effective_ranks, num_fillers
from r3_openrlhf.stack.convert import experience_from_recalled, filler_experience


def warm_start(
    actors: RayActorGroup,
    rows: Sequence[Rollout],
    args: SimpleNamespace,
    *,
    passes: int,
    pad_token_id: int,
    batch_size: int | None = None,
    scale: float = 1.0,
) -> list[dict]:
    """Train the policy on the rows, each after its own prompt.

    batch_size: most rows of an update; None: train.batch_size. scale: the learning rate, in those of
    train.learning_rate.

    Returns the status of each pass."""
    windows = -(-len(rows) // (batch_size or args.train.batch_size))
    nothing: Any = SimpleNamespace(info={}, prompts=[""], labels=[""])
    samples = [
        experience_from_recalled(one, prompt_ids=one.prompt_ids, sibling=nothing)
        for one in rows
    ]
    missing = num_fillers(len(samples), ranks=effective_ranks(args), windows=windows)
    samples += [filler_experience(samples[0], pad_token_id) for _ in range(missing)]
    for one in samples:  # the loss reads the advantages; upstream needs the others
        one.action_log_probs = one.base_action_log_probs = one.rollout_log_probs
        one.advantages = one.returns = torch.ones_like(one.rollout_log_probs)
    random.Random(args.train.seed).shuffle(samples)
    if args.ds.enable_sleep:
        ray.get(actors.async_run_method("reload_states"))
    statuses = []
    for _ in range(passes):
        ray.get(actors.async_run_method_batch(method_name="append", experience=samples))
        passed = actors.async_run_method("fit_supervised", windows=windows, scale=scale)
        statuses.append(ray.get(passed)[0])
    if args.ds.enable_sleep:
        ray.get(actors.async_run_method("offload_states"))
    return statuses
