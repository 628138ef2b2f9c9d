"""Log-probs of labels from hidden states, without ever holding the logits of all tokens: forward
and gradient.

Shapes: T tokens of a (packed) batch, K labels of a token, H hidden, V vocabulary, C tokens of a chunk."""

import torch
from torch.autograd.function import FunctionCtx

from r3_openrlhf.method.core.entropy import token_logprobs_and_entropy
from r3_openrlhf.stack.label_logprobs import gradient_of_logits


def chunked_logprobs(
    hidden_TH: torch.Tensor,
    weight_VH: torch.Tensor,
    labels: torch.Tensor,
    *,
    chunk_tokens: int,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Log-prob of the label at each token, float32 (float64 for float64 input), with gradient.

        x_tv = (hidden_t . weight_v) / temperature     product in the input's type, then float32
        logprob_tk = x_t[label_tk] - ln sum_v exp(x_tv)
        d logprob_tk / d x_tv = [v = label_tk] - p_tv,          p_t = softmax(x_t)

    labels: [T], or [T, K] for K labels a token, which may repeat; the result has their shape.

    The product is made for `chunk_tokens` tokens at a time, and again in the backward pass: buffers
    of [C, V] and never one of [T, V]. The weight's gradient is summed over the chunks in float32
    ([V, H] once), as one product of all tokens would be. torch's own `linear_cross_entropy` in
    chunks computes the gradient of a mean or a sum in the forward pass; a policy loss weighs each
    token only later. Settings are checked where a run starts (train.logits_chunk_tokens)."""
    labels_TK = labels[:, None] if labels.dim() == 1 else labels
    logprobs_TK = _ChunkedLogprobs.apply(
        hidden_TH, weight_VH, labels_TK.long(), float(temperature), chunk_tokens
    )
    return logprobs_TK.view(labels.shape)


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
        labels_TK: torch.Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> torch.Tensor:
        dtype = torch.promote_types(hidden_TH.dtype, torch.float32)
        logsumexp_T = torch.empty(len(hidden_TH), dtype=dtype, device=hidden_TH.device)
        logprobs_TK = torch.empty(labels_TK.shape, dtype=dtype, device=hidden_TH.device)
        for chunk in _chunks(len(hidden_TH), chunk_tokens):
            x_CV = _scaled_logits(hidden_TH[chunk], weight_VH, temperature, dtype)
            logsumexp_T[chunk] = torch.logsumexp(x_CV, dim=1)
            logprobs_TK[chunk] = x_CV.gather(1, labels_TK[chunk]) - logsumexp_T[chunk, None]
        ctx.save_for_backward(hidden_TH, weight_VH, labels_TK, logsumexp_T)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return logprobs_TK

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient_TK,) = gradients
        hidden_TH, weight_VH, labels_TK, logsumexp_T = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_gradient_TH = torch.empty_like(hidden_TH) if wants_hidden else None
        weight_gradient_VH = (
            torch.zeros_like(weight_VH, dtype=logsumexp_T.dtype) if wants_weight else None
        )
        for chunk in _chunks(len(hidden_TH), ctx.chunk_tokens):
            x_CV = _scaled_logits(
                hidden_TH[chunk], weight_VH, ctx.temperature, logsumexp_T.dtype
            )
            logit_gradient_CV = gradient_of_logits(
                x_CV,
                logsumexp_T[chunk],
                labels_TK[chunk],
                gradient_TK[chunk] / ctx.temperature,
            ).to(weight_VH.dtype)
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
