"""Responses from a small causal model, with the log-prob and the exact entropy of every token.

P prompts, n responses to each, R = P * n rows, T tokens so far, V vocabulary.
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
    max_new_tokens: int | Sequence[int],
    temperature: float,
    eos: int,
    generator: torch.Generator,
    max_rows: int = 512,
) -> list[Sample]:
    """`n` responses to every prompt, prompt by prompt: result i belongs to prompt i // n.

    max_new_tokens: of all prompts, or of each. ValueError: no prompts, an empty prompt, n or a limit below 1.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if not prompts or not all(len(prompt) for prompt in prompts) or n < 1 or min(limits) < 1:
        raise ValueError("sampling needs prompts with tokens, n and max_new_tokens of 1 or more")
    found: dict[int, Sample] = {}  # place in the result -> sample
    # prompts of similar length share a batch: little padding
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    per_batch = max(1, max_rows // n)
    for start in range(0, len(order), per_batch):
        places = order[start : start + per_batch]
        rows = _sample_batch(
            model,
            [prompts[i] for i in places],
            n=n,
            limits=[limits[i] for i in places],
            temperature=temperature,
            eos=eos,
            generator=generator,
        )
        for row, (ids, logprobs, entropies, truncated) in enumerate(rows):
            place = places[row // n]
            found[place * n + row % n] = Sample(
                prompt=place, response_ids=ids, logprobs=logprobs, entropies=entropies, truncated=truncated
            )
    return [found[place] for place in range(len(prompts) * n)]


def _sample_batch(model, prompts, *, n, limits, temperature, eos, generator):
    longest = max(map(len, prompts))
    ids_PT = torch.full((len(prompts), longest), eos)
    mask_PT = torch.zeros(len(prompts), longest, dtype=torch.long)
    for i, prompt in enumerate(prompts):  # padded on the left: every row's next token is in the last column
        ids_PT[i, longest - len(prompt) :] = torch.tensor(prompt)
        mask_PT[i, longest - len(prompt) :] = 1
    max_new_tokens = max(limits)
    decoder = _Decoder(model, ids_PT, mask_PT, n=n)
    logits_RV = decoder.first_logits_RV

    num_rows = len(prompts) * n
    limit_R = torch.tensor(limits).repeat_interleave(n)  # of all rows
    tokens = torch.full((num_rows, max_new_tokens), -1)
    logprobs = torch.zeros(num_rows, max_new_tokens)
    entropies = torch.zeros(num_rows, max_new_tokens)
    alive = torch.arange(num_rows)  # the rows of this batch that the tensors below hold
    ended = torch.zeros(num_rows, dtype=torch.bool)  # of all rows
    cut = torch.zeros(num_rows, dtype=torch.bool)  # those that ended by their limit
    for t in range(max_new_tokens):
        logp_RV = (logits_RV.float() / temperature).log_softmax(-1)
        p_RV = logp_RV.exp()
        # the inverse of the distribution function: a third of torch.multinomial's time, which draws a number for every entry
        below_RV = p_RV.cumsum(-1)
        drawn_R1 = torch.rand(len(p_RV), 1, generator=generator) * below_RV[:, -1:]
        token_R = torch.searchsorted(below_RV, drawn_R1, right=True)[:, 0].clamp(max=p_RV.shape[1] - 1)
        writes = ~ended[alive]
        rows = alive[writes]
        tokens[rows, t] = token_R[writes]
        logprobs[rows, t] = logp_RV.gather(1, token_R[:, None])[writes, 0]
        entropies[rows, t] = -(p_RV * logp_RV).sum(-1)[writes]
        cut[alive] |= ~ended[alive] & (token_R != eos) & (limit_R[alive] == t + 1)
        ended[alive] |= (token_R == eos) | cut[alive]
        if ended.all() or t + 1 == max_new_tokens:
            break
        if (t + 1) % COMPACT_EVERY == 0 and ended[alive].any():
            keep = (~ended[alive]).nonzero()[:, 0]
            decoder.keep(keep)
            alive, token_R = alive[keep], token_R[keep]
        logits_RV = decoder.advance(token_R)
    ids, found = tokens.numpy().astype(np.int32), (logprobs.numpy(), entropies.clamp(min=0).numpy())
    ends = zip((tokens >= 0).sum(1).tolist(), cut.tolist(), strict=True)
    return [
        (ids[row, :length].copy(), *(values[row, :length].copy() for values in found), was_cut)
        for row, (length, was_cut) in enumerate(ends)
    ]


class _Decoder:
    """One token more for every row, by the model's own forward pass and Transformers' cache."""

    def __init__(self, model, ids_PT: Tensor, mask_PT: Tensor, *, n: int) -> None:
        """Run the prompts, padded on the left where the mask is 0; row i belongs to prompt i // n."""
        self._model = model
        self._cache = DynamicCache(config=model.config)
        output = model(
            ids_PT,
            attention_mask=mask_PT,
            position_ids=(mask_PT.cumsum(1) - 1).clamp(min=0),
            past_key_values=self._cache,
            logits_to_keep=1,
        )
        self._cache.batch_repeat_interleave(n)
        self._mask_RT = mask_PT.repeat_interleave(n, 0)
        self._position_R = self._mask_RT.sum(1)
        self.first_logits_RV = output.logits[:, -1].repeat_interleave(n, 0)

    def advance(self, token_R: Tensor) -> Tensor:
        """Logits [R, V] after one more token of each row."""
        self._mask_RT = torch.cat([self._mask_RT, torch.ones(len(token_R), 1, dtype=torch.long)], 1)
        output = self._model(
            token_R[:, None],
            attention_mask=self._mask_RT,
            position_ids=self._position_R[:, None],
            past_key_values=self._cache,
        )
        self._position_R = self._position_R + 1
        return output.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Keep the rows with these indices, in this order."""
        self._cache.batch_select_indices(rows)
        self._mask_RT, self._position_R = self._mask_RT[rows], self._position_R[rows]
