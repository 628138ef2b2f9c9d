"""The decoder for a Qwen2 against Transformers' own forward pass, through prompts of several lengths and rows that leave."""

import copy

import pytest
import torch

from r3_openrlhf.lab.decoding import Qwen2Decoder, TransformersDecoder, decoder_of

PROMPTS = [[5, 9, 11], [7], [12, 13, 14, 15, 16, 17]]


def padded():
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    return ids, mask


@torch.inference_mode()
def walk(decoder):
    """Logits of every step; the rows that stay are always the same ones."""
    draw = torch.Generator().manual_seed(0)
    found = [decoder.start(*padded(), n=2, room=9)]
    num_rows = 6
    for t in range(9):
        if t in (3, 6):
            keep = torch.randperm(num_rows, generator=draw)[: num_rows - 2].sort().values
            decoder.keep(keep)
            num_rows -= 2
        found.append(decoder.advance(torch.randint(1, 60, (num_rows,), generator=draw)))
    return found


def test_both_decoders_say_the_same(model):
    ours, theirs = walk(Qwen2Decoder(model)), walk(TransformersDecoder(model))
    assert [len(logits) for logits in ours] == [6, 6, 6, 6, 4, 4, 4, 2, 2, 2]
    assert max(logits.abs().max() for logits in theirs) > 3  # far from uniform: an error would be seen
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_a_decoder_sees_the_weights_as_they_are(model):
    """Made after an update, it is of the updated model."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.model.layers[0].self_attn.k_proj.weight *= 3
    ours, theirs, before = walk(Qwen2Decoder(changed)), walk(TransformersDecoder(changed)), walk(Qwen2Decoder(model))
    torch.testing.assert_close(ours[-1], theirs[-1], rtol=1e-4, atol=1e-4)
    assert (ours[-1] - before[-1]).abs().max() > 0.01


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda model: model, Qwen2Decoder),
        (lambda model: model.to(torch.bfloat16), TransformersDecoder),
        (lambda model: setattr(model.config, "hidden_act", "gelu") or model, TransformersDecoder),
        (lambda model: model.model, TransformersDecoder),
    ],
)
def test_another_model_is_left_to_transformers(model, change, kind):
    assert type(decoder_of(change(copy.deepcopy(model)))) is kind
