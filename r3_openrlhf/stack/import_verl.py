"""`r3 import-verl`: a command line of verl as a configuration, and what is lost.

verl.toml has its keys and defaults; verl is not needed. Scripts are read, not run."""

import re
import tomllib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from r3_openrlhf.method.core.losses import LOSSES
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.stack.import_openrlhf import experiment, preset_of

MODULE = re.compile(
    r"verl[./]trainer[./]main_ppo(?:\.py)?|recipe[./]dapo[./](?:src[./])?main_dapo(?:\.py)?"
)
NAME = "verl.trainer.main_ppo"
_TABLE = tomllib.loads(Path(__file__).with_name("verl.toml").read_text(encoding="utf-8"))
_DEFAULTS, _SAME, _EXACT = _TABLE["defaults"], _TABLE["same"], _TABLE["exact"]
_READ = {*_DEFAULTS, *_SAME, *_EXACT, "reward.custom_reward_function.path"}
_ACTOR, _THINKS = "actor_rollout_ref.actor.", "data.apply_chat_template_kwargs."
_OFF = (None, False, 0, "", -1)


def page(words: Sequence[str]) -> tuple[str, str | None]:
    """Return (the YAML of an experiment with comments, why R³ would refuse it or None).

    Raises:
        ConfigError: a word is no setting of verl's, or the run would become another one."""
    given = _given(words)
    v = _DEFAULTS | {key: value for key, value in given.items() if value is not None}
    without = [
        key
        for key in given
        if key not in _READ and not key.startswith(_THINKS) and given[key] not in _OFF
    ]
    lost = [
        (
            key,
            _meaning(_TABLE["without"], key) or f"no key that is known; {nearest(key, _READ)}",
        )
        for key in without
    ]

    def word(key: str) -> str:
        ours = _TABLE["words"][key]
        first = next(iter(ours.values()))
        if v[key] not in ours:
            lost.append((key, f"{v[key]} is none of {', '.join(ours)}; it is {first} here"))
        return ours.get(v[key], first)

    found = _algorithm(v, word) | _data(v) | _update(v, word)
    exact = [(key, why) for key, why in _EXACT.items() if given.get(key) not in _OFF]
    return experiment(found, {"Converted": exact, "No counterpart": lost})


def _given(words: Sequence[str]) -> dict[str, Any]:
    """verl's key, by its name of today -> value, as Hydra reads it."""
    found: dict[str, Any] = {}
    unset, refused = [], []
    for word in words:
        key, is_given, text = word.lstrip("+").partition("=")
        key, default = (name := _TABLE["old_names"].get(key, key)), _DEFAULTS.get(name)
        if "$" in text and key in ("trainer.project_name", "trainer.default_local_dir"):
            text = re.sub(r"[-_]?\$(\([^)]*\)|\{[^}]*\}|\w+)", "", text)  # a date, mostly
        found[key] = text
        if "$" in text and key in _READ:
            unset.append(word)
        elif "$" not in text and not word.startswith("-"):
            try:
                found[key] = (
                    OverridesParser.create().parse_override(f"{key}{is_given}{text}").value()
                )
            except HydraException as error:
                raise ConfigError(
                    f"{word!r} is no KEY=VALUE of verl's: {str(error).splitlines()[0]}"
                ) from error
            kinds = {float: (int, float), list: (list, str), str: (str, list)}.get(
                type(default), type(default)
            )
            if None not in (default, found[key]) and not isinstance(found[key], kinds):
                raise ConfigError(
                    f"{word!r} is of another kind than verl's own value, {default!r}"
                )
        if found[key] not in _OFF and (why := _meaning(_TABLE["refused"], key)):
            refused.append(f"{word}: {why}")
    if unset:
        raise ConfigError(
            f"the script does not say what {', '.join(unset)} is; type NAME=VALUE before its path"
        )
    if refused:
        raise ConfigError(f"this run of verl cannot be one of R³'s; {'; '.join(refused)}")
    return found


def _meaning(table: dict[str, str], key: str) -> str | None:
    return next((why for name, why in table.items() if fnmatchcase(key, name)), None)


def _algorithm(v: dict[str, Any], word: Callable[[str], str]) -> dict[str, Any]:
    """Return the preset of configs/algo, and what has the same value here."""
    algo = "dapo" if v["algorithm.filter_groups.enable"] else word("algorithm.adv_estimator")
    if algo == "grpo" and not v["algorithm.norm_adv_by_std_in_grpo"]:
        algo = "dr_grpo"
    same = _SAME | (_TABLE["same_with_a_critic"] if algo == "ppo" else {})
    found = preset_of(algo) | {"reward.length_reward_max_tokens": None, "train.zero_stage": 3}
    found |= {ours: v[key] for key, ours in same.items() if v.get(key) is False or v.get(key)}
    if algo == "ppo":
        found["openrlhf.critic.freezing_steps"] = v["trainer.critic_warmup"] - 1
    return found


def _data(v: dict[str, Any]) -> dict[str, Any]:
    train, (held_out, *_) = (
        files if isinstance(files, list) else [files]
        for files in (v["data.train_files"], v["data.val_files"])
    )
    sources = [
        {"path": one, "name": f"{Path(one).parent.name}_{Path(one).stem}"} for one in train
    ]
    found: dict[str, Any] = (
        {"data.sources": sources} if len(train) > 1 else {"data.path": train[0]}
    )
    found["data.max_len"] = v["data.max_prompt_length"] + v["data.max_response_length"]
    found["data.order"] = "shuffled" if v["data.shuffle"] else "file"
    found["data.chat_template_kwargs"] = {
        key.removeprefix(_THINKS): v[key] for key in v if key.startswith(_THINKS)
    }
    if v["trainer.test_freq"] > 0 and held_out:
        found |= {"held_out.path": held_out, "held_out.every_steps": v["trainer.test_freq"]}
    if path := v.get("reward.custom_reward_function.path"):
        found["reward.function"] = f"{path}:{v['reward.custom_reward_function.name']}"
    if "wandb" in v["trainer.logger"]:
        found["logging.wandb_project"] = v["trainer.project_name"]
    return found


def _update(v: dict[str, Any], word: Callable[[str], str]) -> dict[str, Any]:
    mini, name = v[f"{_ACTOR}ppo_mini_batch_size"], word(f"{_ACTOR}policy_loss.loss_mode")
    mean, loss = word(f"{_ACTOR}loss_agg_mode"), LOSSES[name]
    found = {
        "train.batch_size": mini * v["actor_rollout_ref.rollout.n"]
        if mini < v["data.train_batch_size"]
        else None,
        "train.loss": name,
        "train.loss_aggregation": "seq-mean-token-mean" if loss.of_response else mean,
        "openrlhf.actor.lr_scheduler": word(f"{_ACTOR}optim.lr_scheduler_type"),
    }
    for end in {"eps_clip_low", "eps_clip_high"} & set(loss.reads):
        found[f"train.{end}"] = v[f"{_ACTOR}clip_ratio{end.removeprefix('eps_clip')}"]
    if name == "ppo":
        found["openrlhf.actor.dual_clip"] = v[f"{_ACTOR}clip_ratio_c"]
    if v[f"{_ACTOR}use_dynamic_bsz"]:
        parts = v[f"{_ACTOR}ulysses_sequence_parallel_size"]  # of a row, each on another GPU
        found["train.max_tokens_per_gpu"] = v[f"{_ACTOR}ppo_max_token_len_per_gpu"] * parts
    in_loss = v[f"{_ACTOR}use_kl_loss"]
    coef = v[f"{_ACTOR}kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef"]
    if coef and (in_loss or v["algorithm.use_kl_in_reward"]):
        kind = word(f"{_ACTOR}kl_loss_type") if in_loss else "k1"
        found |= {
            "openrlhf.algo.kl.use_loss": in_loss,
            "openrlhf.algo.kl.estimator": kind,
            "train.kl_coef": coef,
        }
    return found
