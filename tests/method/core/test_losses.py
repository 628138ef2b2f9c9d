"""Losses of a token: each written out in plain numbers, and upstream's own."""

from pathlib import Path

import pytest
import torch

from r3_openrlhf.method.core.losses import LOSSES, LossSettings, loss_of_user
from r3_openrlhf.method.errors import ConfigError
from tests.method.core.written_losses import written_out


def rows(seed, count=12, width=7):
    """Log-probs now and then, advantages, mask and which are recalled; ratios far beyond all bounds, too."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (count,), generator=draw)
    mask = (torch.arange(width) < lengths[:, None]).float()
    now = -3 * torch.rand(count, width, generator=draw) * mask
    then = (now - 1.5 * torch.randn(count, width, generator=draw)) * mask
    advantages = torch.randn(count, 1, generator=draw) * mask
    return (
        now.requires_grad_(),
        then,
        advantages,
        mask,
        torch.rand(count, 1, generator=draw) < 0.5,
    )


@pytest.mark.parametrize("dual_clip", [None, 3.0])
@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_its_formula(name, dual_clip):
    for seed in range(20):
        now, then, advantages, mask, recalled = rows(seed)
        settings = LossSettings(0.2, 0.3, dual_clip)
        found, _ = LOSSES[name].of(
            now, then, advantages, mask, settings=settings, recalled=recalled
        )
        for i, length in enumerate(mask.sum(-1).int().tolist()):
            of_row = [
                now[i, :length].tolist(),
                then[i, :length].tolist(),
                advantages[i, 0].item(),
                recalled[i].item(),
            ]
            expected = written_out(name, *of_row, *settings)
            assert found[i, :length].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_every_loss_has_the_policy_gradient(name):
    """d loss / d log pi = -A where r = 1, averaged over the response where the ratio is one of it."""
    now, _, advantages, mask, recalled = rows(3)
    loss, clipped = LOSSES[name].of(
        now, now.detach(), advantages, mask, settings=LossSettings(), recalled=recalled & False
    )
    (loss * mask).sum().backward()
    torch.testing.assert_close(now.grad, -advantages * mask)
    assert clipped is None or not (clipped & mask.bool()).any()


@pytest.mark.stack
@pytest.mark.parametrize("dual_clip", [None, 1.5, 3.0])
@pytest.mark.parametrize("name", ["ppo", "gspo"])
def test_the_written_out_losses_of_openrlhf_are_its_own(name, dual_clip):
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    from openrlhf.models.loss import PolicyLoss

    from r3_openrlhf.stack.policy_update import OwnLoss

    for seed in range(20):
        now, then, advantages, mask, _ = rows(seed)
        theirs = PolicyLoss(
            0.1, 0.4, dual_clip=dual_clip, token_level_loss=name == "ppo", policy_loss_type=name
        )
        ours = OwnLoss(
            LOSSES[name], LossSettings(0.1, 0.4, dual_clip), token_level_loss=name == "ppo"
        )
        results = []
        for loss_of in (theirs, ours):
            denominators = dict(
                dp_size=2, batch_num_tokens=mask.sum() * 3, global_batch_size=24.0
            )
            loss, clip, kl, *others = loss_of(
                now, then, advantages, action_mask=mask, rollout_log_probs=then, **denominators
            )
            (gradient,) = torch.autograd.grad(loss, now)
            results.append((loss, clip, kl, gradient))
            assert others == [None, None]
        torch.testing.assert_close(results[0], results[1])


def _unlikelihood(now, old, adv, mask):
    return -(1 - now.exp()).log() * adv


def _focal(now, old, adv, mask):
    return (1 - now.exp()).sqrt() * adv


def _inverse(now, old, adv, mask):
    return adv / now + adv / old


@pytest.mark.parametrize("function", [_unlikelihood, _focal, _inverse])
@pytest.mark.parametrize("seed", range(5))
def test_masked_places_are_harmless_whatever_the_loss_does_at_log_prob_0(function, seed):
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    from r3_openrlhf.method.core.losses import TokenLoss
    from r3_openrlhf.stack.policy_update import OwnLoss

    torch.manual_seed(seed)
    mask = torch.rand(4, 6) < 0.6
    mask[:, 0] = True
    now = (-torch.rand(4, 6) - 0.1).where(mask, 0.0).requires_grad_()
    old = (-torch.rand(4, 6) - 0.1).where(mask, 0.0)
    ours = OwnLoss(TokenLoss(function), LossSettings(), token_level_loss=True)
    counts = {"dp_size": 1, "batch_num_tokens": mask.sum(), "global_batch_size": 4}
    loss = ours(
        now, old, torch.randn(4, 6) * mask, mask.float(), rollout_log_probs=None, **counts
    )[0]
    loss.backward()
    assert loss.isfinite() and now.grad.isfinite().all()
    assert (now.grad[~mask] == 0).all() and (now.grad[mask] != 0).any()


MASKED = Path(__file__).parents[4] / "shared/data/turn5/own_loss_masked.py"


@pytest.mark.parametrize("function", [_unlikelihood, _focal, _inverse])
def test_a_loss_that_is_not_finite_at_log_prob_0_passes_its_trial(function):
    """Padding has log-prob 0, and no loss sees it."""
    loss = loss_of_user("train.loss", "x.py:f", function)
    now = torch.tensor([[-0.5, 0.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 0.0]])
    per_token, _ = loss.of(
        now, now.detach(), mask, mask, settings=LossSettings(), recalled=mask[:, :1].bool()
    )
    (per_token * mask).sum().backward()
    assert per_token.isfinite().all() and now.grad.isfinite().all() and now.grad[0, 1] == 0


@pytest.mark.parametrize("name", ["unlikely", "near_certain"])
def test_the_given_losses_pass_their_trial(name):
    if not MASKED.is_file():
        pytest.skip("no shared folder beside the checkout")
    assert LOSSES[f"{MASKED}:{name}"].of_user


@pytest.mark.parametrize("slope", ["distance", "square_root"])
def test_a_loss_without_a_slope_at_ratio_1_is_refused(slope):
    def distance(now, old, adv, mask):
        return -(now - old).exp() * adv + 0.01 * ((now - old) ** 2).sqrt()

    def square_root(now, old, adv, mask):
        return -adv * now + (now - old).clamp(min=0).sqrt()

    function = {"distance": distance, "square_root": square_root}[slope]
    with pytest.raises(
        ConfigError, match="gradient, is not finite where its log-prob equals the old one"
    ):
        loss_of_user("train.loss", "x.py:f", function)
