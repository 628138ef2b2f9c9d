"""Upstream's Actor without logits: its head returns the log-probs of the labels, computed in chunks
of tokens.

Answers models/actor.py:250-292, where training keeps a micro-batch's logits: about 10 bytes
per token and word (bfloat16, float32, gradient), 56 GB for a row of 36,864 tokens, 152k words.

The chunks are inside the head's own forward pass, so that ZeRO 3 gathers its weight once for all of
them, in either direction. B rows, T tokens, A = T - 1 action positions, K more labels of a token, H hidden, V vocabulary."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from openrlhf.models import Actor

from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.stack.chunked_logprobs import chunked_logprobs, chunked_logprobs_and_entropy
from r3_openrlhf.stack.environment import config_from_environment
from r3_openrlhf.stack.label_logprobs import LogitsOf
from r3_openrlhf.stack.model_inputs import labels_of_pass, model_inputs, places_of
from r3_openrlhf.stack.taught_actor import TaughtActor

KEY = "train.logits_chunk_tokens"
CHECKED_TOKENS = 16
LARGEST_DIFFERENCE = 0.05  # nats; chunks round differently, other heads are off by more


class ChunkedActor(TaughtActor):
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
            sequences,
            attention_mask,
            more_labels_BAK=self.more_labels,
            ring_attn_group=ring_attn_group,
        )
        logprobs_BA = logprobs_BT[:, :-1][:, -action_mask.shape[1] :] * action_mask.float()
        return (logprobs_BA, output) if return_output else logprobs_BA

    def of_every_token(
        self,
        sequences_BT,
        attention_mask_BT,
        *,
        with_entropy=False,
        more_labels_BAK=None,
        read: Callable[[LogitsOf, torch.Tensor], None] | None = None,
        ring_attn_group=None,
    ):
        """(model's output, log-probs [B, T], entropy [B, T], nats, no gradient; or None).

        Args:
            more_labels_BAK: their log-probs become `more_logprobs`, with gradient.
            read: called inside the pass with its logits and the places [B, T] of the rows' tokens there."""
        batch, seqlen = sequences_BT.size()
        inputs, labels, restored = model_inputs(
            self, sequences_BT, attention_mask_BT, ring_attn_group
        )
        places_BT = places_of(labels, restored, batch, seqlen)
        asked = AskedOfHead(labels[..., None], self.temperature, with_entropy)
        if more_labels_BAK is not None:
            more_NK = labels_of_pass(
                more_labels_BAK, places_BT, attention_mask_BT, labels.numel()
            )
            asked.labels = torch.cat(
                [asked.labels, more_NK.view(*labels.shape, more_NK.shape[1])], -1
            )
        if read is not None:
            asked.read = lambda logits_of: read(logits_of, places_BT)
        with self._head.answering(asked):
            output = self.model(**inputs)
        if more_labels_BAK is not None:
            of_labels_NK = output["logits"].flatten(0, 1)
            num_actions = more_labels_BAK.shape[1]
            self.more_logprobs = of_labels_NK[places_BT[:, :-1][:, -num_actions:]][..., 1:]
            return output, restored(output["logits"][..., 0], batch, seqlen), None
        found = [restored(values, batch, seqlen) for values in output["logits"].unbind(-1)]
        return output, found[0], found[1] if with_entropy else None

    def _check(self, ids_1T, ring_attn_group) -> None:
        """Refuse a head that is more than a product (cap, scale): chunks would change it."""
        mask = torch.ones_like(ids_1T)
        with torch.no_grad(), self.aside():
            expected = Actor.forward(
                self, ids_1T, mask[:, 1:], mask, ring_attn_group=ring_attn_group
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


@dataclass
class AskedOfHead:
    """What the head computes in the next pass.

    Attributes:
        labels: like the tokens of the pass, with K labels each: [B, T, K].
        read: called with the logits of the pass."""

    labels: torch.Tensor
    temperature: float
    with_entropy: bool
    read: Callable[[LogitsOf], None] | None = None


class LogprobHead:
    """Makes a model's last layer return log-probs [B, T, K], or one and the entropy [B, T, 2]."""

    def __init__(self, layer: torch.nn.Module, chunk_tokens: int) -> None:
        if not isinstance(layer, torch.nn.Linear) or layer.bias is not None:
            raise TrainingStopped(
                f"{KEY} is {chunk_tokens}, but this model's last layer is a {type(layer).__name__} that chunks are not made for; "
                f"use {KEY}=null"
            )
        self._layer, self._chunk_tokens = layer, chunk_tokens
        self._asked: AskedOfHead | None = None
        self._logits = layer.forward
        self.seconds = 0.0
        layer.forward = self._forward

    @contextmanager
    def answering(self, asked: AskedOfHead) -> Iterator[None]:
        """Return log-probs in place of logits in the model's next forward pass."""
        self._asked = asked
        try:
            yield
        finally:
            self._asked = None

    def _forward(self, hidden_BTH: torch.Tensor) -> torch.Tensor:
        asked = self._asked
        if asked is None:
            return self._logits(hidden_BTH)
        hidden_NH, weight_VH = hidden_BTH.flatten(0, 1), self._layer.weight
        if asked.read is not None:
            asked.read(lambda places_C: hidden_NH[places_C] @ weight_VH.T)
        settings: dict[str, Any] = {
            "chunk_tokens": self._chunk_tokens,
            "temperature": asked.temperature,
        }
        if not asked.with_entropy:
            labels_NK = asked.labels.flatten(0, 1)
            return chunked_logprobs(hidden_NH, weight_VH, labels_NK, **settings).view(
                asked.labels.shape
            )
        labels_BT = asked.labels[..., 0]
        torch.cuda.synchronize()
        started = time.perf_counter()
        found = torch.stack(
            chunked_logprobs_and_entropy(hidden_NH, weight_VH, labels_BT.flatten(), **settings),
            -1,
        ).view(*labels_BT.shape, 2)
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - started
        return found
