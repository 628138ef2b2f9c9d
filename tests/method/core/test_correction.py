"""The correction for the gap between sampler and trainer: by hand, as OpenRLHF's own, and its laws."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.config.idle_rows import is_of_tokens
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.config.sampling_and_training import CorrectionConfig
from r3_openrlhf.method.core.losses import LOSSES, LossSettings
from r3_openrlhf.method.errors import ConfigError

OF_TOKENS = ("ppo", "cispo", "sapo", "gpg", "exgrpo", "luffy")
OF_RESPONSES = ("gspo", "gmpo")
NEEDS = {"exgrpo": ["replay.old_logprobs=behaviour"]}
BANDS = {
    "ratio": st.builds(
        lambda low, high: {"low": low, "high": high}, st.floats(0, 1), st.floats(1, 50)
    ),
    "binary_kl": st.builds(lambda high: {"high": high}, st.floats(1e-6, 5)),
    "tv": st.builds(lambda high: {"high": high}, st.floats(1e-6, 1)),
}
SETTINGS = st.sampled_from(
    [("tis", "ratio")]
    + [(method, measure) for method in ("icepop", "sequence") for measure in BANDS]
).flatmap(
    lambda pair: BANDS[pair[1]].map(
        lambda band: CorrectionConfig(method=pair[0], measure=pair[1], **band)
    )
)


def logs(*probs):
    return torch.tensor([probs]).log()


@pytest.mark.parametrize(
    ("settings", "weights", "outside"),
    [
        # pi_trainer / pi_sampler is 2, 1 and 1/4
        ({"method": "tis"}, [2.0, 1.0, 0.25], [False, False, False]),
        ({"method": "tis", "high": 1.5}, [1.5, 1.0, 0.25], [True, False, False]),
        ({"method": "tis", "low": 0.5}, [2.0, 1.0, 0.5], [False, False, True]),
        ({"method": "icepop"}, [2.0, 1.0, 0.0], [False, False, True]),
        ({"method": "icepop", "high": 1.5}, [0.0, 1.0, 0.0], [True, False, True]),
        # the geometric mean of all three is 0.79, which drops or keeps all of them with their own weights
        ({"method": "sequence"}, [2.0, 1.0, 0.25], [False]),
        ({"method": "sequence", "low": 0.8}, [0.0, 0.0, 0.0], [True]),
        # |p - q| is 0.2, 0 and 0.3
        ({"method": "icepop", "measure": "tv", "high": 0.25}, [2.0, 1.0, 0.0], [0, 0, 1]),
        ({"method": "sequence", "measure": "tv", "high": 0.16}, [0.0] * 3, [True]),
        ({"method": "sequence", "measure": "tv", "high": 0.17}, [2.0, 1.0, 0.25], [False]),
        # .4 ln(.4/.1) + .6 ln(.6/.9) = .3112; .2 ln(.2/.4) + .8 ln(.8/.6) = .0915
        ({"method": "icepop", "measure": "binary_kl", "high": 0.2}, [2, 1, 0], [0, 0, 1]),
        ({"method": "icepop", "measure": "binary_kl", "high": 0.09}, [0, 1, 0], [1, 0, 1]),
    ],
)
def test_weights_by_hand(settings, weights, outside):
    correction = CorrectionConfig(**settings).resolved
    found, dropped = correction.weights(
        logs(0.4, 0.5, 0.1), logs(0.2, 0.5, 0.4), torch.ones(1, 3)
    )
    assert found[0].tolist() == pytest.approx(weights)
    assert dropped[0].tolist() == outside


def test_tokens_that_nobody_sampled_count_nothing_in_the_mean_of_a_response():
    correction = CorrectionConfig(method="sequence").resolved
    trainer, sampler = logs(0.4, 1.0, 1.0), logs(0.2, 1e-9, 1e-9)
    found, dropped = correction.weights(trainer, sampler, torch.tensor([[1.0, 0.0, 0.0]]))
    assert found[0, 0].item() == pytest.approx(2.0) and not dropped.any()


@given(SETTINGS, st.lists(st.floats(-30, 0), min_size=1, max_size=8), st.data())
def test_a_recalled_row_has_weight_exactly_1_in_every_mode(settings, logprobs, data):
    """Its two log-probs are one tensor (experience_maker.py, `_set_old_logprobs`)."""
    row = torch.tensor([logprobs])
    mask = torch.tensor([[float(data.draw(st.booleans())) for _ in logprobs]])
    weights, outside = settings.resolved.weights(row, row.clone(), mask)
    assert (weights == 1).all() and not outside.any()


@given(SETTINGS, st.integers(0, 10**6))
def test_no_weight_is_negative_or_above_the_ratio_or_the_band(settings, seed):
    generator = torch.Generator().manual_seed(seed)
    trainer, sampler = (-5 * torch.rand(3, 6, generator=generator) for _ in range(2))
    correction = settings.resolved
    weights, outside = correction.weights(trainer, sampler, torch.ones(3, 6))
    ratio = (trainer - sampler).exp()
    if settings.method == "tis":
        assert ((weights >= correction.low) & (weights <= correction.high)).all()
        torch.testing.assert_close(weights[~outside], ratio[~outside])
    else:
        kept = ~outside.expand_as(weights)
        assert torch.equal(weights[kept], ratio[kept]) and not weights[~kept].any()


@pytest.mark.stack
@given(settings=SETTINGS, seed=st.integers(0, 10**6), by_token=st.booleans())
def test_with_ppo_it_is_openrlhfs_own(settings, seed, by_token):
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    from openrlhf.models.loss import PolicyLoss

    from r3_openrlhf.stack.policy_update import OwnLoss

    correction = settings.resolved
    level = "seq" if settings.method == "sequence" else "token"
    theirs = PolicyLoss(
        0.2,
        0.2,
        token_level_loss=by_token,
        is_correction_level=level,
        is_correction_mode="clip" if settings.method == "tis" else "mask",
        is_correction_gating=settings.measure,
        is_correction_threshold=[correction.low, correction.high],
    )
    ours = OwnLoss(
        LOSSES["ppo"], LossSettings(), token_level_loss=by_token, correction=correction
    )
    generator = torch.Generator().manual_seed(seed)
    now, old, sampler = (-2 * torch.rand(4, 6, generator=generator) for _ in range(3))
    mask = (torch.arange(6) < torch.tensor([[6], [2], [4], [1]])).float()
    advantages = torch.tensor([[1.0], [-1.0], [0.5], [-2.0]]) * mask
    results = []
    for loss_of in (theirs, ours):
        leaf = now.clone().requires_grad_()
        values = loss_of(
            leaf, old, advantages, action_mask=mask, rollout_log_probs=sampler, dp_size=2
        )
        (gradient,) = torch.autograd.grad(values[0], leaf)
        results.append((*values, gradient))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", OF_TOKENS)
@given(seed=st.integers(0, 10**6))
def test_the_weighed_loss_has_the_gradient_of_the_trainers_own_samples(name, seed):
    """One token of 5 words, every word by its probability: E over the sampler of w times the loss's gradient is that over
    the trainer without w. The band is wide."""
    generator = torch.Generator().manual_seed(seed)
    logits, engine = (torch.randn(5, generator=generator).double() for _ in range(2))
    advantages = torch.randn(5, 1, generator=generator).double()
    correction = CorrectionConfig(method="tis", low=0.0, high=1e9).resolved
    gradients = []
    for probs, weighs in ((engine.softmax(-1), True), (logits.softmax(-1), False)):
        leaf = logits.clone().requires_grad_()
        now, ones = leaf.log_softmax(-1)[:, None], torch.ones(5, 1).double()
        loss, _ = LOSSES[name].of(
            now,
            now.detach(),
            advantages,
            ones,
            settings=LossSettings(),
            recalled=torch.zeros(5, 1, dtype=torch.bool),
        )
        if weighs:
            sampler = engine.log_softmax(-1)[:, None]
            loss = correction.weights(now, sampler, ones)[0] * loss
        gradients.append(torch.autograd.grad((probs[:, None] * loss).sum(), leaf)[0])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_every_loss_is_of_tokens_or_of_responses():
    assert {*OF_TOKENS, *OF_RESPONSES} == set(LOSSES)


@pytest.mark.parametrize("name", [*OF_TOKENS, *OF_RESPONSES])
def test_a_loss_of_a_user_is_judged_as_the_same_one_of_ours(name):
    """By its slopes: in the table a field says it."""
    ours = LOSSES[name]
    assert is_of_tokens(ours, LossSettings()) == (name in OF_TOKENS)
    assert is_of_tokens(dataclasses.replace(ours, of_user=True), LossSettings()) == (
        name in OF_TOKENS
    )


@pytest.mark.parametrize("method", ["tis", "icepop", "sequence"])
@pytest.mark.parametrize("name", [*OF_TOKENS, *OF_RESPONSES, "examples/own_cispo.py:cispo"])
def test_a_run_takes_it_with_every_loss_that_it_can_multiply(name, method):
    settings = [f"train.loss={name}", f"train.correction.method={method}"]
    settings += NEEDS.get(name, [])
    if name in OF_RESPONSES:
        settings.append("train.loss_aggregation=seq-mean-token-mean")
        with pytest.raises(
            ConfigError, match=rf"method is {method}, .* loss {name} reads .*method=none or"
        ):
            load_config("cpu_smoke", settings)
        return
    assert load_config("cpu_smoke", settings).train.correction.resolved.method == method


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"low": 0.9},
            "low is 0.9, but it does nothing with train.correction.method=none; use",
        ),
        ({"measure": "tv"}, "measure is tv, but it does nothing with .*method=none; use"),
        (
            {"method": "icepop", "low": 1.2},
            "low is 1.2 and .*high is 5.0, .* use a band with 1",
        ),
        ({"method": "tis", "high": 0.9}, "low is 0.0 and .*high is 0.9, .* use a band with 1"),
        (
            {"method": "tis", "measure": "tv", "high": 0.1},
            "measure is tv, but tis bounds .* use",
        ),
        ({"method": "icepop", "measure": "tv"}, "measure is tv, whose bound .* give .*high"),
        (
            {"method": "icepop", "measure": "tv", "high": 1.0, "low": 0.1},
            "low is 0.1, but .*measure=tv has an upper bound alone; leave it out",
        ),
        ({"method": "mis"}, "method is 'mis', which does not exist; did you mean tis"),
        ({"method": "icepop", "high": math.nan}, "high is nan; use a number above 0"),
    ],
)
def test_mistakes_are_sentences(settings, words):
    with pytest.raises(ConfigError, match=words):
        CorrectionConfig(**settings)


@pytest.mark.parametrize("word", ["importance", "correction", "mismatch", "TIS", "icepop"])
def test_it_is_found_by_the_names_of_the_field(word):
    from r3_openrlhf.config.map import chosen

    assert any(one.key.startswith("train.correction") for one in chosen(None, word))
