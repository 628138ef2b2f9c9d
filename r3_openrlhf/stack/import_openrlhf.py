"""`r3 import-openrlhf`: a command line of OpenRLHF as a configuration, and what is lost.

OpenRLHF's own parser reads the flags, so its defaults count. Scripts are read, not run.
"""

import re
from collections.abc import Sequence
from typing import Any

import yaml

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.algorithms import ALGORITHMS
from r3_openrlhf.config.loading import CONFIGS, flatten, with_overrides
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.stack.arguments import own_flags
from r3_openrlhf.stack.flags import (
    GONE,
    MAY_BE_SET,
    NEEDS,
    OLD_CORRECTION,
    OLD_NAMES,
    REFUSED_WITH_R3,
    SAME,
    TOGETHER,
    fate,
    origin,
)
from r3_openrlhf.stack.upstream_parser import parsed_flags

NAME = "openrlhf.cli.train_ppo_ray"
MODULE = re.compile(r"openrlhf[./]cli[./]train_ppo_ray(?:\.py)?")
# what a script's reader has left as it is: $NAME, ${NAME...}, $(command), `command`
_NOT_READ = re.compile(r"[-_]?(?:\$(?:[a-zA-Z_]\w*|\d|[@*]|\{[^{}]*\}|\([^()]*\))|`[^`]*`)")
# flags that name a run: its date or host may go
_NAMES_OF_RUN = re.compile(r"--(?:ckpt\.(?:output_dir|path)|logger\..*)")
_TEXTS = {"--data.input_template"}


def configuration(arguments: Sequence[str]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """(key -> value, [(flag, why it has no counterpart)]) for the words after `python -m
    openrlhf.cli.train_ppo_ray`.

    Raises ConfigError where OpenRLHF's parser refuses them."""
    values, given = parsed_flags(list(arguments))
    base = flatten(R3Config(run_dir="run"))
    found: dict[str, Any] = {}
    for flag, key in SAME.items():
        if values[flag] is not None and (flag in given or values[flag] != base[key]):
            found[key] = values[flag]
    reasons = []
    preset, reason = _algorithm(values)
    if reason:
        reasons.append(("algo.advantage.estimator", reason))
    if (
        preset["algo"] == "flash_reinforce"
    ):  # made of flags, all of which the script gives itself
        preset = {
            key: value
            for key, value in preset.items()
            if not key.startswith(("rollout.", "train."))
        }
    found |= preset | _together(values, given, reasons)
    own = own_flags()
    for flag in sorted(values):
        if flag in SAME or flag in TOGETHER or flag in ALGORITHMS[found["algo"]].flags:
            continue
        if flag.startswith("critic.") and not ALGORITHMS[found["algo"]].has_critic:
            if flag in given:
                reasons.append((flag, f"algo={found['algo']} has no critic"))
            continue
        if flag in MAY_BE_SET and not flag.startswith("vllm.") and values[flag] is not None:
            found[f"openrlhf.{flag}"] = values[flag]  # its default may differ from ours
            continue
        if flag not in given:
            continue
        what, why = fate(flag, own)
        if what.startswith(("refused", "set by")) and not _is_for(flag, found["algo"]):
            reasons.append((flag, why))
        else:
            found[f"openrlhf.{flag}"] = values[flag]
    return found, reasons


def _is_for(flag: str, algo: str) -> bool:
    """Return True for a flag that algo=r3 alone refuses, and that does something with this one."""
    algorithm = ALGORITHMS[algo]
    if flag not in REFUSED_WITH_R3 or algorithm.own_advantages:
        return False
    values = {
        "algorithm.estimator": algorithm.estimator,
        "filters_groups": algorithm.filters_groups,
    }
    settings = NEEDS[flag]["settings"] if flag in NEEDS else []
    return all(values[one["name"]] in one.get("is", [True]) for one in settings)


def _algorithm(values: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the preset of configs/algo with these advantages, and the reason if its estimator is another."""
    estimator = values["algo.advantage.estimator"]
    filters = values["algo.dynamic_filtering_enable"]
    names = [
        name
        for name, one in ALGORITHMS.items()
        if not one.own_advantages and one.filters_groups == filters
    ]
    fitting = [name for name in names if ALGORITHMS[name].estimator == estimator]
    # the one whose further flags are all given: gspo is grpo with one more
    fitting = [
        name
        for name in fitting
        if all(values[flag] == value for flag, value in ALGORITHMS[name].flags.items())
    ]
    name = max(fitting, key=lambda name: len(ALGORITHMS[name].flags), default=None)
    reason = (
        None if name else f"{estimator} is none of {', '.join(names)}; algo is {names[0]} here"
    )
    return preset_of(name or names[0]), reason


def preset_of(name: str) -> dict[str, Any]:
    """Return the settings of configs/algo/NAME.yaml, by key."""
    return flatten(
        yaml.safe_load((CONFIGS / "algo" / f"{name}.yaml").read_text(encoding="utf-8"))
    )


def _together(
    values: dict[str, Any], given: set[str], reasons: list[tuple[str, str]]
) -> dict[str, Any]:
    low, high = values["actor.eps_clip_low_high"] or (values["actor.eps_clip"],) * 2
    found: dict[str, Any] = {
        "train.eps_clip_low": low,
        "train.eps_clip_high": high,
        "reward.length_reward_max_tokens": None,
    }
    found |= _correction(values, reasons)
    if template := values["data.input_template"]:
        found["data.prompt_template"] = template.replace("\\n", "\n").replace("{}", "{problem}")
    if "data.max_samples" in given:
        found["data.max_samples"] = values["data.max_samples"]
    if values["eval.dataset"] and values["eval.steps"] > 0:
        found["held_out.every_steps"] = values["eval.steps"]
    if values["logger.wandb.key"]:
        found["logging.wandb_project"] = values["logger.wandb.project"]
        reasons.append(("logger.wandb.key", origin("logger.wandb.key")))
    if url := values["reward.remote_url"]:
        if url.endswith(".py"):
            found["reward.function"] = f"{url}:reward_func"
        else:
            found["reward.urls"] = url.split(",")
    if "ckpt.output_dir" in given:
        found["run_dir"] = values["ckpt.output_dir"]
    return found


def _correction(values: dict[str, Any], reasons: list[tuple[str, str]]) -> dict[str, Any]:
    """Return train.correction of is_correction_*."""
    prefix = "algo.advantage.is_correction_"
    level, mode, gating, band = (
        values[f"{prefix}{name}"] for name in ("level", "mode", "gating", "threshold")
    )
    if level == "off":
        return {}
    if values["actor.policy_loss_type"] != "ppo":
        # models/loss.py:239: the level alone counts, for the ratio's log-probs
        reasons.append(
            (
                f"{prefix}level",
                "the ratio of gspo is to the trainer's log-probs; train.correction weighs tokens",
            )
        )
        return {}
    method = "sequence" if level == "seq" else "icepop"
    found = {
        "train.correction.method": "tis" if mode == "clip" else method,
        "train.correction.measure": gating,
        "train.correction.high": band[-1],
    }
    if len(band) == 2 and gating == "ratio":
        found["train.correction.low"] = band[0]
    return found


Flags = list[
    tuple[str, list[str]]
]  # flag without its dashes ("": words before the first), its values


def _flags_of(words: Sequence[str]) -> Flags:
    found: Flags = []
    for word in words:
        if word.startswith("--"):
            flag, is_one_word, value = word[2:].partition("=")
            found.append((flag, [value] if is_one_word else []))
        elif found:
            found[-1][1].append(word)
        else:
            found.append(("", [word]))
    return found


def by_new_names(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return (the words with the flags of OpenRLHF 0.5 to 0.11.1 under the names of 0.11.2 (flags.toml),
    [(flag, why it has no counterpart)])."""
    flags, lost = _corrected(_flags_of(words))
    lost += [(f"--{flag}", GONE[flag]) for flag, _ in flags if flag in GONE]
    found: list[str] = []
    for flag, values in flags:
        if flag in GONE:
            continue
        new, _, of_new = OLD_NAMES.get(flag, flag).partition("=")
        found += [f"--{new}"] * bool(flag) + values + [of_new] * bool(of_new)
    if "--prompt_max_len" in found:  # with that of responses it became one length
        place = found.index("--prompt_max_len")
        prompt, given = found[place + 1], dict(zip(found, found[1:], strict=False))
        response = given.get("--rollout.max_new_tokens", "1024")
        found[place : place + 2] = ["--data.max_len", str(int(prompt) + int(response))]
    return found, lost


def _corrected(flags: Flags) -> tuple[Flags, list[tuple[str, str]]]:
    """Give the correction by engine and trainer its flags of today: it had a switch, a kind and a band."""
    band = [one for one in flags if one[0] in OLD_CORRECTION["band"]]
    given = _of_correction(flags, band)
    if not given:
        return flags, []
    others = [one for one in flags if one not in given and one not in band]
    switch = OLD_CORRECTION["enable"][0]
    if not any(flag in OLD_CORRECTION["enable"] for flag, _ in given):
        why = f"it does nothing without --{switch}"
        return others, [(f"--{flag}", why) for flag, _ in given]
    level, mode = OLD_CORRECTION["kinds"][_kind_of_correction(given)]
    prefix = "algo.advantage.is_correction_"
    others += [(f"{prefix}level", [level]), (f"{prefix}mode", [mode])]
    if band:
        _, bounds = band[-1]
        return [*others, (f"{prefix}threshold", bounds)], []
    why = "no bounds are given: 0.11 bounds weights by 0.5 and 5; up to 0.9.0 it was 2 from above alone (train.correction.high=2)"
    return others, [(f"--{switch}", why)]


def _of_correction(flags: Flags, band: Flags) -> Flags:
    """Return the flags that were of the correction alone. A band without `vllm_` is of today, too."""
    switches_and_kinds = {*OLD_CORRECTION["enable"], *OLD_CORRECTION["kind"], "use_icepop"}
    found = [one for one in flags if one[0] in switches_and_kinds]
    found += [one for one in band if one[0].startswith("vllm_")]
    return found


def _kind_of_correction(given: Flags) -> str:
    """Return the kind: the first one given, icepop by its own switch, or tis. ConfigError: unknown."""
    kinds = OLD_CORRECTION["kinds"]
    named = ["".join(values) for flag, values in given if flag in OLD_CORRECTION["kind"]]
    if named:
        kind = named[0]
    elif ("use_icepop", []) in given:
        kind = "icepop"
    else:
        kind = "tis"
    if kind not in kinds:
        flag = OLD_CORRECTION["kind"][0]
        raise ConfigError(
            f"OpenRLHF knew no correction {kind!r}; {flag} is one of {', '.join(kinds)}"
        )
    return kind


def page(arguments: Sequence[str]) -> tuple[str, str | None]:
    """Return (the YAML of an experiment with comments, why R³ would refuse it or None)."""
    renamed, gone = by_new_names(arguments)
    words, left_out = _as_read(renamed)
    found, reasons = configuration(words)
    if any(flag == "data.image_key" for flag, _ in reasons):
        raise ConfigError(
            "the run trains on images (--data.image_key), and R³ trains on text only"
        )
    lost = [*gone, *((f"--{flag}", why) for flag, why in reasons)]
    return experiment(found, {"Left out": left_out, "No counterpart": lost})


def _as_read(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return (the words without what the reader left in names of the run, what that was).

    ConfigError: another value is not known."""
    kept: list[str] = []
    left_out: list[tuple[str, str]] = []
    unset = []
    flag = ""
    for word in words:
        flag = word if word.startswith("--") else flag
        found = _NOT_READ.search(word)
        if found is None or flag in _TEXTS or flag == "--logger.wandb.key":
            kept.append(word)
        elif _NAMES_OF_RUN.fullmatch(flag):
            kept.append(_NOT_READ.sub("", word) or "imported")
            left_out.append((flag, f"{word}, of which {found[0].lstrip('-_')} is not run"))
        else:
            unset.append(f"{flag} {word}")
    if unset:
        raise ConfigError(
            f"the script does not say what {', '.join(unset)} is; type NAME=VALUE before its path, or write the value"
        )
    return kept, left_out


def _about_r3(settings: dict[str, Any]) -> str:
    algo = settings.get("algo", "")
    if algo in ALGORITHMS and ALGORITHMS[algo].own_advantages:
        return ""
    return f"# Without R³: algo={algo}, as the script has it. `r3 train experiment=THIS_FILE algo=r3` adds R³.\n"


def experiment(
    found: dict[str, Any], notes: dict[str, list[tuple[str, str]]]
) -> tuple[str, str | None]:
    """Return (the YAML of an experiment, with notes under their titles, why R³ would refuse it or None)."""
    nested: dict[str, Any] = {"run_dir": found.pop("run_dir", "runs/imported")}
    for key, value in sorted(found.items()):
        # a flag of OpenRLHF keeps its dots
        *sections, name = key.split(".", maxsplit=1 if key.startswith("openrlhf.") else -1)
        values = nested
        for section in sections:
            values = values.setdefault(section, {})
        values[name] = list(value) if isinstance(value, tuple) else value
    try:
        with_overrides(nested, [], source="the imported configuration")
        refused = None
    except ConfigError as error:
        refused = str(error)
    text = (
        "# @package _global_\n"
        + _about_r3(nested)
        + yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)
    )
    for title, lines in notes.items():
        text += f"\n# {title}:\n" * bool(lines) + "".join(
            f"#   {name}: {why}\n" for name, why in lines
        )
    return text, refused
