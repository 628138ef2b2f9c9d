"""The critic's Ray actor and its update (algo=ppo): upstream's, on any number of rows per rank.

Answers trainer/ray/ppo_critic.py, which has the policy's faults once more: `drop_last=True` (:79)
drops the rows of an incomplete micro-batch, a short batch never reaches DeepSpeed's boundary, and
with a dynamic batch and ZeRO 2 (:181) only the last micro-batch's gradient survives
(policy_update.py). Its status (:187) is a mean over micro-batches of numbers that are not means of
a micro-batch, and of a gradient norm that is the last step's until the step is made."""

import math
from typing import Any

import ray
from deepspeed.ops.op_builder import builder
from openrlhf.trainer.ray import ppo_critic
from peft import PeftModel

from r3_openrlhf.stack import safe_pickles
from r3_openrlhf.stack.blocked_signals import keep_blocked
from r3_openrlhf.stack.environment import config_from_environment, use_share_of_cores
from r3_openrlhf.stack.finite_advice import check_loaded
from r3_openrlhf.stack.finite_updates import (
    CRITIC_NOT_FINITE,
    LOSS,
    OLD_VALUES,
    RETURNS,
    REWARDS,
    VALUES,
    UpdateWatch,
    report_true_norms,
)
from r3_openrlhf.stack.phases import announce_builds
from r3_openrlhf.stack.policy_update import AnyNumberOfRows, in_order

# trainer/ray/ppo_critic.py:196: the name is a Ray actor; this is the decorated class
UpstreamCriticActor: Any = (
    ppo_critic.CriticModelActor.__ray_metadata__.modified_class.__ray_actor_class__
)


class R3CriticTrainer(AnyNumberOfRows, ppo_critic.CriticPPOTrainer):
    """Upstream's update loop on windows of any number of micro-batches, as the policy's."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        report_true_norms(self.critic.optimizer)

    def ppo_train(self):
        """Upstream's update (ppo_critic.py:66) on this step's rows. Returns its means. `critic_grad_norm`
        is NaN, and CRITIC_NOT_FINITE there, where the update of a rank is not finite."""
        self._watch = UpdateWatch(self.critic)
        self.lay_out(self.critic)
        with in_order(ppo_critic):
            status = super().ppo_train()
        if (name := self._watch.first_not_finite()) is not None:
            status |= {"critic_grad_norm": math.nan, CRITIC_NOT_FINITE: name}
        return status

    def training_step(self, experience, step, loss_batch_info=None):
        """Upstream's pass over one micro-batch (ppo_critic.py:126)."""
        last, count = self.set_boundary(self.critic, step), self.window_of(step)
        status = super().training_step(experience, step, loss_batch_info)
        tokens = experience.action_mask.sum().item()
        tensors = {
            REWARDS: experience.info.get("reward"),
            RETURNS: experience.returns,
            OLD_VALUES: experience.values,
            VALUES: status["values"] if tokens else None,  # a mean, not a number without tokens
            LOSS: status["critic_loss"],
        }
        self._watch.look(tensors, experience.action_mask)
        norm = self._watch.look_at_step(status["critic_grad_norm"]) if last else 0.0
        if self.args.train.dynamic_batch_enable:
            of_window = self.replay_buffer.dynamic_batch_num_tokens[step] / count
            status["critic_loss"] *= count
        else:
            of_window = loss_batch_info["batch_num_tokens"].item()
        ranks = self.strategy.ds_device_mesh["dp"].size()
        # upstream takes the mean of these over micro-batches and ranks
        status["values"] = status["values"] * tokens * ranks / of_window if tokens else 0.0
        status["critic_grad_norm"] = norm * count
        return status


upstream_model = ppo_critic.get_llm_for_sequence_regression


def critic_model(*args, **kwargs):
    """Upstream's model (models/model.py:28). With ds.lora.rank its new head is trained, too."""
    model = upstream_model(*args, **kwargs)
    if isinstance(model, PeftModel):
        head = getattr(model, model.value_head_prefix).weight.requires_grad_(True)
        for parameter in filter(lambda one: one.requires_grad, model.parameters()):
            # PEFT's adapters are float32; ZeRO 3 needs one (deepspeed/runtime/zero/utils.py:217)
            parameter.data = parameter.data.to(head.dtype)
    return model


class R3CriticActor(UpstreamCriticActor):
    """Upstream's, with R3CriticTrainer as its trainer, and critic_model as its model."""

    def init_model_from_pretrained(self, *args, **kwargs):
        """Initialize as upstream does (ppo_critic.py:198), which takes both from the module's global names."""
        keep_blocked()
        use_share_of_cores()
        safe_pickles.allow_deepspeed()
        announce_builds(builder)
        ppo_critic.CriticPPOTrainer = R3CriticTrainer
        ppo_critic.get_llm_for_sequence_regression = critic_model
        super().init_model_from_pretrained(*args, **kwargs)
        config = config_from_environment()
        self.trainer.replay_buffer.rows_per_update = config.train.rows_per_update
        flags = self.strategy.args
        check_loaded(
            self.critic.module, flags, folder="_critic", path=flags.critic.model_name_or_path
        )


CriticModelActor = ray.remote(num_gpus=1)(R3CriticActor)
