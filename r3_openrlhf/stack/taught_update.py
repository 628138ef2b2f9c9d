"""The policy loss of a step with a teacher's loss on logits (method/core/distill.py) beside it.

B rows, A action positions, S sampled tokens of a row, M taught tokens of a micro-batch, K kept tokens of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from openrlhf.models.loss import aggregate_loss

from r3_openrlhf.method.core.distill import DISTILL_LOSSES, Target
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.stack.taught_actor import TaughtActor

# info of a row: its Target, of the sampled tokens alone
TARGET = "distill_target"
NO_TARGET = Target(
    np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros(0, np.float32)
)


def has_target(target: Target | None) -> bool:
    """Tell whether a token of this row is taught."""
    return target is not None and bool(target.weights.any())


class TargetsOfBatch(NamedTuple):
    """The targets of a micro-batch's rows. M taught tokens."""

    ids_BAK: torch.Tensor  # int64, 0 where nothing is taught
    row_M: torch.Tensor
    position_M: torch.Tensor
    teacher_MK: torch.Tensor  # log-probs
    weight_M: torch.Tensor


def targets_of_batch(
    targets: Sequence[Target], action_mask_BA: torch.Tensor
) -> TargetsOfBatch | None:
    """Place the rows' targets at their action positions; None: no row has one.

    ValueError: a target has another number of tokens than its row."""
    device = action_mask_BA.device
    taught = [(row, target) for row, target in enumerate(targets) if has_target(target)]
    if not taught:
        return None
    rows, positions, ids, teacher, weights = [], [], [], [], []
    for row, target in taught:
        position_S = action_mask_BA[row].nonzero()[:, 0]
        if len(position_S) != len(target.weights):
            raise ValueError(
                f"a row of {len(position_S)} sampled tokens has a target of {len(target.weights)}"
            )
        positions.append(position_S)
        rows.append(torch.full_like(position_S, row))
        # copies: Ray's memory is read-only
        ids.append(torch.tensor(target.ids, device=device).long())
        teacher.append(torch.tensor(target.logprobs, device=device))
        weights.append(torch.tensor(target.weights, device=device))
    row_M, position_M, ids_MK = torch.cat(rows), torch.cat(positions), torch.cat(ids)
    ids_BAK = ids_MK.new_zeros(*action_mask_BA.shape, ids_MK.shape[1])
    ids_BAK[row_M, position_M] = ids_MK
    return TargetsOfBatch(ids_BAK, row_M, position_M, torch.cat(teacher), torch.cat(weights))


class TaughtLoss:
    """The run's policy loss, and beside it the teacher's of the tokens that have a target.

        sum over tokens of (l_policy + r_t coef w_t D(p_S, p_T))        aggregated as the run's loss is

    r_t is 1, or with distill.max_ratio min(pi(y_t) / pi_old(y_t), max_ratio), detached (TRL's
    distillation_is_clip). Upstream's importance weights of stale engines multiply l_policy alone."""

    def __init__(
        self,
        policy_loss: Callable[..., tuple],
        settings: DistillSettings,
        actor: TaughtActor,
        *,
        token_level_loss: bool,
    ) -> None:
        self.policy_loss, self.actor = policy_loss, actor
        self.token_level_loss = token_level_loss
        self.loss = DISTILL_LOSSES[settings.loss]
        self.max_ratio = settings.max_ratio
        self.targets: TargetsOfBatch | None = None  # of the micro-batch that comes next
        self.sums = [0.0, 0.0]  # of D over taught tokens, and their number, in this step

    @property
    def recalled_B(self) -> Sequence[float] | None:
        """The rows from the history of the micro-batch that comes next (policy_update.py, OwnLoss)."""
        return getattr(self.policy_loss, "recalled_B", None)

    @recalled_B.setter
    def recalled_B(self, recalled_B: Sequence[float] | None) -> None:
        self.policy_loss.recalled_B = recalled_B  # type: ignore[attr-defined]

    def __call__(self, log_probs, old_log_probs, advantages, action_mask, **denominators):
        """Compute, like PolicyLoss.forward, the loss and what is reported of the policy's part."""
        loss, *reported = self.policy_loss(
            log_probs, old_log_probs, advantages, action_mask=action_mask, **denominators
        )
        if self.targets is None:
            return (loss, *reported)
        denominators.pop("rollout_log_probs", None)
        loss_BA = self._of_tokens(self.targets, log_probs, old_log_probs)
        loss = loss + aggregate_loss(
            loss_BA, action_mask, token_level_loss=self.token_level_loss, **denominators
        )
        return (loss, *reported)

    def _of_tokens(
        self, targets: TargetsOfBatch, log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        """Return the teacher's loss of each token [B, A], 0 where nothing is taught."""
        assert self.actor.more_logprobs is not None
        places = (targets.row_M, targets.position_M)
        divergence_M = self.loss.divergence(
            self.actor.more_logprobs[places], targets.teacher_MK
        )
        self.sums[0] += divergence_M.detach().sum(dtype=torch.float64).item()
        self.sums[1] += len(divergence_M)
        loss_M = divergence_M * targets.weight_M
        if self.max_ratio is not None:
            log_ratio_M = (log_probs.detach() - old_log_probs)[places].clamp(-20, 20)
            loss_M = loss_M * log_ratio_M.exp().clamp(max=self.max_ratio)
        return torch.zeros_like(log_probs).index_put(places, loss_M.to(log_probs.dtype))
