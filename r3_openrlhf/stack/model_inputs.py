"""The input of a model's forward pass as models/actor.py makes it, padded or packed, and the way back to rows.

B rows, T tokens, N tokens of a pass ([B, T] flattened, or packed), K labels of a token."""

from collections.abc import Callable

import torch
from openrlhf.models.ring_attn_utils import gather_and_pad_tensor, unpad_and_slice_tensor

Restored = Callable[[torch.Tensor, int, int], torch.Tensor]


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


def places_of(
    labels: torch.Tensor, restored: Restored, batch: int, seqlen: int
) -> torch.Tensor:
    """Return which of the pass's N tokens each token of a row is, int64 [B, T]; 0 at padding."""
    order = torch.arange(labels.numel(), device=labels.device).view(labels.shape)
    return restored(order, batch, seqlen)


def labels_of_pass(
    more_BAK: torch.Tensor, places_BT: torch.Tensor, attention_mask_BT: torch.Tensor, size: int
) -> torch.Tensor:
    """Return labels of action positions in the order of the pass's tokens, [N, K]; 0 elsewhere."""
    batch, num_actions, count = more_BAK.shape
    more_BTK = more_BAK.new_zeros(batch, places_BT.shape[1], count)
    more_BTK[:, :-1][:, -num_actions:] = more_BAK
    found_NK = more_BAK.new_zeros(size, count)
    seen_BT = attention_mask_BT.bool()
    found_NK[places_BT[seen_BT]] = more_BTK[seen_BT]
    return found_NK
