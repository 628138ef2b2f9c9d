"""The core and the installed OpenRLHF compute the same numbers where both compute them."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers, lists
from pytest import approx

from r3_openrlhf.config.algorithms import DAPO_OVERLONG_FACTOR, overlong_penalty
from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.method.core.entropy import token_logprobs_and_entropy
from r3_openrlhf.method.core.estimators import ESTIMATORS

pytestmark = pytest.mark.stack
GROUP = 8


@pytest.fixture(scope="module")
def openrlhf_models():
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    import openrlhf.models.utils

    return openrlhf.models.utils


@pytest.fixture(scope="module", params=["group_norm", "rloo", "dr_grpo"])
def estimator(request):
    return request.param


@pytest.fixture(scope="module")
def stock_advantages(openrlhf_models, estimator):
    """Rewards of whole groups -> advantages per rollout, by RemoteExperienceMaker."""
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=GROUP),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator=estimator, gamma=1.0)),
        reward=SimpleNamespace(clip_range=(-10, 10)),
    )
    maker = RemoteExperienceMaker(
        None,
        None,
        None,
        None,
        SimpleNamespace(value=0.0),
        SimpleNamespace(args=args),
        tokenizer=None,
    )

    def advantages(rewards):
        action_mask_BA = torch.tensor([[0, 1, 1, 0]] * len(rewards), dtype=torch.bool)
        experience = Experience(
            index=list(range(len(rewards))),
            rewards=torch.tensor(rewards, dtype=torch.float32),
            action_mask=action_mask_BA,
            kl=torch.zeros(action_mask_BA.shape),
        )
        (made,) = maker.compute_advantages_and_returns([experience])
        # every token of a response has the same
        assert torch.equal(made.advantages[:, 1], made.advantages[:, 2])
        return made.advantages[:, 1].tolist()

    return advantages


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rewards=lists(integers(0, 16).map(lambda n: n / 8), min_size=3 * GROUP, max_size=3 * GROUP)
)
def test_an_estimator_of_ours_is_upstreams_of_the_same_name(
    stock_advantages, estimator, rewards
):
    """group_norm is eq. 3 without recall."""
    facts = dict(alpha=1.0, lam=1e-9, off_policy_only=False)
    ours = [
        value
        for start in range(0, 3 * GROUP, GROUP)
        for value in ESTIMATORS[estimator].of(rewards[start : start + GROUP], **facts)
    ]
    assert ours == approx(stock_advantages(rewards), abs=1e-5)


def test_group_norm_turns_rounding_noise_into_advantages_and_eq_3_does_not(
    stock_advantages, estimator
):
    """The one difference: 8 rewards of 0.1 have a float32 mean of 0.1 + 7e-9, and group_norm divides that by 1e-9."""
    collapsed = [[n / 10] * GROUP for n in range(1, 20)]
    assert all(group_advantages(rewards) == [0.0] * GROUP for rewards in collapsed)
    assert (max(abs(value) for value in stock_advantages(sum(collapsed, []))) > 1) == (
        estimator == "group_norm"
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_actor(openrlhf_models, temperature):
    generator = torch.Generator().manual_seed(0)
    logits_TV = (torch.randn(300, 5000, generator=generator) * 4).bfloat16()
    labels_T = torch.randint(5000, (300,), generator=generator)
    logprobs_T, entropy_T = token_logprobs_and_entropy(
        logits_TV, labels_T, temperature=temperature, chunk_tokens=64
    )

    scaled_BTV = logits_TV.float()[None] / temperature  # models/actor.py:260-263
    stock_T = openrlhf_models.log_probs_from_logits(scaled_BTV.clone(), labels_T[None])[0]
    torch.testing.assert_close(logprobs_T, stock_T, atol=2e-6, rtol=0)

    stock_entropy = getattr(
        openrlhf_models.compute_entropy,
        "_torchdynamo_orig_callable",
        openrlhf_models.compute_entropy,
    )
    torch.testing.assert_close(entropy_T, stock_entropy(scaled_BTV)[0], atol=1e-4, rtol=0)


def test_the_overlong_penalty_is_upstreams(openrlhf_models):
    from openrlhf.trainer.ppo_utils.length_penalty import apply_overlong_penalty

    for length in range(1, 21):
        experience = SimpleNamespace(
            response_length=torch.tensor([float(length)]), rewards=torch.tensor([1.0])
        )
        apply_overlong_penalty(
            [experience],
            max_new_tokens=20,
            overlong_buffer_len=4,
            overlong_penalty_factor=DAPO_OVERLONG_FACTOR,
        )
        assert 1 - overlong_penalty(length, max_tokens=20) == approx(experience.rewards.item())
