"""The policy update on the rows of a step, in plain torch, with the very losses of the stack.

P packs of rows behind one prompt, L tokens of a pack, N response tokens, U places that predict them, B rows, A tokens of the longest
response, T tokens of one, K tokens of the teacher's likeliest, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from r3_openrlhf.method.core.distill import DistillLoss, Target
from r3_openrlhf.method.core.losses import PPO, LossSettings, TokenLoss
from research.predictions import Predictions

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
    advantage: float | np.ndarray  # of every token, or float32 [T]
    # None: the current policy's own, so that the ratio is 1
    old_logprobs: np.ndarray | None = None
    recalled: bool = False
    target: Target | None = None

    @property
    def has_gradient(self) -> bool:
        """True if a token has an advantage, or the row a target."""
        return self.target is not None or bool(np.any(self.advantage))

    def content(self) -> tuple[bytes | bool | None, ...]:
        """Return a key that rows which are alike in everything share."""
        arrays = [self.prompt_ids, self.response_ids, self.old_logprobs]
        if self.target is not None:
            arrays += [self.target.ids, self.target.logprobs, self.target.weights]
        contents = [None if array is None else array.tobytes() for array in arrays]
        return (np.asarray(self.advantage).tobytes(), self.recalled, *contents)


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
    distill_loss: DistillLoss | None = None,
) -> Gradient:
    """Add the gradient of the mean loss to the parameters' .grad.

        sum_r w_r sum_t loss_rt     w_r = 1 / (number of response tokens), or 1 / (tokens of row r) / (number of rows)

    models/loss.py of OpenRLHF, aggregate_loss, of all rows of a step. A row whose advantage is 0 has no gradient under our own
    losses and is not run through the model; it counts in the denominators. With a target l_rt also has the distill_loss of token t,
    times the target's weight. ValueError: no rows.
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
        if row.has_gradient or loss.of_user:
            equal.setdefault(row.content(), []).append(i)
    copies = {places[0]: places for places in equal.values()}
    batches = list(packed(rows, copies, micro_batch_size=micro_batch_size))
    if not batches:  # an optimizer with momentum goes on, as it does after a gradient of 0
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.grad = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
    total = largest = 0.0
    logprobs_of_row: dict[int, np.ndarray] = {}
    for batch in batches:
        packs_of_rows = [
            [(rows[i], len(copies[i]) * weights[i]) for i in pack] for pack in batch
        ]
        loss_sum, ratio_max, logp_N = _loss_sum(
            model, packs_of_rows, temperature, loss, settings, distill_loss
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


def packed(
    rows: Sequence[TrainedRow], places: Iterable[int], *, micro_batch_size: int
) -> Iterator[list[list[int]]]:
    """Yield micro-batches of packs, shortest first: a pack is the places of rows behind one prompt, which goes
    through the model once."""
    packs: dict[bytes, list[int]] = {}
    for i in places:
        packs.setdefault(rows[i].prompt_ids.astype(np.int64).tobytes(), []).append(i)
    by_length = sorted(packs.values(), key=lambda pack: _length([rows[i] for i in pack]))
    while by_length:
        batch = [by_length.pop(0)]
        while by_length and sum(map(len, batch)) + len(by_length[0]) <= micro_batch_size:
            batch.append(by_length.pop(0))
        yield batch


def _length(pack: Sequence[TrainedRow]) -> int:
    return len(pack[0].prompt_ids) + sum(len(row.response_ids) for row in pack)


def predictions(
    model, packs: Sequence[Sequence[TrainedRow]], *, temperature: float
) -> Predictions:
    """Run the packs through the model; with gradients."""
    trunk = getattr(model, "trunk", None)
    if trunk is None:
        return _predictions(model, packs, temperature)
    responses = [(pack[0].prompt_ids, [row.response_ids for row in pack]) for pack in packs]
    return trunk.predictions(responses, temperature=temperature)


def _loss_sum(model, packs, temperature, loss, settings, distill_loss):
    """P packs of (row, its weight), the rows of a pack behind one prompt."""
    predicted = predictions(
        model, [[row for row, _ in pack] for pack in packs], temperature=temperature
    )
    logp_N = predicted.of_tokens()
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
    advantages = [
        np.broadcast_to(np.float32(row.advantage), (length,))
        for row, length in zip(rows, lengths, strict=True)
    ]
    recalled_B1 = torch.tensor([row.recalled for row in rows])[:, None]
    loss_BA, _ = loss.of(
        by_row(logp_N),
        by_row(old_N),
        by_row(torch.from_numpy(np.concatenate(advantages))),
        mask_BA,
        settings=settings,
        recalled=recalled_B1,
    )
    if distill_loss is not None and distill_loss.function is not None:
        loss_BA = loss_BA + by_row(_target_loss_N(predicted, rows, distill_loss))
    weight_B1 = torch.tensor(weights)[:, None]
    ratio_N = (logp_N.detach() - old_N).clamp(-20, 20).exp()
    ratio_max = ratio_N[stored_N].max().item() if stored_N.any() else 0.0
    return (loss_BA.where(mask_BA.bool(), 0.0) * weight_B1).sum(), ratio_max, logp_N.detach()


def _target_loss_N(
    predicted: Predictions, rows: Sequence[TrainedRow], distill_loss: DistillLoss
) -> Tensor:
    """Loss [N] against the teacher's likeliest tokens, times its weights; 0 of a row without a target."""
    ends = np.cumsum([len(row.response_ids) for row in rows])
    places, taught = [], []
    for row, end in zip(rows, ends, strict=True):
        if row.target is not None:
            places.append(torch.arange(end - len(row.response_ids), end))
            taught.append(row.target)
    loss_N = torch.zeros(int(ends[-1]))
    if not taught:
        return loss_N
    place_M = torch.cat(places)
    ids_MK, teacher_MK, weight_M = (
        torch.from_numpy(np.concatenate([getattr(target, name) for target in taught]))
        for name in ("ids", "logprobs", "weights")
    )
    student_MK = predicted.of_ids(ids_MK, places=place_M)
    loss_M = distill_loss.divergence(student_MK, teacher_MK)
    return loss_N.index_put((place_M,), loss_M * weight_M)


def _predictions(model, packs, temperature) -> Predictions:
    """Of the response tokens, pack by pack: each its prompt and then its responses, L tokens. A response sees the prompt and
    itself."""
    longest = max(_length(pack) for pack in packs)
    ids_PL = torch.zeros(len(packs), longest, dtype=torch.long)
    position_PL = torch.zeros_like(ids_PL)
    # 0: the prompt; 1, 2, ...: a response; -1: padding
    response_PL = torch.full_like(ids_PL, -1)
    predicts = []
    for p, pack in enumerate(packs):
        prompt_ids = pack[0].prompt_ids
        start = len(prompt_ids)
        ids_PL[p, :start] = torch.from_numpy(prompt_ids.astype(np.int64))
        position_PL[p, :start] = torch.arange(start)
        response_PL[p, :start] = 0
        end = start
        for number, row in enumerate(pack, start=1):
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
    return Predictions(logp_NV, ids_PL[pack_N, to_N])


class RowScores(NamedTuple):
    """What a policy says of one response's tokens."""

    logprobs: np.ndarray  # float32 [T]
    entropies: np.ndarray  # of the distribution, nats, float32 [T]
    kept_ids: np.ndarray  # the top_k likeliest tokens at each place, int64 [T, K]
    kept_logprobs: np.ndarray  # float32 [T, K]


@torch.no_grad()
def score(
    model,
    rows: Sequence[TrainedRow],
    *,
    temperature: float,
    micro_batch_size: int,
    top_k: int = 0,
) -> list[RowScores]:
    """Score each row's response behind its prompt; equal ones go through the model once."""
    first: dict[tuple[bytes, bytes], int] = {}
    keys = [(row.prompt_ids.tobytes(), row.response_ids.tobytes()) for row in rows]
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    found: dict[int, RowScores] = {}
    for batch in packed(rows, first.values(), micro_batch_size=micro_batch_size):
        predicted = predictions(
            model, [[rows[i] for i in pack] for pack in batch], temperature=temperature
        )
        kept_NK, ids_NK = predicted.likeliest(top_k)
        arrays = (predicted.of_tokens(), predicted.entropies(), ids_NK, kept_NK)
        places = [i for pack in batch for i in pack]
        ends = np.cumsum([len(rows[i].response_ids) for i in places])[:-1]
        split = [np.split(array.numpy(), ends) for array in arrays]
        for i, of_row in zip(places, zip(*split, strict=True), strict=True):
            found[i] = RowScores(*of_row)
    return [found[first[key]] for key in keys]


def step(model, optimizer: torch.optim.Optimizer, *, max_grad_norm: float) -> float:
    """Clip, update, clear; returns the gradient's norm before clipping."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
