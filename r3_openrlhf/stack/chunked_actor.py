"""Upstream's Actor without logits: its head returns the log-probs of the labels, computed in chunks
of tokens.

Answers models/actor.py:250-292, where training keeps a micro-batch's logits: about 10 bytes
per token and word (bfloat16, float32, gradient), 56 GB for a row of 36,864 tokens, 152k words.

The chunks are inside the head's own forward pass, so that ZeRO 3 gathers its weight once for all of
them, in either direction. B rows, T tokens, A = T - 1 action positions, H hidden, V vocabulary."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from openrlhf.models import Actor
from openrlhf.models.ring_attn_utils import gather_and_pad_tensor, unpad_and_slice_tensor

from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.stack.chunked_logprobs import chunked_logprobs, chunked_logprobs_and_entropy
from r3_openrlhf.stack.environment import config_from_environment

KEY = "train.logits_chunk_tokens"
CHECKED_TOKENS = 16
LARGEST_DIFFERENCE = 0.05  # nats; chunks round differently, other heads are off by more


class ChunkedActor(Actor):
    """Replaces `Actor` in ppo_actor.py:513 and :537 if train.logits_chunk_tokens is set.

    aside: around passes over other tokens than those that were asked for (expert_routing.py)."""

    aside: Callable[[], AbstractContextManager[None]] = nullcontext

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        chunk_tokens = config_from_environment().train.logits_chunk_tokens
        if chunk_tokens is None:
            raise ValueError(f"{KEY} is null: upstream's Actor is to be used")
        self._head = LogprobHead(self.model.get_output_embeddings(), chunk_tokens)
        self._is_checked = False

    def forward(
        self,
        sequences,
        action_mask=None,
        attention_mask=None,
        return_output=False,
        ring_attn_group=None,
        **kwargs,
    ):
        """Log-probs [B, A] as upstream's; everything that needs logits is upstream's own."""
        if (
            action_mask is None
            or kwargs.get("return_entropy")
            or getattr(self, "is_vlm", False)
        ):
            return super().forward(
                sequences,
                action_mask,
                attention_mask,
                return_output,
                ring_attn_group=ring_attn_group,
                **kwargs,
            )
        if not self._is_checked:
            self._check(
                sequences[0][attention_mask[0].bool()][None, :CHECKED_TOKENS], ring_attn_group
            )
        output, logprobs_BT, _ = self.of_every_token(
            sequences, attention_mask, ring_attn_group=ring_attn_group
        )
        logprobs_BA = logprobs_BT[:, :-1][:, -action_mask.shape[1] :] * action_mask.float()
        return (logprobs_BA, output) if return_output else logprobs_BA

    def of_every_token(
        self, sequences_BT, attention_mask_BT, *, with_entropy=False, ring_attn_group=None
    ):
        """(model's output, log-probs [B, T], entropy [B, T], nats, no gradient; or None)."""
        batch, seqlen = sequences_BT.size()
        inputs, labels, restored = model_inputs(
            self, sequences_BT, attention_mask_BT, ring_attn_group
        )
        with self._head.asked(labels, self.temperature, with_entropy=with_entropy):
            output = self.model(**inputs)
        found = [restored(values, batch, seqlen) for values in output["logits"].unbind(-1)]
        return output, found[0], found[1] if with_entropy else None

    def _check(self, ids_1T, ring_attn_group) -> None:
        """Refuse a head that is more than a product (cap, scale): chunks would change it."""
        mask = torch.ones_like(ids_1T)
        with torch.no_grad(), self.aside():
            expected = super().forward(
                ids_1T, mask[:, 1:], mask, ring_attn_group=ring_attn_group
            )
            _, found, _ = self.of_every_token(ids_1T, mask, ring_attn_group=ring_attn_group)
        difference = (
            (found[:, :-1] - expected).abs().max().item() if ids_1T.shape[1] > 1 else 0.0
        )
        if not difference <= LARGEST_DIFFERENCE:
            raise TrainingStopped(
                f"{KEY} is set, but this model's log-probs are not those of its head's product: they differ by {difference:.3f} "
                f"nats; use {KEY}=null"
            )
        self._is_checked = True

    @property
    def head_seconds(self) -> float:
        """The statistics of the last pass with entropy."""
        return self._head.seconds


class LogprobHead:
    """Makes a model's last layer return log-probs [B, T, 1], or also entropy [B, T, 2]."""

    def __init__(self, layer: torch.nn.Module, chunk_tokens: int) -> None:
        if not isinstance(layer, torch.nn.Linear) or layer.bias is not None:
            raise TrainingStopped(
                f"{KEY} is {chunk_tokens}, but this model's last layer is a {type(layer).__name__} that chunks are not made for; "
                f"use {KEY}=null"
            )
        self._layer, self._chunk_tokens = layer, chunk_tokens
        # labels, temperature, entropy
        self._wanted: tuple[torch.Tensor, float, bool] | None = None
        self._logits = layer.forward
        self.seconds = 0.0
        layer.forward = self._forward

    @contextmanager
    def asked(
        self, labels: torch.Tensor, temperature: float, *, with_entropy: bool
    ) -> Iterator[None]:
        """`labels` is [B, T] like the tokens of the model's next forward pass."""
        self._wanted = (labels, temperature, with_entropy)
        try:
            yield
        finally:
            self._wanted = None

    def _forward(self, hidden_BTH: torch.Tensor) -> torch.Tensor:
        if self._wanted is None:
            return self._logits(hidden_BTH)
        labels, temperature, with_entropy = self._wanted
        arguments = (hidden_BTH.flatten(0, 1), self._layer.weight, labels.flatten())
        settings: dict[str, Any] = {
            "chunk_tokens": self._chunk_tokens,
            "temperature": temperature,
        }
        if not with_entropy:
            return chunked_logprobs(*arguments, **settings).view(*labels.shape, 1)
        torch.cuda.synchronize()
        started = time.perf_counter()
        found = torch.stack(chunked_logprobs_and_entropy(*arguments, **settings), -1).view(
            *labels.shape, 2
        )
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - started
        return found


def model_inputs(actor, sequences_BT, attention_mask_BT, ring_attn_group):
    """Return models/actor.py:219-249's input, each token's label, and the way back to [B, T].

    No cache: Transformers 5.15 looks for packed rows in `position_ids` only where a pass makes none
    (masking_utils.py), so that rows of a pass with one see each other. Upstream says so in
    `config.use_cache`, which a model with a configuration of its own for texts does not read."""
    if actor.packing_samples:
        tokens, position_ids, labels, pad_length, indices = unpad_and_slice_tensor(
            sequences_BT, attention_mask_BT, ring_attn_group
        )
        inputs = {
            "input_ids": tokens,
            "attention_mask": None,
            "position_ids": position_ids,
            "use_cache": False,
        }
        return (
            inputs,
            labels,
            lambda values, batch, seqlen: gather_and_pad_tensor(
                values, ring_attn_group, pad_length, indices, batch, seqlen
            ),
        )
    position_ids = attention_mask_BT.long().cumsum(-1) - 1
    position_ids.masked_fill_(attention_mask_BT == 0, 1)
    inputs = {
        "input_ids": sequences_BT,
        "attention_mask": attention_mask_BT,
        "position_ids": position_ids,
        "use_cache": False,
    }
    return inputs, torch.roll(sequences_BT, shifts=-1, dims=1), lambda values, *_: values
