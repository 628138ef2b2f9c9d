"""The policy update on the rows of a step: OpenRLHF's clipped loss, summed over micro-batches, in plain torch.

R rows, A action positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

ADAM_BETAS, ADAM_EPS = (0.9, 0.95), 1e-8  # OpenRLHF's defaults (cli/train_ppo_ray.py, --actor.adam.*)


@dataclass(slots=True, kw_only=True)
class TrainedRow:
    """A response behind the prompt that it is trained with."""

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    advantage: float
    old_logprobs: np.ndarray | None = None  # None: the current policy's own, so that the ratio is 1


class Gradient(NamedTuple):
    """What accumulate_gradient found."""

    loss: float
    ratio_max: float  # the largest ratio of a token that has stored log-probs and an advantage; 0 without any
    # float32, of each row's response tokens under the policy now, row by row as given; None: the row has no advantage
    logprobs: list[np.ndarray | None]


def make_optimizer(model, *, learning_rate: float) -> torch.optim.Optimizer:
    """Adam as OpenRLHF sets it up (ADAM_BETAS, ADAM_EPS), without weight decay."""
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=0.0)


def accumulate_gradient(
    model,
    rows: Sequence[TrainedRow],
    *,
    temperature: float,
    eps_clip_low: float,
    eps_clip_high: float,
    micro_batch_size: int,
    dual_clip: float | None = None,
) -> Gradient:
    """Add the gradient of the token-mean loss to the parameters' .grad.

        loss = - sum_r sum_t g_rt / (number of response tokens)
        g    = min(ratio A, clip(ratio, 1 - low, 1 + high) A), and where A < 0: max(g, dual_clip A)

    runs/models/loss.py of OpenRLHF, PolicyLoss with token_level_loss; dual clip: arXiv 1912.09729. A row whose advantage is 0 has
    no gradient and is not run through the model; its tokens count. ValueError: no rows.
    """
    if not rows:
        raise ValueError("an update needs rows")
    num_tokens = sum(len(row.response_ids) for row in rows)
    with_gradient = (i for i, row in enumerate(rows) if row.advantage != 0)
    by_length = sorted(with_gradient, key=lambda i: len(rows[i].prompt_ids) + len(rows[i].response_ids))
    if not by_length:  # an optimizer with momentum goes on, as it does after a gradient of 0
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    total = largest = 0.0
    found: dict[int, np.ndarray] = {}
    for start in range(0, len(by_length), micro_batch_size):
        places = by_length[start : start + micro_batch_size]
        part = [rows[i] for i in places]
        loss, ratio_max, logp_N = _loss_sum(model, part, temperature, eps_clip_low, eps_clip_high, dual_clip)
        loss = loss / num_tokens
        loss.backward()
        total, largest = total + loss.item(), max(largest, ratio_max)
        ends = np.cumsum([len(row.response_ids) for row in part])[:-1]
        found.update(zip(places, np.split(logp_N.numpy(), ends), strict=True))
    return Gradient(loss=total, ratio_max=largest, logprobs=[found.get(i) for i in range(len(rows))])


def _loss_sum(model, rows, temperature, eps_clip_low, eps_clip_high, dual_clip):
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    ids_RT = torch.zeros(len(rows), longest, dtype=torch.long)
    is_action_RA = torch.zeros(len(rows), longest - 1, dtype=torch.bool)
    old_RA = torch.full((len(rows), longest - 1), math.nan)
    for i, row in enumerate(rows):  # padded on the right: a causal model never looks there
        end, start = len(row.prompt_ids) + len(row.response_ids), len(row.prompt_ids)
        ids_RT[i, :end] = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids]).astype(np.int64))
        is_action_RA[i, start - 1 : end - 1] = True
        if row.old_logprobs is not None:
            old_RA[i, start - 1 : end - 1] = torch.from_numpy(row.old_logprobs.astype(np.float32))
    hidden_NH = model.model(ids_RT[:, :-1]).last_hidden_state[is_action_RA]
    logp_NV = (model.lm_head(hidden_NH).float() / temperature).log_softmax(-1)
    logp_N = logp_NV.gather(1, ids_RT[:, 1:][is_action_RA][:, None])[:, 0]
    old_N = old_RA[is_action_RA]
    stored_N = ~old_N.isnan()
    old_N = torch.where(stored_N, old_N, logp_N.detach())
    advantage_N = torch.tensor([row.advantage for row in rows])[:, None].expand_as(is_action_RA)[is_action_RA]
    ratio_N = (logp_N - old_N).clamp(-20, 20).exp()
    clipped_N = ratio_N.clamp(1 - eps_clip_low, 1 + eps_clip_high)
    gain_N = torch.min(ratio_N * advantage_N, clipped_N * advantage_N)
    if dual_clip is not None:
        gain_N = torch.where(advantage_N < 0, torch.max(gain_N, dual_clip * advantage_N), gain_N)
    ratio_max = ratio_N[stored_N].max().item() if stored_N.any() else 0.0
    return -gain_N.sum(), ratio_max, logp_N.detach()


def step(model, optimizer: torch.optim.Optimizer, *, max_grad_norm: float) -> float:
    """Clip, update, clear; returns the gradient's norm before clipping."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
