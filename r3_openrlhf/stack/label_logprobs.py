"""Log-probs of several labels a token from a model's logits, with gradient, and the likeliest tokens.

Neither keeps a float32 copy of the logits: both work in chunks of tokens. (OpenRLHF's log-prob pass makes
one, models/actor.py:250, which its gradient needs.)

Shapes: N tokens, V vocabulary, K labels or likeliest tokens of a token, C tokens of a chunk."""

from collections.abc import Callable, Iterator

import torch
from torch.autograd.function import FunctionCtx

from r3_openrlhf.method.core.entropy import buffer_tokens

LogitsOf = Callable[[torch.Tensor], torch.Tensor]  # places [C] -> logits [C, V], any float type


def logprobs_of_labels(
    logits_NV: torch.Tensor, labels_NK: torch.Tensor, *, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probs of the labels at each token, float32 [N, K] (float64 for float64 logits), with gradient.

        x_nv = logits_nv / temperature                          in float32
        logprob_nk = x_n[label_nk] - ln sum_v exp(x_nv)
        d logprob_nk / d x_nv = [v = label_nk] - p_nv

    Labels may repeat. The gradient is one tensor like the logits, made in chunks."""
    return _LabelLogprobs.apply(logits_NV, labels_NK.long(), float(temperature))


class _LabelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, logits_NV: torch.Tensor, labels_NK: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        dtype = torch.promote_types(logits_NV.dtype, torch.float32)
        logsumexp_N = torch.empty(len(logits_NV), dtype=dtype, device=logits_NV.device)
        logprobs_NK = torch.empty(labels_NK.shape, dtype=dtype, device=logits_NV.device)
        for chunk in _chunks(logits_NV):
            x_CV = scaled(logits_NV[chunk], temperature, dtype)
            logsumexp_N[chunk] = torch.logsumexp(x_CV, dim=1)
            logprobs_NK[chunk] = x_CV.gather(1, labels_NK[chunk]) - logsumexp_N[chunk, None]
        ctx.save_for_backward(logits_NV, labels_NK, logsumexp_N)
        ctx.temperature = temperature
        return logprobs_NK

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient_NK,) = gradients
        logits_NV, labels_NK, logsumexp_N = ctx.saved_tensors
        gradient_NV = torch.empty_like(logits_NV)
        for chunk in _chunks(logits_NV):
            x_CV = scaled(logits_NV[chunk], ctx.temperature, logsumexp_N.dtype)
            gradient_NV[chunk] = gradient_of_logits(
                x_CV,
                logsumexp_N[chunk],
                labels_NK[chunk],
                gradient_NK[chunk] / ctx.temperature,
            )
        return gradient_NV, None, None


def gradient_of_logits(
    x_CV: torch.Tensor,
    logsumexp_C: torch.Tensor,
    labels_CK: torch.Tensor,
    gradient_CK: torch.Tensor,
) -> torch.Tensor:
    """Return sum_k g_k ([v = label_k] - p_v), [C, V], from g [C, K]. Overwrites x_CV."""
    probs_CV = x_CV.sub_(logsumexp_C[:, None]).exp_()
    of_all_C1 = gradient_CK.sum(1, keepdim=True)
    return probs_CV.mul_(-of_all_C1).scatter_add_(1, labels_CK, gradient_CK)


@torch.no_grad()
def likeliest(
    logits_of: LogitsOf,
    places_N: torch.Tensor,
    *,
    top_k: int,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the top_k likeliest tokens at these places and their log-probs: int32 and float32 [N, K].

    A vocabulary of fewer tokens has K = V. chunk_tokens: logits made at once; None: by a buffer's size."""
    ids, logprobs = [], []
    for _, x_CV in _scaled_chunks(logits_of, places_N, temperature, chunk_tokens):
        top_CK, ids_CK = x_CV.topk(min(top_k, x_CV.shape[1]), dim=1)
        logprobs.append(top_CK - x_CV.logsumexp(1, keepdim=True))
        ids.append(ids_CK.int())
    return torch.cat(ids), torch.cat(logprobs).float()


@torch.no_grad()
def logprobs_at(
    logits_of: LogitsOf,
    places_N: torch.Tensor,
    ids_NK: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> torch.Tensor:
    """Return the log-probs of these tokens at these places, float32 [N, K]; without gradient."""
    found, start = [], 0
    for chunk_C, x_CV in _scaled_chunks(logits_of, places_N, temperature, chunk_tokens):
        ids_CK = ids_NK[start : start + len(chunk_C)].long()
        found.append(x_CV.gather(1, ids_CK) - x_CV.logsumexp(1, keepdim=True))
        start += len(chunk_C)
    return torch.cat(found).float()


def scaled(logits_CV: torch.Tensor, temperature: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the logits over the temperature in `dtype`, in a new tensor that the caller may change."""
    x_CV = logits_CV.to(dtype, copy=True)
    return x_CV if temperature == 1.0 else x_CV.div_(temperature)


def _scaled_chunks(
    logits_of: LogitsOf, places_N: torch.Tensor, temperature: float, chunk_tokens: int | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield places [C] with their scaled logits [C, V]."""
    if chunk_tokens is None:
        chunk_tokens = buffer_tokens(logits_of(places_N[:1]))
    for chunk_C in places_N.split(chunk_tokens):
        logits_CV = logits_of(chunk_C)
        dtype = torch.promote_types(logits_CV.dtype, torch.float32)
        yield chunk_C, scaled(logits_CV, temperature, dtype)


def _chunks(logits_NV: torch.Tensor) -> list[slice]:
    size = buffer_tokens(logits_NV)
    return [slice(start, start + size) for start in range(0, len(logits_NV), size)]
