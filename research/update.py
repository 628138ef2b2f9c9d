"""The policy update on the rows of a step, in plain torch, with the very losses of the stack.

P packs of rows behind one prompt, L tokens of a pack, N response tokens, B rows, A tokens of the longest response, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from r3_openrlhf.method.core.losses import PPO, LossSettings, TokenLoss

# OpenRLHF's defaults (cli/train_ppo_ray.py, --actor.adam.*)
ADAM_BETAS, ADAM_EPS = (
    (0.9, 0.95),
    1e-8,
)


@dataclass(slots=True, kw_only=True)
class TrainedRow:
    """A response behind the prompt that it is trained with."""

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    advantage: float
    # None: the current policy's own, so that the ratio is 1
    old_logprobs: np.ndarray | None = None
    recalled: bool = False


class Gradient(NamedTuple):
    """The results of accumulate_gradient."""

    loss: float
    ratio_max: float  # the largest ratio of a token that has stored log-probs and an advantage; 0 without any
    # float32, of each row's response tokens under the policy now, row by row as given; None: the row has no advantage
    logprobs: list[np.ndarray | None]


def make_optimizer(model, *, learning_rate: float) -> torch.optim.Optimizer:
    """Adam as OpenRLHF sets it up (ADAM_BETAS, ADAM_EPS), without weight decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        trained, lr=learning_rate, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=0.0
    )


def accumulate_gradient(
    model,
    rows: Sequence[TrainedRow],
    *,
    temperature: float,
    micro_batch_size: int,
    settings: LossSettings = LossSettings(),  # noqa: B008
    loss: TokenLoss = PPO,
    by_token: bool = True,
) -> Gradient:
    """Add the gradient of the mean loss to the parameters' .grad.

        sum_r w_r sum_t loss_rt     w_r = 1 / (number of response tokens), or 1 / (tokens of row r) / (number of rows)

    models/loss.py of OpenRLHF, aggregate_loss, of all rows of a step. A row whose advantage is 0 has no gradient under our own
    losses and is not run through the model; it counts in the denominators. ValueError: no rows.
    """
    if not rows:
        raise ValueError("an update needs rows")
    num_tokens = sum(len(row.response_ids) for row in rows)
    weights = [
        1 / num_tokens if by_token else 1 / len(row.response_ids) / len(rows) for row in rows
    ]
    # rows that are alike in everything: one goes through the model, with all their weight
    equal: dict[tuple, list[int]] = {}
    for i, row in enumerate(rows):
        if row.advantage != 0 or loss.of_user:
            arrays = (row.prompt_ids, row.response_ids, row.old_logprobs)
            content = [None if array is None else array.tobytes() for array in arrays]
            equal.setdefault((row.advantage, row.recalled, *content), []).append(i)
    copies = {places[0]: places for places in equal.values()}
    # rows behind one prompt, which goes through the model once
    packs: dict[bytes, list[int]] = {}
    for i in copies:
        packs.setdefault(rows[i].prompt_ids.astype(np.int64).tobytes(), []).append(i)
    by_length = sorted(packs.values(), key=lambda pack: _length([rows[i] for i in pack]))
    if not by_length:  # an optimizer with momentum goes on, as it does after a gradient of 0
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.grad = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
    total = largest = 0.0
    logprobs_of_row: dict[int, np.ndarray] = {}
    while by_length:
        batch = [by_length.pop(0)]
        while by_length and sum(map(len, batch)) + len(by_length[0]) <= micro_batch_size:
            batch.append(by_length.pop(0))
        packs_of_rows = [
            [(rows[i], len(copies[i]) * weights[i]) for i in pack] for pack in batch
        ]
        loss_sum, ratio_max, logp_N = _loss_sum(
            model, packs_of_rows, temperature, loss, settings
        )
        loss_sum.backward()
        total, largest = total + loss_sum.item(), max(largest, ratio_max)
        places = [i for pack in batch for i in pack]
        ends = np.cumsum([len(rows[i].response_ids) for i in places])[:-1]
        for i, logprobs in zip(places, np.split(logp_N.numpy(), ends), strict=True):
            logprobs_of_row.update(dict.fromkeys(copies[i], logprobs))
    return Gradient(
        loss=total,
        ratio_max=largest,
        logprobs=[logprobs_of_row.get(i) for i in range(len(rows))],
    )


def _length(pack: Sequence[TrainedRow]) -> int:
    return len(pack[0].prompt_ids) + sum(len(row.response_ids) for row in pack)


def _loss_sum(model, packs, temperature, loss, settings):
    """P packs of (row, its weight), the rows of a pack behind one prompt."""
    trunk = getattr(model, "trunk", None)
    if trunk:
        responses = [
            (pack[0][0].prompt_ids, [row.response_ids for row, _ in pack]) for pack in packs
        ]
        logp_N = trunk.logprobs(responses, temperature=temperature)
    else:
        logp_N = _logprobs(model, packs, temperature)
    rows, weights = zip(*(each for pack in packs for each in pack), strict=True)
    lengths = [len(row.response_ids) for row in rows]
    stored = [
        np.full(length, np.nan) if row.old_logprobs is None else row.old_logprobs
        for row, length in zip(rows, lengths, strict=True)
    ]
    old_N = torch.from_numpy(np.concatenate(stored).astype(np.float32))
    stored_N = ~old_N.isnan()
    old_N = torch.where(stored_N, old_N, logp_N.detach())

    def by_row(values_N):
        return pad_sequence(values_N.split(lengths), batch_first=True)

    mask_BA = by_row(torch.ones(len(logp_N)))
    advantage_B1, recalled_B1 = (
        torch.tensor([getattr(row, name) for row in rows])[:, None]
        for name in ("advantage", "recalled")
    )
    loss_BA, _ = loss.of(
        by_row(logp_N),
        by_row(old_N),
        advantage_B1.float() * mask_BA,
        mask_BA,
        settings=settings,
        recalled=recalled_B1,
    )
    weight_B1 = torch.tensor(weights)[:, None]
    ratio_N = (logp_N.detach() - old_N).clamp(-20, 20).exp()
    ratio_max = ratio_N[stored_N].max().item() if stored_N.any() else 0.0
    return (loss_BA.where(mask_BA.bool(), 0.0) * weight_B1).sum(), ratio_max, logp_N.detach()


def _logprobs(model, packs, temperature):
    """Log-probs [N] of the response tokens, pack by pack: each its prompt and then its responses, L tokens. A response sees the
    prompt and itself."""
    longest = max(_length([row for row, _ in pack]) for pack in packs)
    ids_PL = torch.zeros(len(packs), longest, dtype=torch.long)
    position_PL = torch.zeros_like(ids_PL)
    # 0: the prompt; 1, 2, ...: a response; -1: padding
    response_PL = torch.full_like(ids_PL, -1)
    predicts = []
    for p, pack in enumerate(packs):
        prompt_ids = pack[0][0].prompt_ids
        start = len(prompt_ids)
        ids_PL[p, :start] = torch.from_numpy(prompt_ids.astype(np.int64))
        position_PL[p, :start] = torch.arange(start)
        response_PL[p, :start] = 0
        end = start
        for number, (row, _) in enumerate(pack, start=1):
            begin, end = end, end + len(row.response_ids)
            ids_PL[p, begin:end] = torch.from_numpy(row.response_ids.astype(np.int64))
            position_PL[p, begin:end] = torch.arange(start, start + end - begin)
            response_PL[p, begin:end] = number
            # the first token is predicted from the prompt's last place
            predicts += [(p, start - 1, begin)] + [
                (p, position - 1, position) for position in range(begin + 1, end)
            ]
    visible_PLL = (response_PL[:, None, :] == 0) | (
        response_PL[:, None, :] == response_PL[:, :, None]
    )
    visible_PLL &= torch.ones(longest, longest, dtype=torch.bool).tril()
    mask_PLL = torch.zeros(visible_PLL.shape).masked_fill(
        ~visible_PLL, torch.finfo(torch.float32).min
    )
    hidden_PLH = model.model(
        ids_PL, attention_mask=mask_PLL[:, None], position_ids=position_PL, use_cache=False
    ).last_hidden_state
    pack_N, from_N, to_N = torch.tensor(predicts).T
    logp_NV = (model.lm_head(hidden_PLH[pack_N, from_N]).float() / temperature).log_softmax(-1)
    return logp_NV.gather(1, ids_PL[pack_N, to_N][:, None])[:, 0]


def step(model, optimizer: torch.optim.Optimizer, *, max_grad_norm: float) -> float:
    """Clip, update, clear; returns the gradient's norm before clipping."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
