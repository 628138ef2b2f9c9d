"""End a run whose update is not finite, with the sentence that names the probable cause, or whose
weights were not finite when they were loaded."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.open_table import is_import_path
from r3_openrlhf.runs.checkpoint_record import newest
from r3_openrlhf.stack.finite_updates import (
    ACTOR_NOT_FINITE,
    ADVANTAGES,
    CRITIC_NOT_FINITE,
    ENGINE_LOGPROBS,
    GRADIENT,
    LOSS,
    OLD_VALUES,
    REFERENCE_LOGPROBS,
    RETURNS,
    REWARDS,
    WEIGHTS,
    not_finite_weight,
)


class Trained(NamedTuple):
    """A model that a run trains: its name in a sentence, and its keys."""

    name: str
    loss: str  # of the status
    norm: str
    first: str
    learning_rate: str


POLICY = Trained(
    "policy", "policy_loss", "actor_grad_norm", ACTOR_NOT_FINITE, "train.learning_rate"
)
CRITIC = Trained(
    "critic", "critic_loss", "critic_grad_norm", CRITIC_NOT_FINITE, "openrlhf.critic.adam.lr"
)


def check_update(
    status: Mapping[str, Any], model: Trained, config: R3Config, *, step: int
) -> None:
    """Raise TrainingStopped where the update with this status is not finite."""
    loss, norm = (status.get(key, math.nan) for key in (model.loss, model.norm))
    if math.isfinite(loss) and math.isfinite(norm):
        return
    first = status.get(model.first, LOSS)
    raise TrainingStopped(
        f"step {step}: the {model.name}'s loss is {loss:.4g}, its gradient norm {norm:.4g}; the first that was not finite: {first}. "
        f"{advice(first, model, config)}. The newest checkpoint is from before this step"
    )


def advice(first: str, model: Trained, config: R3Config) -> str:
    """Name the probable cause of an update whose first tensor that is not finite is `first`."""
    if first == REWARDS:
        return "Repair what grades: a reward is not a finite number"
    if first == ENGINE_LOGPROBS:
        return "The rollout engine returned them: look for its errors in train.log, and start the same command again"
    if first == REFERENCE_LOGPROBS:
        return "They come from the reference model: check its weights"
    if first in (ADVANTAGES, RETURNS, OLD_VALUES):
        function = str(config.advantage.function)
        if is_import_path(function):
            return f"They come from your advantage.function={function}: try it on the rewards of this step"
        if config.algorithm.has_critic:
            return f"They come from the rewards and the critic; a lower {CRITIC.learning_rate} usually helps"
        return "They come from the rewards: repair what grades"
    if first in (LOSS, GRADIENT, WEIGHTS) and model is POLICY and config.loss.of_user:
        return (
            f"The probable cause is your train.loss={config.train.loss}: check its value and gradient where a token's "
            "old and new log-prob are equal, or 0"
        )
    return f"A lower {model.learning_rate} usually helps"


def check_loaded(
    model: torch.nn.Module, args: SimpleNamespace, *, folder: str, path: str
) -> None:
    """Raise TrainingStopped on every rank where a weight that upstream has loaded is not finite.

    folder: of the model's checkpoints (ppo_actor.py:565, ppo_critic.py:239). path: of the model that a new run loads."""
    name = not_finite_weight(model)
    if name is None:
        return
    checkpoint = newest(Path(args.ckpt.path)) if args.ckpt.load_enable else None
    if checkpoint is None:
        raise TrainingStopped(
            f"{path} holds a value that is not finite in {name}; use another model"
        )
    latest = checkpoint.parent.with_name(folder) / "latest"
    raise TrainingStopped(
        f"the checkpoint {latest.with_name(checkpoint.name)} holds a value that is not finite in {name}; restore an earlier one from a "
        "copy, or choose another run_dir"
    )
