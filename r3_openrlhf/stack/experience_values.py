"""Read log-prob gaps and critic values from a step's experiences."""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from r3_openrlhf.method.types import Rollout


def rows_of(experiences: list[Experience]) -> Iterator[tuple[Experience, int, int]]:
    """Yield (experience, position inside it, index of the row) for every row."""
    for experience in experiences:
        for position, index in enumerate(experience.index):
            yield experience, position, index


class LogprobGap(NamedTuple):
    """Mean and 99th percentile over tokens of |actor - engine| log-prob, in nats, and the share of
    tokens whose ratio the loss would clip without any update. All are 0 without tokens."""

    mean: float
    p99: float
    outside_clip: float


def sampled_at_least(
    experiences: list[Experience],
    rollouts: Sequence[Rollout | None],
    rows: Collection[int],
    *,
    step: int,
) -> tuple[list[torch.Tensor], int]:
    """Mark the action tokens of these rows that weights of `step`, or later ones, sampled.

    Returns a bool mask [B, A] for each micro-batch, and the number of rows with any such token."""
    masks, count = [], 0
    for experience in experiences:
        mask_BA = experience.action_mask.bool()
        found_BA = torch.zeros_like(mask_BA)
        for position, index in enumerate(experience.index):
            rollout = rollouts[index] if index in rows else None
            if rollout is None:
                continue
            is_new = torch.from_numpy(rollout.policy_steps[rollout.sampled] >= step)
            if int(mask_BA[position].sum()) == len(is_new):  # else nothing of it is trained
                found_BA[position, mask_BA[position]] = is_new
                count += bool(is_new.any())
        masks.append(found_BA)
    return masks, count


def gap_of_masks(
    experiences: list[Experience], masks: list[torch.Tensor], *, clip: Sequence[float]
) -> LogprobGap:
    """Compare actor and engine on the tokens of these masks [B, A]; see `logprob_gap`."""
    gaps = [
        (experience.action_log_probs.float() - experience.rollout_log_probs.float())[mask_BA]
        for experience, mask_BA in zip(experiences, masks, strict=True)
    ]
    return gap_of_tokens(torch.cat(gaps) if gaps else torch.zeros(0), clip=clip)


def logprob_gap(
    experiences: list[Experience], rows: Collection[int], *, clip: Sequence[float]
) -> LogprobGap:
    """Compare actor and engine on the response tokens. The mean shows a bad sync (signed means,
    checksums and rewards do not), the others noise. clip: bounds of a ratio below and above 1."""
    gaps = []
    for experience in experiences:
        positions = [
            position for position, index in enumerate(experience.index) if index in rows
        ]
        mask_BA = experience.action_mask[positions].bool()
        gap_BA = (
            experience.action_log_probs[positions].float()
            - experience.rollout_log_probs[positions].float()
        )
        gaps.append(gap_BA[mask_BA])
    return gap_of_tokens(torch.cat(gaps) if gaps else torch.zeros(0), clip=clip)


def gap_of_tokens(gap_T: torch.Tensor, *, clip: Sequence[float]) -> LogprobGap:
    """Summarize gap_T: float32 [T], one log-prob minus the other, nats."""
    if not len(gap_T):
        return LogprobGap(0.0, 0.0, 0.0)
    low, high = clip
    size_T, ratio_T = gap_T.abs(), gap_T.clamp(-20, 20).exp()
    outside = ((ratio_T < 1 - low) | (ratio_T > 1 + high)).sum().item()
    # torch.quantile takes 16 million values at most
    p99 = size_T.kthvalue(math.ceil(0.99 * len(size_T))).values.item()
    return LogprobGap(size_T.mean(dtype=torch.float64).item(), p99, outside / len(gap_T))


def values_of_responses(
    experiences: list[Experience], rollouts: Sequence[Rollout]
) -> dict[int, np.ndarray]:
    """Index of a rollout -> the critic's values, float32 [T], before each token; 0 of given tokens,
    which are not trained. Rollouts that train nothing are left out."""
    found = {}
    for experience, position, index in rows_of(experiences):
        values = (
            experience.values[position][experience.action_mask[position].bool()].float().numpy()
        )
        if len(values):
            found[index] = np.zeros(rollouts[index].num_tokens, np.float32)
            found[index][rollouts[index].sampled] = values
    return found


def values_of_prefixes(
    critics, rollouts: Sequence[Rollout], lengths: Sequence[int]
) -> list[float]:
    """Today's value of the first `lengths[i]` tokens of response i, from the critic's ranks.

    Each row has one token more: a value is read before a token (models/model.py:307)."""
    rows = [
        torch.from_numpy(
            np.concatenate([one.prompt_ids, one.response_ids[: length + 1]])
        ).long()[None]
        for one, length in zip(rollouts, lengths, strict=True)
    ]
    return [values_A[-1].item() for values_A in _forward(critics, rows)]


def values_of_solutions(critics, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
    """Today's values of stored responses, before each token, from the critic's ranks: float32 [T]."""
    rows = [
        torch.from_numpy(np.concatenate([one.prompt_ids, one.response_ids])).long()[None]
        for one in rollouts
    ]
    passes = zip(_forward(critics, rows), rollouts, strict=True)
    return [found_A[-one.num_tokens :].float().numpy().copy() for found_A, one in passes]


def logprobs_of(actors, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
    """Log-probs of stored responses after their own prompts, from the policy's ranks: float32 [T]."""
    rows = [
        torch.from_numpy(np.concatenate([one.prompt_ids, one.response_ids])).long()[None]
        for one in rollouts
    ]
    passes = zip(_forward(actors, rows), rollouts, strict=True)
    return [found_A[-one.num_tokens :].float().numpy().copy() for found_A, one in passes]


def _forward(group, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return a model's output at the action positions [A] of each row [1, T]. The ranks need equal
    numbers of rows, so the first one is repeated up to a multiple."""
    more = rows + rows[:1] * (
        -len(rows) % (len(group._actor_handlers) // group.duplicate_actors)
    )
    masks = [torch.ones_like(row) for row in more]
    passes = group.async_run_method_batch(
        method_name="forward",
        sequences=more,
        attention_mask=masks,
        action_mask=[mask[:, 1:] for mask in masks],
    )
    found = [row[0] for rank in ray.get(passes)[:: group.duplicate_actors] for row in rank]
    return found[: len(rows)]


EXPLAINED = "r3/critic/explained_variance"


def explained_variance(experiences: list[Experience]) -> dict[str, float]:
    """1 - var(return - value) / var(return) over all action tokens, before the critic's update.
    Empty without a critic, and where all returns are equal."""
    if experiences[0].values is None:
        return {}
    masks = [experience.action_mask.bool() for experience in experiences]
    pairs = zip(experiences, masks, strict=True)
    returns, values = (
        torch.cat(parts).double()
        for parts in zip(*((e.returns[m], e.values[m]) for e, m in pairs), strict=True)
    )
    spread = returns.var(unbiased=False).item()
    if not spread > 0:
        return {}
    return {EXPLAINED: 1 - (returns - values).var(unbiased=False).item() / spread}
