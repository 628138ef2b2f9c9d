"""Refuse settings of different sections that exclude each other."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from r3_openrlhf.config.distilling import check_distill
from r3_openrlhf.config.given_keys import value_of
from r3_openrlhf.config.idle_rows import is_of_tokens
from r3_openrlhf.config.partial import check_partial
from r3_openrlhf.config.routing import check_routing_replay
from r3_openrlhf.config.with_environment import (
    check_agent_file,
    check_environment,
    check_tools,
)
from r3_openrlhf.config.words import LossAggregation
from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import OpenTable, is_import_path, is_looking
from r3_openrlhf.method.settings import ImportedSettings
from r3_openrlhf.method.types import OldLogprobs

if TYPE_CHECKING:
    from r3_openrlhf.config.run import R3Config


def check_sections(c: R3Config) -> None:
    """ConfigError: settings that exclude each other, or batches that do not divide evenly.

    Of several faults the first is said; who reads the sentence sees the next after it."""
    _check_texts(c)
    check_environment(c)
    check_tools(c)
    check_agent_file(c)
    _check_async(c)
    _check_group_size(c)
    check_partial(c)
    check_routing_replay(c)
    _check_group_filter(c)
    _check_mechanisms(c)
    _check_keys_of_other_algorithms(c)
    _check_rehearsal(c)
    _check_collection(c)
    _check_warm_start(c)
    _check_imported(c)
    _check_estimator(c)
    _check_loss(c)
    check_distill(c)
    _check_critic(c)
    _check_lengths(c)
    _check_batches(c)
    _check_batches_by_tokens(c)


def _check_texts(c: R3Config) -> None:
    sections = [c, *vars(c).values()]
    for section in sections:
        if not dataclasses.is_dataclass(section):
            continue
        for field in dataclasses.fields(section):
            table = field.metadata.get("words")
            value = getattr(section, field.name)
            if isinstance(table, OpenTable) and not isinstance(value, str | None):
                raise ConfigError(
                    f"{table.key} is {quoted(value)}; a run is kept as text, so use its import path"
                )


def _check_async(c: R3Config) -> None:
    if not c.is_async:
        return
    is_on = "openrlhf.train.async_enable is on and"
    cluster = c.cluster
    if cluster.gpus_per_node % 2:
        raise ConfigError(
            f"{is_on} cluster.gpus_per_node is {cluster.gpus_per_node}, but the engines then use "
            "half of the GPUs; use an even number"
        )
    if c.num_policy_ranks % cluster.vllm_tensor_parallel_size:
        raise ConfigError(
            f"{is_on} cluster.vllm_tensor_parallel_size is {cluster.vllm_tensor_parallel_size}, "
            f"which does not divide the {c.num_policy_ranks} GPUs of the engines"
        )
    if cluster.enable_sleep:
        raise ConfigError(
            f"{is_on} cluster.enable_sleep is true, but engines never sleep then; use "
            "cluster.enable_sleep=false"
        )
    if c.train.deterministic:
        raise ConfigError(
            f"{is_on} train.deterministic is true, but then timing decides which weights sample "
            "a step; use one of the two"
        )


def _check_group_size(c: R3Config) -> None:
    if c.rollout.n_samples_per_prompt > 1 or (is_looking() and is_import_path(c.algo)):
        return
    if c.algorithm.compares_groups:
        raise ConfigError(
            f"rollout.n_samples_per_prompt is 1, but algo is {c.algo}, which compares the responses of "
            "one prompt with each other; use 2 or more, or algo=flash_reinforce, reinforce_pp or ppo"
        )
    if c.filters_groups:
        raise ConfigError(
            "rollout.n_samples_per_prompt is 1 and openrlhf.algo.dynamic_filtering_enable is on, which "
            "drops groups of equal verdicts, so every one; use 2 or more, or leave the filter off"
        )


def _check_group_filter(c: R3Config) -> None:
    if not c.filters_groups:
        return
    if c.replay.enabled:
        source = "openrlhf.algo.dynamic_filtering_enable is on"
        if c.algorithm.filters_groups:
            source = f"algo is {c.algo}"
        raise ConfigError(
            f"{source} and replay.enabled is true: dynamic filtering removes exactly the groups "
            "that replay repairs; use replay.enabled=false, or leave dynamic filtering off"
        )
    if c.exploration.rrl.ratio:
        raise ConfigError(
            "openrlhf.algo.dynamic_filtering_enable is on and exploration.rrl.ratio is "
            f"{c.exploration.rrl.ratio}: groups from states would be filtered out while they "
            "fail; use one of the two"
        )
    if c.algorithm.own_advantages:
        raise ConfigError(
            f"openrlhf.algo.dynamic_filtering_enable is on with algo={c.algo}: collapsed groups "
            "would be gone before they are ranked or counted; use algo=dapo, or leave it off"
        )


def _check_mechanisms(c: R3Config) -> None:
    off = {
        "replay": "replay.enabled=false",
        "reflection": "reflection.enabled=false",
        "ranking": "ranking.enabled=false",
        "distill": "distill.coef=0",
    }
    unknown = []
    for name in off:
        if name not in c.algorithm.mechanisms and getattr(c, name).enabled:
            unknown.append(name)
    if unknown:
        remedy = " ".join(off[name] for name in unknown)
        raise ConfigError(
            f"algo is {c.algo}, which runs OpenRLHF's own classes, but {', '.join(unknown)} would "
            f"need algo=r3; add {remedy}"
        )


def _check_keys_of_other_algorithms(c: R3Config) -> None:
    replays = "replay" in c.algorithm.mechanisms
    if not c.algorithm.replays_states:
        why = "has no critic to choose states; use algo=rrl"
        _refuse_unless(c, "exploration.rrl.ratio", 0.0, why)
    if not replays:
        _refuse_unless(c, "replay.rehearse.share", 0.0, "keeps no history; use algo=r3")
        _refuse_unless(c, "rollout.collect.share", 0.0, "recalls nothing; use algo=r3")
    if not c.algorithm.own_advantages:
        why = "has OpenRLHF's own advantages; use algo=r3"
        _refuse_unless(c, "advantage.success_scale", 1.0, why)
        _refuse_unless(c, "advantage.function", "group_norm", why)


def _refuse_unless(c: R3Config, key: str, off: float | str, why: str) -> None:
    """ConfigError: a key has another value than the one with which it does nothing."""
    value = value_of(c, key)
    if value != off:
        raise ConfigError(f"{key} is {value}, but algo is {c.algo}, which {why} or {key}={off}")


def _check_rehearsal(c: R3Config) -> None:
    rehearse = c.replay.rehearse
    if "replay" not in c.algorithm.mechanisms:
        return
    if rehearse.until is not None and not rehearse.share:
        raise ConfigError(
            f"replay.rehearse.until is {rehearse.until}, but replay.rehearse.share is 0, so there "
            "is no share to fall; set the share, or leave it out"
        )


def _check_collection(c: R3Config) -> None:
    share = c.rollout.collect.share
    if not share:
        return
    if c.train.max_generated_tokens is None:
        raise ConfigError(
            f"rollout.collect.share is {share}, a share of train.max_generated_tokens, which is "
            "null; set the budget"
        )
    if c.is_async:
        raise ConfigError(
            f"rollout.collect.share is {share} and openrlhf.train.async_enable is on, but the "
            "first policy samples before step 1; use one of the two"
        )


def _check_warm_start(c: R3Config) -> None:
    imported = c.replay.imported
    warm_start = imported.warm_start
    replays = "replay" in c.algorithm.mechanisms  # else no key of replay is read
    for name in ("warm_start_scale", "warm_start_batch_size"):
        value = getattr(imported, name)
        is_off = type(imported).__dataclass_fields__[name].default
        if replays and not warm_start and value != is_off and not is_looking():
            raise ConfigError(
                f"replay.imported.{name} is {value}, but replay.imported.warm_start is 0, so that "
                "nothing is trained before step 1; set the passes, or leave it out"
            )
    if c.keeps_history and warm_start and not c.has_imported:
        raise ConfigError(
            f"replay.imported.warm_start is {warm_start}, but there is nothing to train on "
            "(algo=sft_then_grpo sets it); set history.start=DIR of r3 history import, or "
            "rollout.collect.share"
        )


def _check_imported(c: R3Config) -> None:
    # a run that was trained before this was refused can still be looked at
    if not c.keeps_history or is_looking():
        return
    use = c.replay.imported.use
    default = ImportedSettings.__dataclass_fields__["use"].default
    if use != default and not c.has_imported:
        raise ConfigError(
            f"replay.imported.use is {use} (algo=prefix, rlep and luffy set it), but the run has "
            "no success from elsewhere to use; set history.start=DIR of r3 history import, or "
            "rollout.collect.share, or use replay.imported.use=both"
        )
    places = c.replay.imported.k
    if places is not None and places > c.replay.k:
        raise ConfigError(
            f"replay.imported.k is {places}, but replay.k is {c.replay.k}, which counts these "
            "places; set replay.k to as many or more"
        )
    if places is not None and use in ("rehearse", "prefix"):
        raise ConfigError(
            f"replay.imported.k is {places}, but replay.imported.use is {use}, with which no "
            "imported success is recalled; leave it out"
        )
    if use == "recall" and not c.replay.enabled:
        raise ConfigError(
            "replay.imported.use is recall, but replay.enabled is false, so that nothing is "
            "recalled; use replay.enabled=true"
        )
    if use == "rehearse" and not c.replay.rehearse.share:
        raise ConfigError(
            "replay.imported.use is rehearse, but replay.rehearse.share is 0, so that nothing is "
            "rehearsed; set the share"
        )


def _check_estimator(c: R3Config) -> None:
    if not c.algorithm.own_advantages or c.algorithm.environment:
        return
    name = c.advantage.function
    if c.algorithm.advantages is not None:
        name = f"that of {c.algo}"
        if c.advantage.function != "group_norm":
            raise ConfigError(
                f"advantage.function is {c.advantage.function}, but algo is {c.algo}, which has "
                "advantages of its own; leave one of the two out"
            )
    parameters = {"alpha": "alpha", "std_eps": "lam", "scope": "off_policy_only"}
    for key, parameter in parameters.items():
        value = getattr(c.advantage, key)
        default = type(c.advantage).__dataclass_fields__[key].default
        if value != default and not c.estimator.reads(parameter):
            raise ConfigError(
                f"advantage.{key} is {value}, but the estimator is {name}, which does not read "
                "it; leave it out"
            )
    if c.ranking.enabled and not c.estimator.reads_failures:
        raise ConfigError(
            f"ranking.enabled is true, but the estimator is {name}, which reads no reward of a "
            "failure, so that a ranking would change nothing; use ranking.enabled=false"
        )


def _check_loss(c: R3Config) -> None:
    _check_one_loss(c)
    by_tokens = c.train.loss_aggregation == LossAggregation.TOKEN_MEAN
    if c.loss.of_response and by_tokens:
        raise ConfigError(
            f"the policy loss is {c.loss_name}, whose ratio is one of a whole response, but "
            f"train.loss_aggregation is {c.train.loss_aggregation}; use "
            "train.loss_aggregation=seq-mean-token-mean"
        )
    _check_correction(c)
    _check_bounds(c)
    if "recalled" in c.loss.reads and not c.loss.of_user and not c.replay.enabled:
        raise ConfigError(
            f"the policy loss is {c.loss_name}, which differs from ppo in recalled rows alone, but "
            "nothing is recalled; use algo=r3 with replay.enabled=true, or train.loss=ppo"
        )
    if c.loss is LOSSES["exgrpo"] and c.replay.old_logprobs != OldLogprobs.BEHAVIOUR:
        raise ConfigError(
            f"the policy loss is {c.loss_name}, which shapes the ratio to a recalled row's stored "
            f"log-probs, but replay.old_logprobs is {c.replay.old_logprobs}, with which that "
            "ratio is 1; use replay.old_logprobs=behaviour"
        )


def _check_correction(c: R3Config) -> None:
    if c.train.correction.resolved is None or is_of_tokens(c.loss, c.loss_settings):
        return
    raise ConfigError(
        f"train.correction.method is {c.train.correction.method}, which weighs the loss of each token by its "
        f"own log-probs, but the policy loss {c.loss_name} reads those of other tokens, too; use "
        "train.correction.method=none or another train.loss"
    )


def _check_one_loss(c: R3Config) -> None:
    if c.train.loss == "ppo":
        return
    flag = c.flag("actor.policy_loss_type")
    if flag not in (None, c.train.loss):
        other = f"the loss of algo={c.algo} or openrlhf.actor.policy_loss_type is {flag}"
    elif c.algorithm.loss is not None:
        other = f"algo is {c.algo}, which has a loss of its own"
    else:
        return
    raise ConfigError(f"train.loss is {c.train.loss}, but {other}; leave one of the two out")


def _check_bounds(c: R3Config) -> None:
    bounds = (("train", "eps_clip_low"), ("train", "eps_clip_high"), ("replay", "dual_clip"))
    for section_name, name in bounds:
        section = getattr(c, section_name)
        value = getattr(section, name)
        default = type(section).__dataclass_fields__[name].default
        if value not in (None, default) and name not in c.loss.reads:
            raise ConfigError(
                f"{section_name}.{name} is {value}, but the policy loss is {c.loss_name}, which "
                "has no such bound; leave it out"
            )


def _check_critic(c: R3Config) -> None:
    if not c.algorithm.has_critic:
        return
    untested = {
        "train.async_enable": "a critic is untested with rollouts that are sampled ahead",
        "ds.tensor_parallel_size": "splitting a critic's head is untested",
    }
    for flag, why in untested.items():
        value = c.flag(flag)
        if value is True or value not in (None, False, 0, 1):
            raise ConfigError(
                f"algo is {c.algo} and openrlhf.{flag} is {value}, but {why}; leave it out"
            )
    if c.flag("critic.save_value_network") and c.flag("ds.lora.rank"):
        raise ConfigError(
            "openrlhf.critic.save_value_network is on with openrlhf.ds.lora.rank, but OpenRLHF "
            "saves the adapter without the critic's head; use one of the two"
        )


def _check_lengths(c: R3Config) -> None:
    chunk = c.train.logits_chunk_tokens
    if chunk is not None and c.flag("actor.entropy_coef") is not None:
        raise ConfigError(
            f"train.logits_chunk_tokens is {chunk}, but the entropy bonus of "
            "openrlhf.actor.entropy_coef needs all logits; use one of the two"
        )
    if c.data.max_len <= c.rollout.max_new_tokens:
        raise ConfigError(
            f"data.max_len is {c.data.max_len} and rollout.max_new_tokens is "
            f"{c.rollout.max_new_tokens}: no room is left for a prompt; data.max_len counts "
            "prompt and response together"
        )


def _check_batches(c: R3Config) -> None:
    ranks = c.num_policy_ranks
    rows = (
        f"{c.rows_per_step} rows of a step (rollout.batch_size {c.rollout.batch_size} x "
        f"n_samples_per_prompt {c.rollout.n_samples_per_prompt})"
    )
    if ranks > c.rows_per_step:
        raise ConfigError(
            f"cluster has {ranks} ranks, more than the {rows}; use fewer GPUs or a larger batch"
        )
    _check_rows_per_update(c)
    batch = c.train_batch_size
    if batch > c.rows_per_step or c.rows_per_step % batch:
        raise ConfigError(f"train.batch_size is {batch}, which does not divide the {rows}")
    rows_per_pass = c.train.micro_batch_size * ranks
    divides = rows_per_pass <= batch and batch % rows_per_pass == 0
    if not c.train.dynamic_batch and not divides:
        raise ConfigError(
            f"train.micro_batch_size {c.train.micro_batch_size} on {ranks} ranks makes "
            f"{rows_per_pass} rows per pass, which does not divide train.batch_size {batch}"
        )
    if c.rows_per_step // c.rollout.micro_batch_size < ranks:
        raise ConfigError(
            f"rollout.micro_batch_size is {c.rollout.micro_batch_size}: the {rows} make fewer "
            f"micro-batches than there are ranks ({ranks})"
        )


def _check_rows_per_update(c: R3Config) -> None:
    most, ranks = c.train.rows_per_update, c.num_policy_ranks
    if most is None:
        return
    if c.train.batch_size is not None:
        raise ConfigError(
            f"train.rows_per_update is {most} and train.batch_size is {c.train.batch_size}, but both say "
            "how many rows an update has; use one of the two"
        )
    if most % ranks:
        raise ConfigError(
            f"train.rows_per_update is {most}, which the {ranks} ranks cannot share evenly; use a "
            f"multiple of {ranks}"
        )
    schedule = c.flag("actor.lr_scheduler")
    if schedule is not None and not str(schedule).startswith("constant"):
        raise ConfigError(
            f"train.rows_per_update is {most} and openrlhf.actor.lr_scheduler is {schedule}, but nobody "
            "knows ahead how many updates such a run makes; use a constant one, or train.batch_size"
        )
    updates = c.updates_of(c.rows_per_step)
    if not c.algorithm.own_advantages and c.rows_per_step % (ranks * updates):
        raise ConfigError(
            f"train.rows_per_update is {most}: the {c.rows_per_step} rows of a step are {updates} updates on "
            f"{ranks} ranks, which cannot share them evenly with algo={c.algo}; use a divisor of the rows"
        )


def _check_batches_by_tokens(c: R3Config) -> None:
    if c.train.dynamic_batch:
        for name in ("train", "rollout"):
            tokens = getattr(c, name).max_tokens_per_gpu
            if tokens is not None and tokens < c.data.max_len:
                raise ConfigError(
                    f"{name}.max_tokens_per_gpu is {tokens}, but one row may have "
                    f"data.max_len={c.data.max_len} tokens and cannot be split; use "
                    f"{c.data.max_len} or more, or a smaller data.max_len"
                )
    for name in ("packing", "dynamic_batch"):
        if getattr(c.train, name) and "flash" not in c.model.attn_implementation:
            raise ConfigError(
                f"train.{name} needs flash attention, but model.attn_implementation is "
                f"{c.model.attn_implementation}; use flash_attention_2 or train.{name}=false"
            )
