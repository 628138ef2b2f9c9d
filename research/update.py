"""The policy update on the rows of a step: OpenRLHF's clipped loss, summed over micro-batches, in plain torch.

P packs of rows behind one prompt, L tokens of a pack, N response tokens, V vocabulary.
"""

from __future__ import annotations

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
    """The results of accumulate_gradient."""

    loss: float
    ratio_max: float  # the largest ratio of a token that has stored log-probs and an advantage; 0 without any
    # float32, of each row's response tokens under the policy now, row by row as given; None: the row has no advantage
    logprobs: list[np.ndarray | None]


def make_optimizer(model, *, learning_rate: float) -> torch.optim.Optimizer:
    """Adam as OpenRLHF sets it up (ADAM_BETAS, ADAM_EPS), without weight decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=learning_rate, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=0.0)


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

    models/loss.py of OpenRLHF, PolicyLoss with token_level_loss; dual clip: arXiv 1912.09729. A row whose advantage is 0 has
    no gradient and is not run through the model; its tokens count. ValueError: no rows.
    """
    if not rows:
        raise ValueError("an update needs rows")
    num_tokens = sum(len(row.response_ids) for row in rows)
    # rows that are alike in everything: one goes through the model, with all their weight
    equal: dict[tuple, list[int]] = {}
    for i, row in enumerate(rows):
        if row.advantage != 0:
            arrays = (row.prompt_ids, row.response_ids, row.old_logprobs)
            content = [None if array is None else array.tobytes() for array in arrays]
            equal.setdefault((row.advantage, *content), []).append(i)
    copies = {places[0]: places for places in equal.values()}
    packs: dict[bytes, list[int]] = {}  # rows behind one prompt, which goes through the model once
    for i in copies:
        packs.setdefault(rows[i].prompt_ids.astype(np.int64).tobytes(), []).append(i)
    by_length = sorted(packs.values(), key=lambda pack: _length([rows[i] for i in pack]))
    if not by_length:  # an optimizer with momentum goes on, as it does after a gradient of 0
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    total = largest = 0.0
    logprobs_of_row: dict[int, np.ndarray] = {}
    while by_length:
        batch = [by_length.pop(0)]
        while by_length and sum(map(len, batch)) + len(by_length[0]) <= micro_batch_size:
            batch.append(by_length.pop(0))
        loss, ratio_max, logp_N = _loss_sum(
            model,
            [[(rows[i], len(copies[i])) for i in pack] for pack in batch],
            temperature,
            eps_clip_low,
            eps_clip_high,
            dual_clip,
        )
        loss = loss / num_tokens
        loss.backward()
        total, largest = total + loss.item(), max(largest, ratio_max)
        places = [i for pack in batch for i in pack]
        ends = np.cumsum([len(rows[i].response_ids) for i in places])[:-1]
        for i, logprobs in zip(places, np.split(logp_N.numpy(), ends), strict=True):
            logprobs_of_row.update(dict.fromkeys(copies[i], logprobs))
    return Gradient(loss=total, ratio_max=largest, logprobs=[logprobs_of_row.get(i) for i in range(len(rows))])


def _length(pack: Sequence[TrainedRow]) -> int:
    return len(pack[0].prompt_ids) + sum(len(row.response_ids) for row in pack)


def _loss_sum(model, packs, temperature, eps_clip_low, eps_clip_high, dual_clip):
    """P packs of (row, how often it counts), each its prompt and then its responses, L tokens. A response sees the prompt and
    itself."""
    longest = max(_length([row for row, _ in pack]) for pack in packs)
    ids_PL = torch.zeros(len(packs), longest, dtype=torch.long)
    position_PL = torch.zeros_like(ids_PL)
    response_PL = torch.full_like(ids_PL, -1)  # 0: the prompt; 1, 2, ...: a response; -1: padding
    predicts, old, advantages = [], [], []
    for p, pack in enumerate(packs):
        prompt_ids = pack[0][0].prompt_ids
        start = len(prompt_ids)
        ids_PL[p, :start] = torch.from_numpy(prompt_ids.astype(np.int64))
        position_PL[p, :start] = torch.arange(start)
        response_PL[p, :start] = 0
        end = start
        for number, (row, count) in enumerate(pack, start=1):
            begin, end = end, end + len(row.response_ids)
            ids_PL[p, begin:end] = torch.from_numpy(row.response_ids.astype(np.int64))
            position_PL[p, begin:end] = torch.arange(start, start + end - begin)
            response_PL[p, begin:end] = number
            # the first token is predicted from the prompt's last place
            predicts += [(p, start - 1, begin)] + [(p, position - 1, position) for position in range(begin + 1, end)]
            stored = row.old_logprobs
            old.append(np.full(end - begin, np.nan) if stored is None else stored)
            advantages.append(np.full(end - begin, count * row.advantage))  # the loss is proportional to it
    visible_PLL = (response_PL[:, None, :] == 0) | (response_PL[:, None, :] == response_PL[:, :, None])
    visible_PLL &= torch.ones(longest, longest, dtype=torch.bool).tril()
    mask_PLL = torch.zeros(visible_PLL.shape).masked_fill(~visible_PLL, torch.finfo(torch.float32).min)
    hidden_PLH = model.model(ids_PL, attention_mask=mask_PLL[:, None], position_ids=position_PL).last_hidden_state
    pack_N, from_N, to_N = torch.tensor(predicts).T
    logp_NV = (model.lm_head(hidden_PLH[pack_N, from_N]).float() / temperature).log_softmax(-1)
    logp_N = logp_NV.gather(1, ids_PL[pack_N, to_N][:, None])[:, 0]
    old_N = torch.from_numpy(np.concatenate(old).astype(np.float32))
    stored_N = ~old_N.isnan()
    old_N = torch.where(stored_N, old_N, logp_N.detach())
    advantage_N = torch.from_numpy(np.concatenate(advantages).astype(np.float32))
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
