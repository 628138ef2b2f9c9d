"""One token more for every row, behind a cache of what was there before: by Transformers, and for a Qwen2 by plain torch.

Transformers' forward pass spends more time around a model of a million parameters than in it: masks are made anew, and
the cache is copied, for every token. `Qwen2Decoder` computes the same numbers up to rounding
(tests/lab/test_decoding.py) with a cache that is written in place.

P prompts, n responses to each, R = P * n rows, T tokens so far, V vocabulary, H hidden size; heads: Q of queries, K of
keys and values, D entries each.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import DynamicCache, PreTrainedModel, Qwen2ForCausalLM


class Decoder(Protocol):
    """`start` once, then `advance` and `keep` in any order."""

    def start(self, ids_PT: Tensor, mask_PT: Tensor, *, n: int, room: int) -> Tensor:
        """Prompts, padded on the left where the mask is 0 -> logits [R, V] behind each, row by row n times in a row.

        room: `advance` is called so many times at most.
        """
        ...

    def advance(self, token_R: Tensor) -> Tensor:
        """Logits [R, V] behind one more token of each row."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Only the rows at these places stay, in this order."""
        ...


def decoder_of(model: PreTrainedModel) -> Decoder:
    """The faster one where the model is of its kind."""
    config = model.config
    is_plain_qwen2 = (
        isinstance(model, Qwen2ForCausalLM)
        and config.hidden_act == "silu"
        and set(config.layer_types) == {"full_attention"}
        and model.dtype == torch.float32
    )
    return Qwen2Decoder(model) if is_plain_qwen2 else TransformersDecoder(model)


class TransformersDecoder:
    """Any causal model, by its own forward pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def start(self, ids_PT: Tensor, mask_PT: Tensor, *, n: int, room: int) -> Tensor:  # noqa: ARG002
        """See Decoder; the cache grows as it must."""
        self._cache = DynamicCache(config=self._model.config)
        logits_PV = _logits_behind_prompts(self._model, ids_PT, mask_PT, self._cache)
        self._cache.batch_repeat_interleave(n)
        self._mask_RT = mask_PT.repeat_interleave(n, 0)
        self._position_R = self._mask_RT.sum(1)
        return logits_PV.repeat_interleave(n, 0)

    def advance(self, token_R: Tensor) -> Tensor:
        """See Decoder."""
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
        """See Decoder."""
        self._cache.batch_select_indices(rows)
        self._mask_RT, self._position_R = self._mask_RT[rows], self._position_R[rows]


class Qwen2Decoder:
    """A Qwen2 in float32: modeling_qwen2.py of Transformers, for one new token a row."""

    def __init__(self, model: Qwen2ForCausalLM) -> None:
        config = model.config
        self._model = model
        self._eps = config.rms_norm_eps
        self._D = model.model.layers[0].self_attn.head_dim
        self._K = config.num_key_value_heads
        self._Q = config.num_attention_heads
        self._layers = []
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            self._layers.append(
                (
                    layer.input_layernorm.weight,
                    torch.cat([part.weight for part in projections]),
                    torch.cat([part.bias for part in projections]),
                    attention.o_proj.weight,
                    layer.post_attention_layernorm.weight,
                    torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
                    mlp.down_proj.weight,
                )
            )

    def start(self, ids_PT: Tensor, mask_PT: Tensor, *, n: int, room: int) -> Tensor:
        """See Decoder."""
        cache = DynamicCache(config=self._model.config)
        logits_PV = _logits_behind_prompts(self._model, ids_PT, mask_PT, cache)
        num_rows, self._T = len(ids_PT) * n, ids_PT.shape[1]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        for layer in cache.layers:
            for stored, part in ((self._keys, layer.keys), (self._values, layer.values)):
                whole = torch.empty(num_rows, self._K, self._T + room, self._D)
                whole[:, :, : self._T] = part.repeat_interleave(n, 0)
                stored.append(whole)
        self._bias_R11T = torch.zeros(num_rows, 1, 1, self._T + room)
        self._bias_R11T[:, 0, 0, : self._T].masked_fill_(mask_PT.repeat_interleave(n, 0) == 0, float("-inf"))
        self._position_R = mask_PT.sum(1).repeat_interleave(n, 0)
        return logits_PV.repeat_interleave(n, 0)

    def advance(self, token_R: Tensor) -> Tensor:
        """See Decoder."""
        body, D, K, Q = self._model.model, self._D, self._K, self._Q
        num_rows, t = len(token_R), self._T
        hidden_RH = body.embed_tokens.weight[token_R]
        cos_R1D, sin_R1D = body.rotary_emb(hidden_RH, self._position_R[:, None])
        cos_R1D, sin_R1D = cos_R1D.view(num_rows, 1, D), sin_R1D.view(num_rows, 1, D)
        bias = self._bias_R11T[..., : t + 1]
        for i, (norm, qkv, qkv_bias, out, norm_mlp, gate_up, down) in enumerate(self._layers):
            normed = rms_norm(hidden_RH, norm.shape, norm, self._eps)
            heads = linear(normed, qkv, qkv_bias).view(num_rows, Q + 2 * K, D)
            turned, value = heads[:, : Q + K], heads[:, Q + K :]
            half = torch.cat([-turned[..., D // 2 :], turned[..., : D // 2]], -1)
            turned = turned * cos_R1D + half * sin_R1D
            self._keys[i][:, :, t], self._values[i][:, :, t] = turned[:, Q:], value
            # the Q / K query heads that share a key head are rows of one small matrix
            query = turned[:, :Q].reshape(num_rows, K, Q // K, D)
            found = scaled_dot_product_attention(
                query, self._keys[i][:, :, : t + 1], self._values[i][:, :, : t + 1], attn_mask=bias
            )
            hidden_RH = hidden_RH + linear(found.reshape(num_rows, Q * D), out)
            gate, up = linear(rms_norm(hidden_RH, norm_mlp.shape, norm_mlp, self._eps), gate_up).chunk(2, -1)
            hidden_RH = hidden_RH + linear(silu(gate) * up, down)
        self._T += 1
        self._position_R = self._position_R + 1
        final = body.norm.weight
        return linear(rms_norm(hidden_RH, final.shape, final, self._eps), self._model.lm_head.weight)

    def keep(self, rows: Tensor) -> None:
        """See Decoder."""
        self._keys = [part[rows] for part in self._keys]
        self._values = [part[rows] for part in self._values]
        self._bias_R11T, self._position_R = self._bias_R11T[rows], self._position_R[rows]


def _logits_behind_prompts(model, ids_PT: Tensor, mask_PT: Tensor, cache: DynamicCache) -> Tensor:
    """[P, V]; fills the cache."""
    positions_PT = (mask_PT.cumsum(1) - 1).clamp(min=0)
    output = model(ids_PT, attention_mask=mask_PT, position_ids=positions_PT, past_key_values=cache, logits_to_keep=1)
    return output.logits[:, -1]
