"""Refuse settings of different sections that exclude each other."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from r3_openrlhf.config.words import ENVIRONMENT, LossAggregation
from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import OpenTable, is_import_path, is_looking
from r3_openrlhf.method.settings import ImportedSettings
from r3_openrlhf.method.types import OldLogprobs

R3Config = Any  # of config/run.py, which imports this file
_WITH_AN_ENVIRONMENT, SENTENCES = (
    tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("with_environment.toml", "between_sections.toml")
)
# beginning of a key -> is its mechanism a part of the algorithm, why not, and where it is
_MECHANISMS: dict[str, tuple[Callable[[R3Config], bool], str, str]] = {
    "advantage.": (
        lambda config: config.algorithm.own_advantages and not config.algorithm.environment,
        "has its own advantages, not eq. 3",
        "algo=r3",
    ),
    "replay.": (
        lambda config: "replay" in config.algorithm.mechanisms,
        "replays no rollouts",
        "algo=r3",
    ),
    "reflection.": (
        lambda config: "reflection" in config.algorithm.mechanisms,
        "reflects on nothing",
        "algo=r3",
    ),
    "ranking.": (
        lambda config: "ranking" in config.algorithm.mechanisms,
        "ranks no failures",
        "algo=r3",
    ),
    "exploration.rrl.": (
        lambda config: config.algorithm.replays_states,
        "keeps no states",
        "algo=rrl",
    ),
    "history.": (lambda config: config.keeps_history, "keeps no history", "algo=r3"),
    "agents.": (
        lambda config: config.is_agentic,
        "plays in no environment",
        "agents.environment=NAME",
    ),
    "agents.tools": (lambda config: True, "", ""),
    "agents.tool_": (
        lambda config: bool(config.agents.tools),
        "calls no tools",
        "agents.tools=[python]",
    ),
}
_DEFAULT_USE = ImportedSettings.__dataclass_fields__["use"].default
_AGENT_FILE_DOES = "agents.environment agents.tools exploration.rrl.ratio reward.function reward.functions reward.urls".split()
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
        beginning = max(
            (one for one in _MECHANISMS if key.startswith(one)), key=len, default=None
        )
        if beginning is None:
            continue
        is_part, why, where = _MECHANISMS[beginning]
        if not is_part(config):
            remedy = _MEANT.get(key, where)
            raise ConfigError(
                f"{key} is {value}, but algo is {config.algo}, which {why}; use {remedy}, or leave it out"
            )


def check_sections(c: R3Config) -> None:
    """ConfigError: settings that exclude each other, or batches that do not divide evenly.

    A condition of `_CONDITIONS` that is not falsy refuses; a dictionary has the names of its sentence.
    """
    for group, (applies, conditions) in _CONDITIONS.items():
        for name, condition in conditions.items() if applies(c) else ():
            if facts := condition(c):
                raise ConfigError(
                    SENTENCES[group][name].format(
                        c=c, **(facts if isinstance(facts, dict) else {})
                    )
                )


def _first(refused: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    return next(refused, None)


def _value(config: R3Config, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def _objects(c: R3Config) -> Iterator[dict[str, Any]]:
    for section in filter(dataclasses.is_dataclass, (c, *vars(c).values())):
        for field in dataclasses.fields(section):
            value, table = getattr(section, field.name), field.metadata.get("words")
            if isinstance(table, OpenTable) and not isinstance(value, str | None):
                yield dict(key=table.key, value=quoted(value))


def _is_known(c: R3Config) -> bool:
    return not (is_looking() and is_import_path(c.algo))


def _set_with_an_environment(c: R3Config) -> Iterator[dict[str, Any]]:
    for key, entry in _WITH_AN_ENVIRONMENT.items():
        works = entry.get("value")
        if _value(c, key) != works:
            shown = (
                {None: "null", False: "false"}.get(works, works)
                if not isinstance(works, list)
                else "[]"
            )
            yield dict(key=key, why=entry["why"], value=shown)


def _filtered_replay(c: R3Config) -> dict[str, Any]:
    by_algo = c.algorithm.filters_groups
    source = f"algo is {c.algo}" if by_algo else "openrlhf.algo.dynamic_filtering_enable is on"
    return dict(source=source) if c.replay.enabled else {}


def _unknown_mechanisms(c: R3Config) -> dict[str, Any]:
    off = (
        name
        for name in ("replay", "reflection", "ranking")
        if name not in c.algorithm.mechanisms
    )
    unknown = [name for name in off if getattr(c, name).enabled]
    remedy = " ".join(f"{name}.enabled=false" for name in unknown)
    return dict(names=", ".join(unknown), remedy=remedy) if unknown else {}


def _keys_of_others(c: R3Config) -> Iterator[dict[str, Any]]:
    algorithm, stock = c.algorithm, "has OpenRLHF's own advantages; use algo=r3"
    for key, off, is_possible, why in (
        (
            "exploration.rrl.ratio",
            0.0,
            algorithm.replays_states,
            "has no critic to choose states; use algo=rrl",
        ),
        (
            "replay.rehearse.share",
            0.0,
            "replay" in algorithm.mechanisms,
            "keeps no history; use algo=r3",
        ),
        (
            "rollout.collect.share",
            0.0,
            "replay" in algorithm.mechanisms,
            "recalls nothing; use algo=r3",
        ),
        ("advantage.success_scale", 1.0, algorithm.own_advantages, stock),
        ("advantage.function", "group_norm", algorithm.own_advantages, stock),
    ):
        if _value(c, key) != off and not is_possible:
            yield dict(key=key, value=_value(c, key), why=why, off=off)


def _estimator_name(c: R3Config) -> str:
    return f"that of {c.algo}" if c.algorithm.advantages is not None else c.advantage.function


def _unread_by_estimator(c: R3Config) -> Iterator[dict[str, Any]]:
    for key, parameter in (
        ("alpha", "alpha"),
        ("std_eps", "lam"),
        ("scope", "off_policy_only"),
    ):
        value, field = getattr(c.advantage, key), type(c.advantage).__dataclass_fields__[key]
        if value != field.default and not c.estimator.reads(parameter):
            yield dict(key=key, value=value, name=_estimator_name(c))


def _other_loss(c: R3Config) -> dict[str, Any]:
    flag = c.flag("actor.policy_loss_type")
    other = (
        f"algo is {c.algo}, which has a loss of its own"
        if c.algorithm.loss is not None
        else None
    )
    if flag not in (None, c.train.loss):
        other = f"the loss of algo={c.algo} or openrlhf.actor.policy_loss_type is {flag}"
    return dict(other=other) if other and c.train.loss != "ppo" else {}


def _bounds_without_loss(c: R3Config) -> Iterator[dict[str, Any]]:
    for section, name in (
        (c.train, "eps_clip_low"),
        (c.train, "eps_clip_high"),
        (c.replay, "dual_clip"),
    ):
        value, default = (
            getattr(section, name),
            type(section).__dataclass_fields__[name].default,
        )
        if value not in (None, default) and name not in c.loss.reads:
            yield dict(
                key=f"{'train' if section is c.train else 'replay'}.{name}",
                value=value,
                name=c.loss_name,
            )


def _untested_with_a_critic(c: R3Config) -> Iterator[dict[str, Any]]:
    for flag, why in (
        ("train.async_enable", "a critic is untested with rollouts that are sampled ahead"),
        ("ds.tensor_parallel_size", "splitting a critic's head is untested"),
    ):
        if (value := c.flag(flag)) not in (None, False, 0, 1) or value is True:
            yield dict(flag=flag, value=value, why=why)


def _rows(c: R3Config) -> dict[str, Any]:
    size = f"rollout.batch_size {c.rollout.batch_size} x n_samples_per_prompt {c.rollout.n_samples_per_prompt}"
    return dict(rows=f"{c.rows_per_step} rows of a step ({size})")


def _uneven_pass(c: R3Config) -> dict[str, Any]:
    size = c.train.micro_batch_size * c.num_policy_ranks
    uneven = not c.train.dynamic_batch and (
        size > c.train_batch_size or c.train_batch_size % size
    )
    return dict(size=size) if uneven else {}


def _short_batches(c: R3Config) -> Iterator[dict[str, Any]]:
    for section in ("train", "rollout") if c.train.dynamic_batch else ():
        tokens = getattr(c, section).max_tokens_per_gpu
        if tokens is not None and tokens < c.data.max_len:
            yield dict(section=section, tokens=tokens)


def _without_flash(c: R3Config) -> Iterator[dict[str, Any]]:
    for name in ("packing", "dynamic_batch"):
        if getattr(c.train, name) and "flash" not in c.model.attn_implementation:
            yield dict(name=name)


def _always(_: R3Config) -> bool:
    return True


Condition = Callable[[R3Config], Any]
# group -> does it concern this run, and its conditions, which are those of between_sections.toml
_CONDITIONS: dict[str, tuple[Condition, dict[str, Condition]]] = {
    "run": (
        _always,
        {
            "text": lambda c: _first(_objects(c)),
            "no_environment": lambda c: (
                _is_known(c) and c.algorithm.environment and not c.is_agentic
            ),
        },
    ),
    "environment": (
        lambda c: c.is_agentic and _is_known(c),
        {
            "algo": lambda c: not c.algorithm.environment,
            "path": lambda c: c.data.path != f"{ENVIRONMENT}{c.agents.environment}",
            "tasks": lambda c: c.data.max_samples is None,
            "held_out": lambda c: (
                c.held_out.path != (c.data.path if c.held_out.max_samples else None)
            ),
            "ahead": lambda c: c.is_async,
            "filter": lambda c: c.filters_groups,
            "keys": lambda c: _first(_set_with_an_environment(c)),
        },
    ),
    "tools": (
        lambda c: c.agents.tools,
        {
            "environment": lambda c: c.is_agentic,
            "states": lambda c: c.exploration.rrl.ratio > 0,
            "critic": lambda c: c.algorithm.has_critic,
        },
    ),
    "agent_file": (
        lambda c: c.flag("train.agent_func_path") is not None,
        {
            "other": lambda c: _first(
                {"key": key, "value": _value(c, key)}
                for key in _AGENT_FILE_DOES
                if _value(c, key)
            ),
        },
    ),
    "async": (
        lambda c: c.is_async,
        {
            "odd": lambda c: c.cluster.gpus_per_node % 2,
            "tensor_parallel": lambda c: (
                c.num_policy_ranks % c.cluster.vllm_tensor_parallel_size
            ),
            "sleep": lambda c: c.cluster.enable_sleep,
            "deterministic": lambda c: c.train.deterministic,
        },
    ),
    "filtering": (
        lambda c: c.filters_groups,
        {
            "replay": _filtered_replay,
            "states": lambda c: c.exploration.rrl.ratio,
            "advantages": lambda c: c.algorithm.own_advantages,
        },
    ),
    "mechanisms": (
        _always,
        {"unknown": _unknown_mechanisms, "keys": lambda c: _first(_keys_of_others(c))},
    ),
    "rehearsal": (
        lambda c: "replay" in c.algorithm.mechanisms,
        {
            "until": lambda c: (
                c.replay.rehearse.until is not None and not c.replay.rehearse.share
            ),
        },
    ),
    "collection": (
        lambda c: c.rollout.collect.share,
        {
            "budget": lambda c: c.train.max_generated_tokens is None,
            "ahead": lambda c: c.is_async,
        },
    ),
    "warm_start": (
        lambda c: c.keeps_history and c.replay.imported.warm_start,
        {
            "nothing": lambda c: not c.has_imported,
        },
    ),
    # a run that was trained before this was refused can still be looked at
    "imported": (
        lambda c: c.keeps_history and not is_looking(),
        {
            "nothing": lambda c: c.replay.imported.use != _DEFAULT_USE and not c.has_imported,
            "recall": lambda c: c.replay.imported.use == "recall" and not c.replay.enabled,
            "rehearse": lambda c: (
                c.replay.imported.use == "rehearse" and not c.replay.rehearse.share
            ),
        },
    ),
    "estimator": (
        lambda c: c.algorithm.own_advantages and not c.algorithm.environment,
        {
            "two": lambda c: (
                c.algorithm.advantages is not None and c.advantage.function != "group_norm"
            ),
            "unread": lambda c: _first(_unread_by_estimator(c)),
            "ranking": lambda c: (
                c.ranking.enabled
                and not c.estimator.reads_failures
                and {"name": _estimator_name(c)}
            ),
        },
    ),
    "loss": (
        _always,
        {
            "two": _other_loss,
            "of_response": lambda c: (
                c.loss.of_response
                and c.train.loss_aggregation == LossAggregation.TOKEN_MEAN
                and {"name": c.loss_name}
            ),
            "bound": lambda c: _first(_bounds_without_loss(c)),
            "recalled": lambda c: (
                "recalled" in c.loss.reads
                and not c.loss.of_user
                and not c.replay.enabled
                and {"name": c.loss_name}
            ),
            "exgrpo": lambda c: (
                c.loss is LOSSES["exgrpo"]
                and c.replay.old_logprobs != OldLogprobs.BEHAVIOUR
                and {"name": c.loss_name}
            ),
        },
    ),
    "critic": (
        lambda c: c.algorithm.has_critic,
        {
            "untested": lambda c: _first(_untested_with_a_critic(c)),
            "adapter": lambda c: c.flag("critic.save_value_network") and c.flag("ds.lora.rank"),
        },
    ),
    "lengths": (
        _always,
        {
            "entropy": lambda c: (
                c.train.logits_chunk_tokens is not None
                and c.flag("actor.entropy_coef") is not None
            ),
            "prompt": lambda c: c.data.max_len <= c.rollout.max_new_tokens,
        },
    ),
    "batches": (
        _always,
        {
            "ranks": lambda c: c.num_policy_ranks > c.rows_per_step and _rows(c),
            "update": lambda c: (
                (c.train_batch_size > c.rows_per_step or c.rows_per_step % c.train_batch_size)
                and _rows(c)
            ),
            "pass": _uneven_pass,
            "rollout": lambda c: (
                c.rows_per_step // c.rollout.micro_batch_size < c.num_policy_ranks and _rows(c)
            ),
            "tokens": lambda c: _first(_short_batches(c)),
            "flash": lambda c: _first(_without_flash(c)),
        },
    ),
}
