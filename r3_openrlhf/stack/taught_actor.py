"""Upstream's Actor that also returns log-probs of other labels than the sampled tokens, with gradient.

A loss on logits (method/core/distill.py) reads them. Of the pass autograd keeps the model's own logits alone,
and their gradient is made once, in their type: 4 bytes a token and word in bfloat16. Upstream's pass takes 10
(models/actor.py:267: a float32 copy, its gradient). With entropy, or of a model for images, it stays upstream's.

B rows, T tokens, A = T - 1 action positions, K labels of a token, N tokens of a pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from openrlhf.models import Actor

from r3_openrlhf.stack.label_logprobs import logprobs_of_labels
from r3_openrlhf.stack.model_inputs import labels_of_pass, model_inputs, places_of


class TaughtActor(Actor):
    """Replaces `Actor` in ppo_actor.py:513 and :537 if distill.loss compares logits.

    Attributes:
        more_labels: of the next pass, integer [B, A, K]; None: none.
        more_logprobs: of those labels in the last pass, float32 [B, A, K]."""

    more_labels: torch.Tensor | None = None
    more_logprobs: torch.Tensor | None = None

    @contextmanager
    def labelled(self, labels_BAK: torch.Tensor) -> Iterator[None]:
        """Compute these labels' log-probs in each pass of the block."""
        self.more_labels = labels_BAK
        try:
            yield
        finally:
            self.more_labels = self.more_logprobs = None

    def forward(
        self,
        sequences,
        action_mask=None,
        attention_mask=None,
        return_output=False,
        ring_attn_group=None,
        **kwargs,
    ):
        """Upstream's pass (models/actor.py:221); sets `more_logprobs` where more_labels are set."""
        if self.more_labels is None or action_mask is None:
            return super().forward(
                sequences,
                action_mask,
                attention_mask,
                return_output,
                ring_attn_group=ring_attn_group,
                **kwargs,
            )
        if kwargs.get("return_entropy") or getattr(self, "is_vlm", False):
            logprobs_BA, output = super().forward(
                sequences,
                action_mask,
                attention_mask,
                return_output=True,
                ring_attn_group=ring_attn_group,
                **kwargs,
            )
            of_labels = self._of_labels(output["logits"], sequences, attention_mask)
            self.more_logprobs = of_labels[..., 1:]
            return (logprobs_BA, output) if return_output else logprobs_BA
        inputs, *_ = model_inputs(self, sequences, attention_mask, None)
        output = self.model(**inputs)
        of_labels = self._of_labels(
            output["logits"], sequences, attention_mask, temperature=self.temperature
        )
        self.more_logprobs = of_labels[..., 1:]
        logprobs_BA = of_labels[..., 0] * action_mask.float()
        return (logprobs_BA, output) if return_output else logprobs_BA

    def _of_labels(
        self, logits, sequences_BT, attention_mask_BT, *, temperature: float = 1.0
    ) -> torch.Tensor:
        """Read the log-probs of the next token and of more_labels off logits [1 or B, N or T, V].

        Returns float32 [B, A, 1 + K]. temperature: of logits that are not scaled yet."""
        assert self.more_labels is not None
        batch, seqlen = sequences_BT.size()
        _, labels, restored = model_inputs(self, sequences_BT, attention_mask_BT, None)
        places_BT = places_of(labels, restored, batch, seqlen)
        more_NK = labels_of_pass(self.more_labels, places_BT, attention_mask_BT, labels.numel())
        labels_NK = torch.cat([labels.view(-1, 1), more_NK], 1)
        logprobs_NK = logprobs_of_labels(
            logits.flatten(0, 1), labels_NK, temperature=temperature
        )
        num_actions = self.more_labels.shape[1]
        return logprobs_NK[places_BT[:, :-1][:, -num_actions:]]
