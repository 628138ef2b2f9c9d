"""Decide for every flag of the installed OpenRLHF that is given as `openrlhf.FLAG=VALUE`.

    python tools/openrlhf_flags.py        prints the section of docs/algorithms.md

A flag is set from our configuration, passed through to OpenRLHF, whose parser and checks judge its
value, or refused with a reason: it would be ignored, or break the run later. The lists are in
flags.toml; a test compares the page with the installed parser."""

import functools
import importlib.util
import tomllib
from pathlib import Path
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.algorithms import ALGORITHMS
from r3_openrlhf.method.errors import ConfigError

_TABLE = tomllib.loads(Path(__file__).with_name("flags.toml").read_text(encoding="utf-8"))
ALSO_SET, MAY_BE_SET = frozenset(_TABLE["also_set"]), frozenset(_TABLE["may_be_set"])
ALWAYS: dict[str, Any] = _TABLE["always"]  # flag -> its value in every run
SAME: dict[str, str] = _TABLE["same"]  # flag -> the key that says the same
REFUSED: dict[str, str] = {
    flag: group["why"] for group in _TABLE["refused"] for flag in group["flags"]
}
REFUSED_WITH_R3: dict[str, str] = _TABLE["refused_with_r3"]
# Refused for some of their values: (the values that pass, why not the others)
VALUES: dict[str, tuple[tuple[str, ...], str]] = {
    one["flag"]: (tuple(one["values"]), one["why"]) for one in _TABLE["only"]
}
# Of an imported command line: flags that are read together with others; of flags without a key what decides
TOGETHER, NO_COUNTERPART = frozenset(_TABLE["together"]), _TABLE["no_counterpart"]
# flag of OpenRLHF 0.5 to 0.9 -> that of today, with its value
OLD_NAMES: dict[str, str] = _TABLE["old_names"]
# flag of those releases that nothing answers -> why a run does without it
GONE: dict[str, str] = {
    flag: group["why"] for group in _TABLE["gone"] for flag in group["flags"]
}
OLD_CORRECTION: dict[str, Any] = _TABLE["old_correction"]
NEEDS: dict[str, dict[str, Any]] = {
    flag: need for need in _TABLE["needs"] for flag in need["flags"]
}


def need_of(name: str) -> dict[str, Any] | None:
    """Return the condition without which a flag does nothing, if any: each of the critic's needs one."""
    return NEEDS.get(name, NEEDS["critic.*"] if name.startswith("critic.") else None)


def _is_met(need: dict[str, Any], config: R3Config) -> bool:
    """Tell whether all settings of the condition, keys or flags of OpenRLHF, have such a value."""
    return all(_holds(one, _value(one, config)) for one in need["settings"])


def _value(setting: dict[str, Any], config: R3Config) -> object:
    flag = setting["name"].removeprefix("openrlhf.")
    is_key = flag == setting["name"]
    return functools.reduce(getattr, flag.split("."), config) if is_key else config.flag(flag)


def _holds(condition: dict[str, Any], value: object) -> bool:
    if "is" in condition:
        return value in condition["is"]
    if "is_not" in condition:
        return value not in condition["is_not"]
    if "below" in condition:
        return value is not None and value < condition["below"]
    return (value or 0) > condition["above"] if "above" in condition else bool(value)


_PACKAGES = {
    "ds.ring_attn_size": ("ring_flash_attn", "ring-flash-attn"),
    "ds.use_liger_kernel": ("liger_kernel",) * 2,
}


def check_flag(name: str, value: object, config: R3Config) -> None:
    """Raise ConfigError for a flag that would be ignored or break the run. One that is off passes."""
    if value is None or value is False:
        return
    reason = refusal(name, algo=config.algo)
    limited = VALUES.get(name)
    if limited is not None:
        passing, why = limited
        if value not in passing:
            reason = f"{why}; use {' or '.join(passing)}"
    if name == "ds.lora.target_modules" and "all-linear" in (
        value if isinstance(value, list) else [value]
    ):
        reason = "that is what PEFT takes when it is left out, and it does not know the word in a list; leave it out"
    if reason:
        raise ConfigError(f"openrlhf.{name} is {value}, but {reason}")
    module, package = _PACKAGES.get(name, (None, None))
    if module and not _is_one(value) and importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"openrlhf.{name} is {value}, but it needs the package {package}, which is not installed"
        )


def check_together(given: dict[str, Any], config: R3Config, *, platform: str) -> None:
    """Raise ConfigError for flags that do nothing, or break the run, together with each other and
    the configuration.

    given: flag -> value, each of which `check_flag` has let pass."""
    for name, value in given.items():
        need = need_of(name)
        if (
            value in (None, False, "off")
            or _is_one(value)
            or need is None
            or _is_met(need, config)
        ):
            continue
        raise ConfigError(
            f"openrlhf.{name} is {value}, but it does nothing without {need['what']}"
        )
    for conflict in _TABLE["conflicts"]:
        if _is_met(conflict, config):
            raise ConfigError(
                conflict["why"].format(*(_value(one, config) for one in conflict["settings"]))
            )
    # optimizers of ZeRO 0 and 1 (deepspeed/runtime/engine.py:2064-2107), found out when the model is loaded
    stage, sums = config.train.zero_stage, given.get("ds.grad_accum_dtype")
    stays = not config.train.adam_offload and (
        stage == 0 or (stage == 1 and sums in ("fp32", "float32"))
    )
    if platform == "cuda" and config.cluster.enable_sleep and stays:
        raise ConfigError(
            f"cluster.enable_sleep is true, but DeepSpeed cannot move the states of train.zero_stage={stage}"
            + (f" with openrlhf.ds.grad_accum_dtype={sums}" if stage else "")
            + " to the host; use train.zero_stage=2, or cluster.enable_sleep=false"
        )


def _is_one(value: object) -> bool:
    """ds.zpg=1, ds.ring_attn_size=1: off."""
    return value == 1 and value is not True


def refusal(name: str, *, algo: str) -> str | None:
    """Return why a flag cannot be given; None if it can."""
    return REFUSED.get(name) or (
        REFUSED_WITH_R3.get(name) if ALGORITHMS[algo].own_advantages else None
    )


def origin(name: str) -> str:
    """Say what decides about a flag that R³ sets: a key of the configuration, or the reason that there is none."""
    return (
        f"use {SAME[name]}"
        if name in SAME
        else NO_COUNTERPART.get(name, "algo is made of it; use another algo")
    )


def fate(name: str, own: frozenset[str]) -> tuple[str, str]:
    """(how a flag is treated, why or from where). `own`: openrlhf_arguments'."""
    if name in MAY_BE_SET:
        return "passed through", "instead of our default"
    if name in own or name in ALSO_SET:
        return "set by R³", origin(name)
    if reason := refusal(name, algo="grpo"):
        return "refused", reason
    if name in REFUSED_WITH_R3:
        needed = (
            f". With another algo: refused without {NEEDS[name]['what']}"
            if name in NEEDS
            else ""
        )
        return "refused with algo=r3", REFUSED_WITH_R3[name] + needed
    if name in VALUES:
        passing, why = VALUES[name]
        return f"only {' or '.join(passing)}", why
    if (need := need_of(name)) is not None:
        return "passed through", f"refused without {need['what']}"
    if name in _PACKAGES:
        return "passed through", f"needs the package {_PACKAGES[name][1]}"
    return "passed through", _TABLE["remarks"].get(name, "checked by OpenRLHF")
