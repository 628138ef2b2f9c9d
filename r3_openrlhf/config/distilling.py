"""Refuse a teacher from the store (distill.*) where it cannot teach, or where something undoes what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.idle_rows import is_of_tokens
from r3_openrlhf.method.core.distill import GroupAdvantage
from r3_openrlhf.method.core.teacher_prompt import own_message
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import is_looking

if TYPE_CHECKING:
    from r3_openrlhf.config.run import R3Config


def check_distill(c: R3Config) -> None:
    """ConfigError: rows are taught beside a setting with which that does nothing, or something else."""
    # a run that is only read may be older than a check
    if not c.distill.enabled or is_looking():
        return
    if c.distill.template is not None:
        own_message(c.distill.template, "", "")
    if not c.algorithm.own_advantages:
        raise ConfigError(
            f"{_is_on(c)}, but algo is {c.algo}, whose advantages are OpenRLHF's own; use algo=r3, or distill.coef=0"
        )
    _check_loss(c)
    _check_logits(c)
    _check_average(c)
    _check_group_advantage(c)
    _check_successes(c)
    _check_prompts(c)
    _check_length(c)


def _is_on(c: R3Config) -> str:
    return f"distill.coef is {c.distill.coef}"


def _check_loss(c: R3Config) -> None:
    if not is_of_tokens(c.loss, c.loss_settings):
        raise ConfigError(
            f"{_is_on(c)}, which gives each token its own advantage, but the policy loss is {c.loss_name}, whose "
            "ratio is one of a whole response; use train.loss=ppo, or distill.coef=0"
        )


def _check_logits(c: R3Config) -> None:
    """ConfigError: the loss compares logits, where they are not read, or a key of such a loss has no effect."""
    if not c.distill.compares_logits:
        if c.distill.max_ratio is not None:
            raise ConfigError(
                f"distill.max_ratio is {c.distill.max_ratio}, but distill.loss is policy_gradient, whose ratio "
                "train.loss bounds; use distill.max_ratio=null"
            )
        return
    for name, neutral in (("ds.ring_attn_size", 1), ("ds.tensor_parallel_size", 1)):
        value = c.flag(name)
        if value not in (None, neutral):
            raise ConfigError(
                f"openrlhf.{name} is {value}, but distill.loss={c.distill.loss} reads a row's logits in one "
                f"process; use {name}={neutral}, or distill.loss=policy_gradient"
            )
    if c.flag("ds.use_liger_kernel"):
        raise ConfigError(
            f"openrlhf.ds.use_liger_kernel is true, but distill.loss={c.distill.loss} reads logits, which is not "
            "tried with these kernels; use ds.use_liger_kernel=false, or distill.loss=policy_gradient"
        )


def _check_average(c: R3Config) -> None:
    """ConfigError: the average is asked for where a rank's weights are no plain part of the model's."""
    if not c.distill.averages:
        return
    for name, neutral in (
        ("ds.ring_attn_size", 1),
        ("ds.tensor_parallel_size", 1),
        ("ds.zpg", 1),
        ("train.enable_ema", False),
    ):
        value = c.flag(name)
        if value not in (None, neutral):
            raise ConfigError(
                f"openrlhf.{name} is {value} with distill.teacher=average, whose weights are read and written as "
                f"plain parts of the policy's; use {name}={str(neutral).lower()}, or distill.teacher=policy"
            )


def _check_group_advantage(c: R3Config) -> None:
    if c.distill.group_advantage != GroupAdvantage.NONE:
        return
    without = "distill.group_advantage is none, with which no row has its group's advantage"
    if c.replay.enabled or c.replay.rehearse.share > 0:
        raise ConfigError(
            f"{without}, but replay adds rows that have no other; use replay.enabled=false "
            "replay.rehearse.share=0, or distill.group_advantage=untaught"
        )
    if c.ranking.enabled:
        raise ConfigError(
            f"{without}, but ranking.enabled is true, which changes that advantage alone; use "
            "ranking.enabled=false, or distill.group_advantage=untaught"
        )


def _check_successes(c: R3Config) -> None:
    if c.distill.source == "imported" and not c.has_imported:
        raise ConfigError(
            "distill.source is imported, but the run has no success from elsewhere; set "
            "history.start=DIR of r3 history import, or use distill.source=any"
        )
    if not c.distill.answer:
        return
    for part in c.data.parts.values():
        if TASKS[part.task].runs_programs:
            raise ConfigError(
                f"distill.answer is true, but the references of data.task={part.task} are tests of a program, "
                "which are no answer to show; use distill.answer=false"
            )


def _check_prompts(c: R3Config) -> None:
    if c.flag("train.agent_func_path") is not None:
        raise ConfigError(
            f"{_is_on(c)} and openrlhf.train.agent_func_path is set, but that file's agent makes prompts that "
            "a teacher's cannot repeat; use one of the two"
        )
    if c.agents.tools:
        raise ConfigError(
            f"{_is_on(c)} and agents.tools is set, but a success with a tool's answers has no text that a "
            "teacher could be shown; use one of the two"
        )


def _check_length(c: R3Config) -> None:
    longest, most = c.longest_taught_row, c.rollout.max_tokens_per_gpu
    if c.train.dynamic_batch and most is not None and most < longest:
        raise ConfigError(
            f"rollout.max_tokens_per_gpu is {most}, but a teacher's prompt with a response may have {longest} tokens "
            f"and cannot be split; use {longest} or more, or a smaller distill.max_success_tokens"
        )
