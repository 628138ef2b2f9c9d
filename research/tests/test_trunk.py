"""Sampling and update with the kept work of the first layers, against the whole model."""

import copy

import numpy as np
import pytest
import torch

from research.sampling import sample
from research.tests.test_update import rows_of
from research.trunk import Trunk, num_frozen_layers
from research.update import accumulate_gradient, make_optimizer, step

PROMPTS = [[5, 9, 11], [7], [12, 13, 14, 15, 16, 17], [8, 9, 10]]
EOS = 40


@pytest.fixture
def half(model):
    """The model, the second of whose two layers is trained."""
    half = copy.deepcopy(model)
    for name, parameter in half.named_parameters():
        parameter.requires_grad_(name.startswith("model.layers.1."))
    return half


def with_trunk(model):
    model = copy.deepcopy(model)
    model.trunk = Trunk(model, 1)
    return model


def draw(model, limit=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return sample(
        model,
        PROMPTS,
        n=30,
        max_new_tokens=limit,
        temperature=0.7,
        eos=EOS,
        generator=generator,
    )


def rows_with_one_prompt():
    rows = rows_of(4, count=12)
    for row in rows[::2]:  # they share their beginnings
        row.prompt_ids, row.response_ids = (
            rows[0].prompt_ids,
            np.array([*rows[0].response_ids[:3], row.response_ids[0]]),
        )
    return rows


def test_it_samples_and_learns_as_the_whole_model_does(half):
    """Over several steps: what is kept stays true when the other layers change."""
    kept = with_trunk(half)
    optimizer = make_optimizer(half, learning_rate=1e-2)
    for seed in range(3):
        pairs = list(zip(*(draw(each, seed=seed) for each in (half, kept)), strict=True))
        alike = [
            pair
            for pair in pairs
            if pair[0].response_ids.tolist() == pair[1].response_ids.tolist()
        ]
        assert len(alike) >= len(pairs) - 2  # a number may fall between the two sums' roundings
        for plain, quick in alike:
            np.testing.assert_allclose(plain.logprobs, quick.logprobs, atol=1e-4)
        rows = rows_with_one_prompt() if seed == 1 else rows_of(seed, count=9)
        found = [
            accumulate_gradient(each, rows, temperature=0.8, micro_batch_size=5)
            for each in (half, kept)
        ]
        assert found[0].loss == pytest.approx(found[1].loss, abs=1e-5)
        for one, other in zip(found[0].logprobs, found[1].logprobs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        for one, other in zip(
            half.model.layers[1].parameters(), kept.model.layers[1].parameters(), strict=True
        ):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-6)
        step(half, optimizer, max_grad_norm=1.0)
        kept.zero_grad(set_to_none=True)
        kept.load_state_dict(half.state_dict())


def test_no_beginning_goes_through_the_first_layers_twice(half):
    kept, seen = with_trunk(half), []
    kept.model.layers[0].register_forward_pre_hook(
        lambda _layer, given: seen.append(given[0].shape[:2].numel())
    )
    found = draw(kept)
    said = {
        (one.prompt, *one.response_ids[:end].tolist())
        for one in found
        for end in range(1, len(one.response_ids))
    }
    # a beginning of n tokens behind a prompt that is known takes n places
    assert sum(seen) == sum(map(len, PROMPTS)) + sum(len(one) - 1 for one in said)
    before = len(seen)
    assert [one.response_ids.tolist() for one in draw(kept)] == [
        one.response_ids.tolist() for one in found
    ]
    assert len(seen) == before


def test_what_is_kept_is_bounded(half, monkeypatch):
    monkeypatch.setattr("research.trunk.MOST_KEPT", 8)
    kept = with_trunk(half)
    for seed in range(3):
        found, expected = (
            [one.logprobs[0] for one in draw(each, seed=seed)] for each in (kept, half)
        )
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert sum(len(known.hidden_TH) for known in kept.trunk._prompts.values()) <= sum(
            map(len, PROMPTS)
        )


@pytest.mark.parametrize(
    ("trained", "frozen"),
    [
        (("model.layers.1.",), 1),
        (("model.layers.0.mlp",), 0),
        (("model.norm",), 2),
        (("model.embed",), 0),
    ],
)
def test_the_first_layers_that_no_run_changes(model, trained, frozen):
    policy = copy.deepcopy(model)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name.startswith(trained))
    assert num_frozen_layers(policy) == frozen
