"""Check that an update stays finite, and name the first of its tensors that does not.

DeepSpeed 0.19.6 in bf16 hides a gradient that is not finite. ZeRO 1 and 2 skip the step, keep the norm of the
step before (runtime/zero/stage_1_and_2.py:2305) and count the step (runtime/engine.py:3488). ZeRO 3 does not
look in bf16 (runtime/zero/stage3.py:2555), applies the step, and takes -1 for the norm of each group of
parameters that is not finite (stage3.py:2313, :1885), which makes the whole norm a small number."""

import math
from collections.abc import Callable, Mapping

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.utils import has_inf_or_nan

from r3_openrlhf.stack.idle_rows import over_ranks

REWARDS, ADVANTAGES, ENGINE_LOGPROBS = (
    "rewards",
    "advantages",
    "log-probs of the rollout engine",
)
REFERENCE_LOGPROBS, OLD_LOGPROBS = "log-probs of the reference model", "old log-probs"
POLICY_LOGPROBS, RETURNS, OLD_VALUES, VALUES = (
    "log-probs of the policy",
    "returns",
    "old values",
    "values",
)
LOSS, GRADIENT, WEIGHTS = "loss", "gradient", "weights"
# what is looked at, in the order in which one is made of another
NAMES = (
    *(REWARDS, ADVANTAGES, ENGINE_LOGPROBS, REFERENCE_LOGPROBS, OLD_LOGPROBS, POLICY_LOGPROBS),
    *(RETURNS, OLD_VALUES, VALUES, LOSS, GRADIENT, WEIGHTS),
)
# keys of an update's status: the first of NAMES that was not finite; absent where the update is finite
ACTOR_NOT_FINITE, CRITIC_NOT_FINITE = "actor_not_finite", "critic_not_finite"
# norms of a group of parameters, of stages 1, 2 and 3
NORMS = ("get_grad_norm_direct", "complete_grad_norm_calculation_for_cpu_offload")


def report_true_norms(optimizer: object) -> None:
    """Let DeepSpeed's optimizer take NaN, and not -1, for a norm that is not finite. That of ZeRO 1 with sums
    in float32 would end with an assertion (runtime/bf16_optimizer.py:321); it skips the step."""
    for name in NORMS:
        if hasattr(optimizer, name):
            setattr(optimizer, name, _nan_for_negative(getattr(optimizer, name)))
    if isinstance(optimizer, BF16_Optimizer):
        optimizer.step = _nan_for_assertion(optimizer, optimizer.step)


def _nan_for_assertion(
    optimizer: BF16_Optimizer, step: Callable[..., None]
) -> Callable[..., None]:
    def checked_step(*args: object, **kwargs: object) -> None:
        try:
            step(*args, **kwargs)
        except AssertionError:
            if optimizer._global_grad_norm >= 0:
                raise
            optimizer._global_grad_norm = math.nan

    return checked_step


def _nan_for_negative(norm_of: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def norm(*args: object, **kwargs: object) -> torch.Tensor:
        found = norm_of(*args, **kwargs)
        return found.where(found >= 0, math.nan)

    return norm


def not_finite_weight(model: torch.nn.Module) -> str | None:
    """Return the name of the first weight with a value that is not finite, or None. Every rank calls it,
    looks at what it holds (under ZeRO 3 its part of each weight), and gets the same name."""
    flags = {}
    for name, parameter in model.named_parameters():
        part = getattr(parameter, "ds_tensor", parameter).detach()
        flags[name] = has_inf_or_nan(part).to(torch.cuda.current_device())
    of_rank = torch.stack(list(flags.values())).tolist()  # one wait for the device
    of_all = over_ranks(of_rank, torch.distributed.ReduceOp.MAX, None)
    return next((name for name, is_bad in zip(flags, of_all, strict=True) if is_bad), None)


class UpdateWatch:
    """Watch one update of a model on this rank."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self.engine = engine
        self.skipped_steps = engine.skipped_steps
        self.micro_batch = 0
        self.first = math.inf  # micro-batch x number of names + place in NAMES
        self.failed = False  # the update itself, not only a tensor that nothing may have read

    def look(
        self, tensors: Mapping[str, torch.Tensor | float | None], mask: torch.Tensor
    ) -> None:
        """Look at the tensors of the next micro-batch, those of the mask's shape where it is not 0."""
        self.micro_batch += 1
        device, flags = torch.cuda.current_device(), {}
        for name, value in tensors.items():
            if value is not None:
                tensor = torch.as_tensor(value)
                if tensor.shape == mask.shape:
                    tensor = tensor.where(mask.bool(), 0.0)
                flags[name] = torch.isfinite(tensor).all().to(device)
        finite = torch.stack(list(flags.values())).tolist()  # one wait for the device
        for name, is_finite in zip(flags, finite, strict=True):
            if not is_finite:
                self._note(name)

    def look_at_step(self, norm: float) -> float:
        """Return the gradient norm of the optimizer step that was just made, NaN if it is not finite."""
        if self.engine.skipped_steps == self.skipped_steps and math.isfinite(norm):
            return norm
        self.skipped_steps = self.engine.skipped_steps
        self._note(GRADIENT)
        return math.nan

    def first_not_finite(self) -> str | None:
        """Look at the weights. Returns the first tensor on any rank that was not finite, None if the
        update is finite. Every rank calls it, and gets the same."""
        if not_finite_weight(self.engine.module) is not None:
            self._note(WEIGHTS)
        first, succeeded = over_ranks(
            [self.first, float(not self.failed)], torch.distributed.ReduceOp.MIN, None
        )
        return None if succeeded else NAMES[int(first) % len(NAMES)]

    def _note(self, name: str) -> None:
        self.first = min(self.first, self.micro_batch * len(NAMES) + NAMES.index(name))
        self.failed |= name in (LOSS, GRADIENT, WEIGHTS)
