"""Log-probs of labels from hidden states, without ever holding the logits of all tokens: forward
and gradient.

Shapes: T tokens of a (packed) batch, H hidden, V vocabulary, C tokens of a chunk."""

import torch
from torch.autograd.function import FunctionCtx

from r3_openrlhf.method.core.entropy import token_logprobs_and_entropy


def chunked_logprobs(
    hidden_TH: torch.Tensor,
    weight_VH: torch.Tensor,
    labels_T: torch.Tensor,
    *,
    chunk_tokens: int,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Log-prob of the label at each token, [T], float32 (float64 for float64 input), with gradient.

        x_tv = (hidden_t . weight_v) / temperature     product in the input's type, then float32
        logprob_t = x_t[label_t] - ln sum_v exp(x_tv)
        d logprob_t / d x_tv = [v = label_t] - p_tv,          p_t = softmax(x_t)

    The product is made for `chunk_tokens` tokens at a time, and again in the backward pass: buffers
    of [C, V] and never one of [T, V]. The weight's gradient is summed over the chunks in float32
    ([V, H] once), as one product of all tokens would be. torch's own `linear_cross_entropy` in
    chunks computes the gradient of a mean or a sum in the forward pass; a policy loss weighs each
    token only later. Settings are checked where a run starts (train.logits_chunk_tokens)."""
    return _ChunkedLogprobs.apply(
        hidden_TH, weight_VH, labels_T, float(temperature), chunk_tokens
    )


@torch.no_grad()
def chunked_logprobs_and_entropy(
    hidden_TH: torch.Tensor,
    weight_VH: torch.Tensor,
    labels_T: torch.Tensor,
    *,
    chunk_tokens: int,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`core.entropy.token_logprobs_and_entropy` by chunks: log-probs, nats; float32 [T]."""
    parts = [
        token_logprobs_and_entropy(
            hidden_TH[chunk] @ weight_VH.T, labels_T[chunk], temperature=temperature
        )
        for chunk in _chunks(len(hidden_TH), chunk_tokens)
    ]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat(
        [entropy for _, entropy in parts]
    )


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_TH: torch.Tensor,
        weight_VH: torch.Tensor,
        labels_T: torch.Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> torch.Tensor:
        dtype = torch.promote_types(hidden_TH.dtype, torch.float32)
        logsumexp_T = torch.empty(len(hidden_TH), dtype=dtype, device=hidden_TH.device)
        logprobs_T = torch.empty_like(logsumexp_T)
        for chunk in _chunks(len(hidden_TH), chunk_tokens):
            x_CV = _scaled_logits(hidden_TH[chunk], weight_VH, temperature, dtype)
            logsumexp_T[chunk] = torch.logsumexp(x_CV, dim=1)
            logprobs_T[chunk] = (
                x_CV.gather(1, labels_T[chunk, None]).squeeze(1) - logsumexp_T[chunk]
            )
        ctx.save_for_backward(hidden_TH, weight_VH, labels_T, logsumexp_T)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return logprobs_T

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient_T,) = gradients
        hidden_TH, weight_VH, labels_T, logsumexp_T = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_gradient_TH = torch.empty_like(hidden_TH) if wants_hidden else None
        weight_gradient_VH = (
            torch.zeros_like(weight_VH, dtype=logsumexp_T.dtype) if wants_weight else None
        )
        for chunk in _chunks(len(hidden_TH), ctx.chunk_tokens):
            x_CV = _scaled_logits(
                hidden_TH[chunk], weight_VH, ctx.temperature, logsumexp_T.dtype
            )
            probs_CV = x_CV.sub_(logsumexp_T[chunk, None]).exp_()
            gradient_C1 = gradient_T[chunk, None] / ctx.temperature
            logit_gradient_CV = probs_CV.mul_(-gradient_C1).scatter_add_(
                1, labels_T[chunk, None], gradient_C1
            )
            logit_gradient_CV = logit_gradient_CV.to(weight_VH.dtype)
            if hidden_gradient_TH is not None:
                hidden_gradient_TH[chunk] = logit_gradient_CV @ weight_VH
            if weight_gradient_VH is not None:
                weight_gradient_VH += logit_gradient_CV.T @ hidden_TH[chunk]
        if weight_gradient_VH is not None:
            weight_gradient_VH = weight_gradient_VH.to(weight_VH.dtype)
        return hidden_gradient_TH, weight_gradient_VH, None, None, None


def _scaled_logits(
    hidden_CH: torch.Tensor, weight_VH: torch.Tensor, temperature: float, dtype: torch.dtype
) -> torch.Tensor:
    """Compute the logits over the temperature, in a new tensor that the caller may change."""
    x_CV = (hidden_CH @ weight_VH.T).to(dtype)
    return x_CV if temperature == 1.0 else x_CV.div_(temperature)


def _chunks(tokens: int, chunk_tokens: int) -> list[slice]:
    return [slice(start, start + chunk_tokens) for start in range(0, tokens, chunk_tokens)]
