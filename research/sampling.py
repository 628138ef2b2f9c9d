"""Responses from a small causal model, with the log-prob and the exact entropy of every token.

P prompts, n responses to each, R = P * n rows, N different beginnings of rows, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

COMPACT_EVERY = 6  # tokens; rows that have ended leave the batch then


@dataclass(slots=True, kw_only=True)
class Sample:
    """One response. Arrays are one-dimensional and equally long."""

    prompt: int  # place of its prompt
    response_ids: np.ndarray  # int32, the end token included
    logprobs: np.ndarray  # float32, under the sampling distribution, natural log
    entropies: np.ndarray  # float32, of the sampling distribution, nats
    truncated: bool  # stopped by the token limit


@torch.inference_mode()
def sample(
    model,
    prompts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int,
    temperature: float,
    eos: int,
    generator: torch.Generator,
    max_rows: int = 512,
) -> list[Sample]:
    """`n` responses to every prompt, prompt by prompt: result i belongs to prompt i // n.

    ValueError: no prompts, an empty prompt, n or max_new_tokens below 1.
    """
    if not prompts or not all(len(prompt) for prompt in prompts) or n < 1 or max_new_tokens < 1:
        raise ValueError(
            "sampling needs prompts with tokens, n and max_new_tokens of 1 or more"
        )
    samples: dict[int, Sample] = {}  # place in the result -> sample
    # prompts of similar length share a batch: little padding
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    per_batch = max(1, max_rows // n)
    for start in range(0, len(order), per_batch):
        places = order[start : start + per_batch]
        rows = _sample_batch(
            model,
            [prompts[i] for i in places],
            n=n,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            eos=eos,
            generator=generator,
        )
        for row, (ids, logprobs, entropies, truncated) in enumerate(rows):
            number = places[row // n]
            samples[number * n + row % n] = Sample(
                prompt=number,
                response_ids=ids,
                logprobs=logprobs,
                entropies=entropies,
                truncated=truncated,
            )
    return [samples[number] for number in range(len(prompts) * n)]


def _sample_batch(model, prompts, *, n, max_new_tokens, temperature, eos, generator):
    longest = max(map(len, prompts))
    ids_PT = torch.full((len(prompts), longest), eos)
    mask_PT = torch.zeros(len(prompts), longest, dtype=torch.long)
    # padded on the left: every row's next token is in the last column
    for i, prompt in enumerate(prompts):
        ids_PT[i, longest - len(prompt) :] = torch.tensor(prompt)
        mask_PT[i, longest - len(prompt) :] = 1
    trunk = getattr(model, "trunk", None)
    decoder = trunk.decoder(ids_PT, mask_PT) if trunk else _Decoder(model, ids_PT, mask_PT)
    logits_NV = decoder.first_logits_PV

    num_rows = len(prompts) * n
    tokens = torch.full((num_rows, max_new_tokens), -1)
    logprobs = torch.zeros(num_rows, max_new_tokens)
    entropies = torch.zeros(num_rows, max_new_tokens)
    alive = torch.arange(num_rows)  # the rows of this batch that the tensors below hold
    # of these rows: where their next token's distribution is
    node_R = torch.arange(len(prompts)).repeat_interleave(n)
    ended = torch.zeros(num_rows, dtype=torch.bool)  # of all rows
    for t in range(max_new_tokens):
        logp_NV = (logits_NV.float() / temperature).log_softmax(-1)
        p_NV = logp_NV.exp()
        token_R = _draw(p_NV, node_R, torch.rand(len(alive), generator=generator))
        token_R[ended[alive]] = eos
        writes = ~ended[alive]
        rows = alive[writes]
        tokens[rows, t] = token_R[writes]
        logprobs[rows, t] = logp_NV[node_R, token_R][writes]
        entropies[rows, t] = -(p_NV * logp_NV).sum(-1)[node_R][writes]
        ended[alive] |= token_R == eos
        if ended.all() or t + 1 == max_new_tokens:
            break
        if (t + 1) % COMPACT_EVERY == 0 and ended[alive].any():
            keep = (~ended[alive]).nonzero()[:, 0]
            alive, token_R, node_R = alive[keep], token_R[keep], node_R[keep]
        # rows of one prompt that have said the same so far are one row of the model's
        different, node_R = torch.unique(node_R * p_NV.shape[1] + token_R, return_inverse=True)
        logits_NV = decoder.advance(different // p_NV.shape[1], different % p_NV.shape[1])
    ids, arrays = (
        tokens.numpy().astype(np.int32),
        (logprobs.numpy(), entropies.clamp(min=0).numpy()),
    )
    ends = zip((tokens >= 0).sum(1).tolist(), (~ended).tolist(), strict=True)
    return [
        (ids[row, :length].copy(), *(values[row, :length].copy() for values in arrays), was_cut)
        for row, (length, was_cut) in enumerate(ends)
    ]


def _draw(p_NV: Tensor, node_R: Tensor, uniform_R: Tensor) -> Tensor:
    """A token for each row, from the distribution of its node: the inverse of the distribution function, a third of
    torch.multinomial's time, which draws a number for every entry."""
    below_NV = p_NV.double().cumsum(-1)
    below_NV /= below_NV[:, -1:].clone()
    below_NV += torch.arange(len(p_NV))[:, None]  # one rising sequence for all nodes
    return (
        torch.searchsorted(below_NV.flatten(), node_R + uniform_R.double(), right=True)
        - node_R * p_NV.shape[1]
    )


class _Decoder:
    """One token more for every row, by the model's own forward pass and Transformers' cache."""

    def __init__(self, model, ids_PT: Tensor, mask_PT: Tensor) -> None:
        """Run the prompts, padded on the left where the mask is 0."""
        self._model = model
        self._cache = DynamicCache(config=model.config)
        output = model(
            ids_PT,
            attention_mask=mask_PT,
            position_ids=(mask_PT.cumsum(1) - 1).clamp(min=0),
            past_key_values=self._cache,
            logits_to_keep=1,
        )
        self._mask_RT = mask_PT
        self._position_R = mask_PT.sum(1)
        self.first_logits_PV = output.logits[:, -1]

    def advance(self, after_R: Tensor, token_R: Tensor) -> Tensor:
        """Logits [R, V] after one more token: row i goes on from the row `after_R[i]` of the last call."""
        if not torch.equal(after_R, torch.arange(len(self._mask_RT))):
            self._cache.batch_select_indices(after_R)
            self._mask_RT, self._position_R = self._mask_RT[after_R], self._position_R[after_R]
        self._mask_RT = torch.cat(
            [self._mask_RT, torch.ones(len(token_R), 1, dtype=torch.long)], 1
        )
        output = self._model(
            token_R[:, None],
            attention_mask=self._mask_RT,
            position_ids=self._position_R[:, None],
            past_key_values=self._cache,
        )
        self._position_R = self._position_R + 1
        return output.logits[:, -1]
