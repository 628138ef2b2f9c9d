"""Whether rows without a gradient may leave the update (train.skip_zero_advantage)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r3_openrlhf.method.core.losses import LossSettings, TokenLoss

if TYPE_CHECKING:
    from r3_openrlhf.config.run import R3Config


def why_all_rows_stay(config: R3Config) -> str | None:
    """Say why a row whose advantage is 0 passes through the model all the same; None: it does not."""
    if not config.train.skip_zero_advantage:
        return "train.skip_zero_advantage is false"
    if config.algorithm.has_critic:
        return "the critic learns from every row"
    if config.train.kl_coef > 0:
        return "train.kl_coef moves every row"
    if config.flag("actor.entropy_coef") is not None:
        return "openrlhf.actor.entropy_coef is measured on every row"
    if config.flag("actor.aux_loss_coef"):
        return "openrlhf.actor.aux_loss_coef moves every row"
    if config.loss.of_user and not is_proportional(config.loss, config.loss_settings):
        return (
            "train.loss has a gradient where the advantage is 0, or reads several rows at once"
        )
    return None


def is_proportional(loss: TokenLoss, settings: LossSettings) -> bool:
    """Tell whether rows with advantage 0 add nothing to a loss: tried on made-up rows.

    Such a row has the value 0 and the gradient 0, and the other rows have the same values and gradients
    with and without it."""
    import torch

    generator = torch.Generator().manual_seed(0)
    now_BA = -torch.rand(6, 5, generator=generator)
    old_BA = now_BA - 0.5 * torch.rand(6, 5, generator=generator) + 0.25
    mask_BA = (torch.arange(5) < torch.tensor([[5], [3], [5], [1], [4], [2]])).float()
    idle_B = torch.tensor([False, True, False, True, False, True])
    signs_B1 = torch.tensor([[1.0], [0.0], [-1.0], [0.0], [0.5], [0.0]])
    recalled_B1 = torch.tensor([[False], [False], [True], [True], [False], [False]])

    def values_and_gradients(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf_BA = now_BA[rows].clone().requires_grad_()
        per_token, _ = loss.of(
            leaf_BA,
            old_BA[rows],
            signs_B1[rows] * mask_BA[rows],
            mask_BA[rows],
            settings=settings,
            recalled=recalled_B1[rows],
        )
        masked_BA = per_token.where(mask_BA[rows].bool(), 0.0)
        (gradient_BA,) = torch.autograd.grad(masked_BA.sum(), leaf_BA, allow_unused=True)
        gradient_BA = torch.zeros_like(leaf_BA) if gradient_BA is None else gradient_BA
        return masked_BA.detach(), gradient_BA

    every, busy = torch.arange(6), (~idle_B).nonzero()[:, 0]
    with_idle, without_idle = values_and_gradients(every), values_and_gradients(busy)
    for together, alone in zip(with_idle, without_idle, strict=True):
        if together[idle_B].any() or not torch.allclose(
            together[busy], alone, rtol=1e-5, atol=1e-7
        ):
            return False
    return True


def is_of_tokens(loss: TokenLoss, settings: LossSettings) -> bool:
    """Tell whether the loss of a token has a slope in its own log-prob alone, on made-up rows of a user's.

    Only then a weight of the token is a weight of what it samples."""
    if not loss.of_user:
        return not loss.of_response
    import torch

    generator = torch.Generator().manual_seed(0)
    now_BA = -torch.rand(3, 4, generator=generator)
    old_BA = now_BA - 0.2 * torch.rand(3, 4, generator=generator) + 0.1
    signs_B1, ones_BA = torch.tensor([[1.0], [-1.0], [0.5]]), torch.ones(3, 4)
    recalled_B1 = torch.tensor([[False], [False], [True]])
    leaf_BA = now_BA.clone().requires_grad_()
    per_token, _ = loss.of(
        leaf_BA, old_BA, signs_B1 * ones_BA, ones_BA, settings=settings, recalled=recalled_B1
    )
    for row in range(3):
        for place in range(4):
            (slope_BA,) = torch.autograd.grad(
                per_token[row, place], leaf_BA, retain_graph=True, allow_unused=True
            )
            if slope_BA is None:
                continue
            slope_BA[row, place] = 0.0
            if slope_BA.any():
                return False
    return True
