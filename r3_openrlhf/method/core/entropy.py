"""Logits or top-k log-probs -> entropy per token -> statistics per rollout (METHOD section 6). All
in nats.

Shapes: T tokens of one response (or of a packed batch), V vocabulary, k most likely tokens."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from r3_openrlhf.method.core.checks import finite_value, whole_number

# exp() of this is 0 in float32 and float64; lower values may be raised: 0 * -inf is NaN.
LOG_ZERO = -1000.0
# Size of a buffer of token_logprobs_and_entropy by default. On a CPU buffers in the cache are
# several times faster; elsewhere few, large kernels matter more (128 tokens of 131,072 words).
CPU_BUFFER_BYTES = 4 * 2**20
DEVICE_BUFFER_BYTES = 64 * 2**20
# Log-probs computed in float32 may exceed their limits by rounding; more than this is not rounding.
ROUNDING = 1e-3


def entropy_statistics(
    entropies: Sequence[float] | np.ndarray | torch.Tensor, *, peak_fraction: float
) -> tuple[float, float]:
    """(peak, global) entropy of one response, from its entropy per token.

        peak   = mean of the max(1, floor(p * L)) largest H_t,   p = peak_fraction, L tokens
        global = mean of all H_t

    Means are in float64 over sorted values: the order of tokens changes not even the last bit.

    Raises:
        ValueError: no tokens, wrong shape, non-finite or negative entropies, peak_fraction outside
            (0, 1]."""
    peak_fraction = finite_value("peak_fraction", peak_fraction, above=0, max=1)
    entropies_T = np.sort(_array("entropies", entropies, num_dims=1).astype(np.float64))
    if not np.isfinite(entropies_T).all():
        raise ValueError(
            f"entropies holds {entropies_T[~np.isfinite(entropies_T)][0]}; entropies must be finite"
        )
    if entropies_T[0] < -ROUNDING:
        raise ValueError(f"entropies holds {entropies_T[0]}; an entropy cannot be negative")
    num_peak = max(1, math.floor(peak_fraction * len(entropies_T)))
    return float(entropies_T[-num_peak:].mean()), float(entropies_T.mean())


def topk_entropy_bounds(logprobs_Tk: Any, *, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound of H_t from the log-probs (natural log) of the k most likely tokens at
    each position.

        m_t     = 1 - sum_i p_ti                              mass of V - k tokens not returned
        lower_t = -sum_i p_ti ln p_ti - m_t ln m_t            all of it on one token
        upper_t = -sum_i p_ti ln p_ti + m_t ln((V - k) / m_t)      spread evenly

    0 ln 0 = 0; -inf is the log-prob of a token that cannot occur. The k values come in any order.
    Takes lists, numpy arrays or CPU tensors; computes in float32 for float32 or narrower, else
    in float64; returns numpy [T] of that type. lower_t <= upper_t always, equal when V = k.

    ValueError: no tokens, k of 0 or above vocab_size, NaN, log-probs above 0, probabilities that
    sum to more than 1 (one token returned twice)."""
    logprobs_Tk = _array("logprobs_Tk", logprobs_Tk, num_dims=2)
    k = logprobs_Tk.shape[1]
    vocab_size = whole_number("vocab_size", vocab_size, minimum=1)
    if k > vocab_size:
        raise ValueError(f"vocab_size is {vocab_size}, below the {k} log-probs given per token")
    highest = float(logprobs_Tk.max())
    if not highest <= ROUNDING:
        raise ValueError(f"logprobs_Tk holds {highest}; a log-prob is a number at most 0")

    logprobs_Tk = np.maximum(logprobs_Tk, LOG_ZERO)
    probs_Tk = np.exp(logprobs_Tk)
    head_T = -np.einsum("tk,tk->t", probs_Tk, logprobs_Tk)
    # m = -(p_top - 1) - (the other p): expm1 keeps the digits that 1 - sum loses near 1.
    top_T1 = logprobs_Tk.argmax(axis=1)[:, None]
    np.put_along_axis(
        probs_Tk, top_T1, np.expm1(np.take_along_axis(logprobs_Tk, top_T1, axis=1)), axis=1
    )
    tail_T = -np.einsum("tk->t", probs_Tk)
    if tail_T.min() < -ROUNDING:
        raise ValueError(
            f"logprobs_Tk sums to a probability of {1 - tail_T.min()} at one token; is a word in it twice?"
        )
    tail_T = np.maximum(tail_T, 0) if k < vocab_size else np.zeros_like(tail_T)
    lower_T = head_T - tail_T * np.log(np.where(tail_T > 0, tail_T, 1))
    # upper - lower = m ln(V - k) >= 0; written so, rounding cannot exchange the bounds.
    return lower_T, lower_T + tail_T * tail_T.dtype.type(math.log(max(1, vocab_size - k)))


@torch.no_grad()
def token_logprobs_and_entropy(
    logits_TV: torch.Tensor,
    labels_T: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-prob of the label, entropy of the distribution) per token; float32 [T], same device.

        x_tv = logits_tv / temperature        in float32
        logprob_t = x_t[label_t] - ln sum_v exp(x_tv)
        H_t = -sum_v p_tv ln p_tv = ln s_t - sum_v e_tv z_tv / s_t; z = x - max x, e = e^z, s = sum e

    The log-probs are those of OpenRLHF's actor (float32 copy, divide, gather - logsumexp). Both
    terms of H_t are at least 0, so nothing cancels. Works on `chunk_tokens` tokens at a time (None:
    a buffer of 4 MiB on a CPU, 64 MiB elsewhere): two float32 buffers of [chunk_tokens, V], never
    one of [T, V]. The logits (any float type or device) are not changed. -inf logits count as
    probability 0; NaN logits make their own token NaN and no other. No gradient.

    ValueError: unequal shapes, temperature <= 0.
    """
    temperature = finite_value("temperature", temperature, above=0)
    if logits_TV.dim() != 2 or 0 in logits_TV.shape:
        raise ValueError(
            f"logits_TV has shape {tuple(logits_TV.shape)}; it must be [tokens, vocabulary], none of them 0"
        )
    if labels_T.shape != logits_TV.shape[:1]:
        raise ValueError(
            f"labels_T has shape {tuple(labels_T.shape)}; logits_TV has {logits_TV.shape[0]} tokens"
        )

    if chunk_tokens is None:
        chunk_tokens = buffer_tokens(logits_TV)
    dtype = torch.promote_types(logits_TV.dtype, torch.float32)
    logprobs_T = torch.empty(logits_TV.shape[0], dtype=torch.float32, device=logits_TV.device)
    entropy_T = torch.empty_like(logprobs_T)
    for start in range(0, logits_TV.shape[0], chunk_tokens):
        chunk = slice(start, start + chunk_tokens)
        x_CV = (
            logits_TV[chunk] if temperature == 1.0 else logits_TV[chunk].to(dtype) / temperature
        )
        label_C = x_CV.gather(1, labels_T[chunk, None].long()).squeeze(1).to(dtype)
        max_C1 = x_CV.amax(dim=1, keepdim=True).to(dtype)
        z_CV = (x_CV - max_C1).clamp_(min=LOG_ZERO)
        del x_CV
        e_CV = z_CV.exp()
        sum_C = e_CV.sum(dim=1)
        logprobs_T[chunk] = label_C - (sum_C.log() + max_C1.squeeze(1))
        entropy_T[chunk] = sum_C.log() - z_CV.mul_(e_CV).sum(dim=1) / sum_C
        del z_CV, e_CV  # else they stay in memory during the next chunk
    return logprobs_T, entropy_T


def buffer_tokens(logits_TV: torch.Tensor) -> int:
    """Return the tokens whose float32 logits fill a buffer of 4 MiB on a CPU, 64 MiB elsewhere; at least 1."""
    buffer_bytes = CPU_BUFFER_BYTES if logits_TV.device.type == "cpu" else DEVICE_BUFFER_BYTES
    return max(1, buffer_bytes // (4 * logits_TV.shape[1]))


def _array(name: str, values: object, *, num_dims: int) -> np.ndarray:
    """`values` as float32 or float64 numpy. ValueError when empty or of another shape."""
    if isinstance(values, torch.Tensor):
        values = (
            values.detach().to(torch.promote_types(values.dtype, torch.float32)).cpu().numpy()
        )
    try:
        array = np.asarray(values)
        if array.dtype != np.float32:
            array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a rectangular array of numbers ({error})") from None
    if array.ndim != num_dims or array.size == 0:
        raise ValueError(
            f"{name} has shape {array.shape}; it must have {num_dims} dimensions, none of them 0"
        )
    return array
