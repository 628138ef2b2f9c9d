"""Refuse settings of different sections that exclude each other."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from r3_openrlhf.config.words import ENVIRONMENT, LossAggregation
from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import OpenTable, is_import_path, is_looking
from r3_openrlhf.method.types import OldLogprobs

R3Config = Any  # of config/run.py, which imports this file
_WITH_AN_ENVIRONMENT: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("with_environment.toml").read_text(encoding="utf-8")
)
# beginning of a key -> is its mechanism a part of the algorithm, why not, and where it is
_MECHANISMS: dict[str, tuple[Callable[[R3Config], bool], str, str]] = {
    "advantage.": (
        lambda config: config.algorithm.own_advantages and not config.algorithm.environment,
        "has its own advantages, not eq. 3",
        "algo=r3",
    ),
    "replay.": (lambda config: "replay" in config.algorithm.mechanisms, "replays no rollouts", "algo=r3"),
    "reflection.": (lambda config: "reflection" in config.algorithm.mechanisms, "reflects on nothing", "algo=r3"),
    "ranking.": (lambda config: "ranking" in config.algorithm.mechanisms, "ranks no failures", "algo=r3"),
    "exploration.rrl.": (lambda config: config.algorithm.replays_states, "keeps no states", "algo=rrl"),
    "history.": (lambda config: config.keeps_history, "keeps no history", "algo=r3"),
    "agents.": (lambda config: config.is_agentic, "plays in no environment", "agents.environment=NAME"),
    "agents.tools": (lambda config: True, "", ""),
    "agents.tool_": (lambda config: bool(config.agents.tools), "calls no tools", "agents.tools=[python]"),
}
# a key that does nothing -> the key that is meant
_MEANT = {
    "replay.dual_clip": "openrlhf.actor.dual_clip",
    "advantage.std_eps": "openrlhf.algo.advantage.lambd for GAE's lambda (algo=ppo)",
}


def check_given(config: R3Config, keys: Iterable[str], *, defaults: Mapping[str, Any]) -> None:
    """ConfigError: somebody set one of these keys, and nothing reads it with this algorithm.

    A default passes, and a mechanism that is switched off. An experiment's keys are not among them: its
    arms have different algorithms."""
    for key in keys:
        value = _value(config, key) if key in defaults else None
        if value is None or value == defaults[key] or key.endswith(".enabled"):
            continue
        beginning = max((one for one in _MECHANISMS if key.startswith(one)), key=len, default=None)
        if beginning is None:
            continue
        is_part, why, where = _MECHANISMS[beginning]
        if not is_part(config):
            remedy = _MEANT.get(key, where)
            raise ConfigError(
                f"{key} is {value}, but algo is {config.algo}, which {why}; use {remedy}, or leave it out"
            )


def check_sections(config: R3Config) -> None:
    """ConfigError: settings that exclude each other, or batches that do not divide evenly."""
    for check in _CHECKS:
        check(config)


def _check_texts(config: R3Config) -> None:
    for section in filter(dataclasses.is_dataclass, (config, *vars(config).values())):
        for field in dataclasses.fields(section):
            value, table = getattr(section, field.name), field.metadata.get("words")
            if isinstance(table, OpenTable) and not isinstance(value, str | None):
                raise ConfigError(f"{table.key} is {quoted(value)}; a run is kept as text, so use its import path")


def _value(config: R3Config, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def _check_environment(config: R3Config) -> None:
    if is_looking() and is_import_path(config.algo):
        return
    if config.is_agentic:
        _check_agents(config, f"agents.environment is {config.agents.environment}")
    elif config.algorithm.environment:
        raise ConfigError(
            f"algo is {config.algo}, but agents.environment is not set; use agents.environment=NAME, or algo=grpo "
            "for problems"
        )


def _check_agents(config: R3Config, given: str) -> None:
    if not config.algorithm.environment:
        raise ConfigError(
            f"{given}, but algo is {config.algo}, which compares whole responses; use algo=hgpo, algo=gigpo or "
            "algo=agent_grpo"
        )
    if config.data.path != f"{ENVIRONMENT}{config.agents.environment}":
        raise ConfigError(
            f"{given} and data.path is {config.data.path}, but its tasks are its seeds; leave data.path out"
        )
    if config.data.max_samples is None:
        raise ConfigError(
            f"{given} and data.max_samples is not set; a task is a seed, so say how many an epoch has: "
            "data.max_samples=1024"
        )
    if config.held_out.path != (config.data.path if config.held_out.max_samples else None):
        raise ConfigError(
            f"{given} and held_out.path is {config.held_out.path}, but held-out tasks are its next seeds; use "
            "held_out.max_samples"
        )
    for flag, is_on, why in (
        ("train.async_enable", config.is_async, "trajectories are not sampled ahead of the step that trains"),
        ("algo.dynamic_filtering_enable", config.filters_groups, "a task's group has a row for each turn"),
    ):
        if is_on:
            raise ConfigError(f"{given} and openrlhf.{flag} is set, but {why}; use openrlhf.{flag}=false")
    for key, entry in _WITH_AN_ENVIRONMENT.items():
        works, why = entry.get("value"), entry["why"]
        if _value(config, key) != works:
            shown = {None: "null", False: "false"}.get(works, works) if not isinstance(works, list) else "[]"
            raise ConfigError(f"{given} and {key} is set, but {why}; use {key}={shown}")


def _check_tools(config: R3Config) -> None:
    for key, is_on, why in (
        ("agents.environment", config.is_agentic, "an environment takes one action a turn"),
        ("exploration.rrl.ratio", config.exploration.rrl.ratio > 0, "a critic has no value of given tokens"),
        ("algo", config.algorithm.has_critic, "a critic's advantages would cross the given tokens"),
    ):
        if config.agents.tools and is_on:
            raise ConfigError(f"agents.tools is set and {key} is {_value(config, key)}, but {why}; use one of the two")


def _check_async(config: R3Config) -> None:
    if not config.is_async:
        return
    on, cluster = "openrlhf.train.async_enable is on", config.cluster
    if cluster.gpus_per_node % 2:
        raise ConfigError(
            f"{on} and cluster.gpus_per_node is {cluster.gpus_per_node}, but the engines then use half of the GPUs; use an "
            "even number"
        )
    if config.num_policy_ranks % cluster.vllm_tensor_parallel_size:
        raise ConfigError(
            f"{on} and cluster.vllm_tensor_parallel_size is {cluster.vllm_tensor_parallel_size}, which does not divide the "
            f"{config.num_policy_ranks} GPUs of the engines"
        )
    if cluster.enable_sleep:
        raise ConfigError(
            f"{on} and cluster.enable_sleep is true, but engines never sleep then; use cluster.enable_sleep=false"
        )
    if config.train.deterministic:
        raise ConfigError(
            f"{on} and train.deterministic is true, but then timing decides which weights sample a step; use one of the two"
        )


def _check_filtering(config: R3Config) -> None:
    if not config.filters_groups:
        return
    algorithm, flag = config.algorithm, "openrlhf.algo.dynamic_filtering_enable is on"
    if config.replay.enabled:
        source = f"algo is {config.algo}" if algorithm.filters_groups else flag
        raise ConfigError(
            f"{source} and replay.enabled is true: dynamic filtering removes exactly the groups that replay "
            "repairs; use replay.enabled=false, or leave dynamic filtering off"
        )
    if ratio := config.exploration.rrl.ratio:
        raise ConfigError(
            f"{flag} and exploration.rrl.ratio is {ratio}: groups from states would be filtered out while they "
            "fail; use one of the two"
        )
    if algorithm.own_advantages:
        raise ConfigError(
            f"{flag} with algo={config.algo}: collapsed groups would be gone before they are ranked or counted; "
            "use algo=dapo, or leave it off"
        )


def _check_mechanisms(config: R3Config) -> None:
    algorithm = config.algorithm
    mechanisms = ("replay", "reflection", "ranking")
    unknown = [name for name in mechanisms if getattr(config, name).enabled and name not in algorithm.mechanisms]
    if unknown:
        remedy = " ".join(f"{name}.enabled=false" for name in unknown)
        raise ConfigError(
            f"algo is {config.algo}, which runs OpenRLHF's own classes, but {', '.join(unknown)} would need algo=r3; "
            f"add {remedy}"
        )
    for key, off, is_possible, why in (
        ("exploration.rrl.ratio", 0.0, algorithm.replays_states, "has no critic to choose states; use algo=rrl"),
        ("replay.rehearse.share", 0.0, "replay" in algorithm.mechanisms, "keeps no history; use algo=r3"),
        ("advantage.success_scale", 1.0, algorithm.own_advantages, "has OpenRLHF's own advantages; use algo=r3"),
        ("advantage.function", "group_norm", algorithm.own_advantages, "has OpenRLHF's own advantages; use algo=r3"),
    ):
        value = _value(config, key)
        if value != off and not is_possible:
            raise ConfigError(f"{key} is {value}, but algo is {config.algo}, which {why} or {key}={off}")


def _check_estimator(config: R3Config) -> None:
    algorithm, advantage = config.algorithm, config.advantage
    if not algorithm.own_advantages or algorithm.environment:
        return
    name = advantage.function
    if algorithm.advantages is not None:
        name = f"that of {config.algo}"
        if advantage.function != "group_norm":
            raise ConfigError(
                f"advantage.function is {advantage.function}, but algo is {config.algo}, which has advantages of its own; "
                "leave one of the two out"
            )
    for key, parameter in (("alpha", "alpha"), ("std_eps", "lam"), ("scope", "off_policy_only")):
        value = getattr(advantage, key)
        if value != type(advantage).__dataclass_fields__[key].default and not config.estimator.reads(parameter):
            raise ConfigError(
                f"advantage.{key} is {value}, but the estimator is {name}, which does not read it; leave it out"
            )
    if config.ranking.enabled and not config.estimator.reads_failures:
        raise ConfigError(
            f"ranking.enabled is true, but the estimator is {name}, which reads no reward of a failure, so that a ranking "
            "would change nothing; use ranking.enabled=false"
        )


def _check_loss(config: R3Config) -> None:
    train, algorithm, loss = config.train, config.algorithm, config.loss
    flag = config.flag("actor.policy_loss_type")
    other = f"algo is {config.algo}, which has a loss of its own" if algorithm.loss is not None else None
    if flag not in (None, train.loss):
        other = f"the loss of algo={config.algo} or openrlhf.actor.policy_loss_type is {flag}"
    if other and train.loss != "ppo":
        raise ConfigError(f"train.loss is {train.loss}, but {other}; leave one of the two out")
    name = f"that of {config.algo}" if algorithm.loss is not None else flag or train.loss
    if loss.of_response and train.loss_aggregation == LossAggregation.TOKEN_MEAN:
        raise ConfigError(
            f"the policy loss is {name}, whose ratio is one of a whole response, but train.loss_aggregation is "
            f"{train.loss_aggregation}; use train.loss_aggregation=seq-mean-token-mean"
        )
    for section, key in ((train, "eps_clip_low"), (train, "eps_clip_high"), (config.replay, "dual_clip")):
        value = getattr(section, key)
        if value not in (None, type(section).__dataclass_fields__[key].default) and key not in loss.reads:
            prefix = "train" if section is train else "replay"
            raise ConfigError(
                f"{prefix}.{key} is {value}, but the policy loss is {name}, which has no such bound; leave it out"
            )
    if "recalled" in loss.reads and not loss.of_user and not config.replay.enabled:
        raise ConfigError(
            f"the policy loss is {name}, which differs from ppo in recalled rows alone, but nothing is recalled; use "
            "algo=r3 with replay.enabled=true, or train.loss=ppo"
        )
    if loss is LOSSES["exgrpo"] and config.replay.old_logprobs != OldLogprobs.BEHAVIOUR:
        raise ConfigError(
            f"the policy loss is {name}, which shapes the ratio to a recalled row's stored log-probs, but replay.old_logprobs "
            f"is {config.replay.old_logprobs}, with which that ratio is 1; use replay.old_logprobs=behaviour"
        )


def _check_critic(config: R3Config) -> None:
    if not config.algorithm.has_critic:
        return
    for name, why in (
        ("train.async_enable", "a critic is untested with rollouts that are sampled ahead"),
        ("ds.tensor_parallel_size", "splitting a critic's head is untested"),
    ):
        if (value := config.flag(name)) not in (None, False, 0, 1) or value is True:
            raise ConfigError(f"algo is {config.algo} and openrlhf.{name} is {value}, but {why}; leave it out")
    if config.flag("critic.save_value_network") and config.flag("ds.lora.rank"):
        raise ConfigError(
            "openrlhf.critic.save_value_network is on with openrlhf.ds.lora.rank, but OpenRLHF saves the adapter without the critic's "
            "head; use one of the two"
        )


def _check_lengths(config: R3Config) -> None:
    if config.train.logits_chunk_tokens is not None and config.flag("actor.entropy_coef") is not None:
        raise ConfigError(
            f"train.logits_chunk_tokens is {config.train.logits_chunk_tokens}, but the entropy bonus of "
            "openrlhf.actor.entropy_coef needs all logits; use one of the two"
        )
    if config.data.max_len <= config.rollout.max_new_tokens:
        raise ConfigError(
            f"data.max_len is {config.data.max_len} and rollout.max_new_tokens is {config.rollout.max_new_tokens}: no "
            "room is left for a prompt; data.max_len counts prompt and response together"
        )


def _check_batches(config: R3Config) -> None:
    rows, ranks, batch = config.rows_per_step, config.num_policy_ranks, config.train_batch_size
    size = (
        f"rollout.batch_size {config.rollout.batch_size} x n_samples_per_prompt {config.rollout.n_samples_per_prompt}"
    )
    if ranks > rows:
        raise ConfigError(
            f"cluster has {ranks} ranks, more than the {rows} rows of a step ({size}); use fewer GPUs or a larger batch"
        )
    if batch > rows or rows % batch:
        raise ConfigError(f"train.batch_size is {batch}, which does not divide the {rows} rows of a step ({size})")
    micro = config.train.micro_batch_size
    if not config.train.dynamic_batch and (micro * ranks > batch or batch % (micro * ranks)):
        raise ConfigError(
            f"train.micro_batch_size {micro} on {ranks} ranks makes {micro * ranks} rows per pass, which does not "
            f"divide train.batch_size {batch}"
        )
    if rows // config.rollout.micro_batch_size < ranks:
        raise ConfigError(
            f"rollout.micro_batch_size is {config.rollout.micro_batch_size}: the {rows} rows of a step ({size}) make "
            f"fewer micro-batches than there are ranks ({ranks})"
        )
    for section in ("train", "rollout") if config.train.dynamic_batch else ():
        tokens = getattr(config, section).max_tokens_per_gpu
        if tokens is not None and tokens < config.data.max_len:
            raise ConfigError(
                f"{section}.max_tokens_per_gpu is {tokens}, but one row may have data.max_len={config.data.max_len} tokens "
                f"and cannot be split; use {config.data.max_len} or more, or a smaller data.max_len"
            )
    for name in ("packing", "dynamic_batch"):
        if getattr(config.train, name) and "flash" not in config.model.attn_implementation:
            raise ConfigError(
                f"train.{name} needs flash attention, but model.attn_implementation is "
                f"{config.model.attn_implementation}; use flash_attention_2 or train.{name}=false"
            )


_CHECKS: tuple[Callable[[R3Config], None], ...] = (
    _check_texts,
    _check_environment,
    _check_tools,
    _check_async,
    _check_filtering,
    _check_mechanisms,
    _check_estimator,
    _check_loss,
    _check_critic,
    _check_lengths,
    _check_batches,
)
