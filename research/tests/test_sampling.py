"""What the sampler reports about a response is what a plain forward pass over prompt + response says."""

import numpy as np
import pytest
import torch

from research.sampling import sample

PROMPTS = [[5, 9, 11], [7], [12, 13, 14, 15, 16, 17]]
EOS = 40


def draw(model, *, n=6, seed=0, limit=20, temperature=0.7, **options):
    generator = torch.Generator().manual_seed(seed)
    return sample(
        model,
        PROMPTS,
        n=n,
        max_new_tokens=limit,
        temperature=temperature,
        eos=EOS,
        generator=generator,
        **options,
    )


@pytest.mark.parametrize("max_rows", [512, 6])
def test_logprobs_and_entropies_are_those_of_a_forward_pass(model, max_rows):
    # an end token that is likely: rows leave the batch at different times
    model.lm_head.weight.data[EOS] *= 3
    try:
        found = draw(model, max_rows=max_rows)
        assert len({len(one.response_ids) for one in found}) > 3
        for place, one in enumerate(found):
            assert one.prompt == place // 6
            ids = torch.tensor([PROMPTS[one.prompt] + one.response_ids.tolist()])
            logp = (
                (model(ids).logits[0, len(PROMPTS[one.prompt]) - 1 : -1] / 0.7)
                .log_softmax(-1)
                .detach()
            )
            np.testing.assert_allclose(
                one.logprobs,
                logp.gather(1, torch.tensor(one.response_ids).long()[:, None])[:, 0],
                atol=1e-4,
            )
            np.testing.assert_allclose(one.entropies, -(logp.exp() * logp).sum(-1), atol=1e-4)
            assert one.truncated == (one.response_ids[-1] != EOS)
            assert EOS not in one.response_ids[:-1]
            assert len(one.response_ids) == 20 or not one.truncated
    finally:
        model.lm_head.weight.data[EOS] /= 3


def test_rows_that_have_said_the_same_are_one_row_of_the_model(model):
    seen = []
    hook = model.register_forward_hook(lambda _m, given, _out: seen.append(len(given[0])))
    try:
        found = draw(model, n=50, limit=5, temperature=0.1)
    finally:
        hook.remove()
    said = [(one.prompt, *one.response_ids.tolist()) for one in found]
    assert (
        seen == [3, *(len({one[: t + 1] for one in said}) for t in range(1, 5))]
        and 6 < seen[-1] < 75
    )
    for one in found:
        ids = torch.tensor([PROMPTS[one.prompt] + one.response_ids.tolist()])
        logp = (
            (model(ids).logits[0, len(PROMPTS[one.prompt]) - 1 : -1] / 0.1)
            .log_softmax(-1)
            .detach()
        )
        np.testing.assert_allclose(
            one.logprobs,
            logp.gather(1, torch.tensor(one.response_ids).long()[:, None])[:, 0],
            atol=1e-3,
        )


def test_tokens_are_drawn_with_their_probability(model):
    found = sample(
        model,
        [PROMPTS[0]],
        n=4000,
        max_new_tokens=1,
        temperature=1.0,
        eos=EOS,
        generator=torch.Generator().manual_seed(1),
        max_rows=4000,
    )
    p = model(torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1).detach().numpy()
    counts = np.bincount([one.response_ids[0] for one in found], minlength=len(p))
    likely = p > 0.02
    assert likely.sum() > 3
    assert (np.abs(counts - 4000 * p)[likely] < 4.5 * np.sqrt(4000 * p * (1 - p))[likely]).all()


def test_the_generator_decides(model):
    texts = [
        [one.response_ids.tolist() for one in draw(model, seed=seed)] for seed in (0, 0, 1)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("prompts", "n", "limit"), [([], 1, 1), ([[]], 1, 1), ([[1]], 0, 1), ([[1]], 1, 0)]
)
def test_nothing_to_sample_is_refused(model, prompts, n, limit):
    with pytest.raises(ValueError, match="sampling needs"):
        sample(
            model,
            prompts,
            n=n,
            max_new_tokens=limit,
            temperature=1.0,
            eos=EOS,
            generator=torch.Generator(),
        )
