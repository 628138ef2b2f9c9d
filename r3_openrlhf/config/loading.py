"""Experiment name + overrides -> a checked R3Config, through Hydra.

Hydra composes configs/train.yaml, configs/experiment/NAME.yaml (or a file of yours), where
`algo=NAME` is given configs/algo/NAME.yaml, and the other overrides. The result is merged into a
fresh structured R3Config: Hydra itself lets "+replay.max_lag=3" through even where a schema is
registered."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import OverrideType, Quote, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from r3_openrlhf.config import ENVIRONMENT, R3Config
from r3_openrlhf.config.given_keys import check_given
from r3_openrlhf.config.sources import SOURCES
from r3_openrlhf.config.spelling import (
    hint_of,
    hints_of,
    members_of,
    parse_override,
    read_yaml,
    with_types,
)
from r3_openrlhf.method.errors import ConfigError, quoted, shortened
from r3_openrlhf.method.open_table import IMPORT_KEYS, is_import_path, nearest

MAX_YAML_CHARS, MAX_YAML_DEPTH = 1_000_000, 20
# libyaml's, where PyYAML was built with it
EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTERPOLATION = re.compile(r"(?<!\\)(?:\\\\)*\$\{")  # one that OmegaConf resolves; \${ is text
RESOLVER = re.compile(r"\$\{[\w.]+:")  # ${oc.env:NAME}: a value from outside the configuration
# ${oc.env:NAME,default}, whose default is no null and has no quotes
_DEFAULT = re.compile(
    r"""(\$\{oc\.env:[^{}'",]+,[ \t]*)(?!(?i:null)\b)([^\s{}'",\[\]\\$]+)([ \t]*\})"""
)
# The name of a text that says where something is sent, or with what right
_ADDRESS = re.compile(
    r"(?:[._]|^)(?:url|uri|address|endpoint|host|server|proxy|token|password)(?:e?s)?$"
)
# Hydra's own configuration is not used: its eight files would be read for each of ours.
UNUSED = [
    f"~hydra/{group}"
    for group in [
        "output",
        "launcher",
        "sweeper",
        "help",
        "hydra_help",
        "hydra_logging",
        "job_logging",
        "env",
    ]
]
# What is a text for Hydra's grammar, whatever it holds
_IS_QUOTED = re.compile(r"""[ \t]*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")[ \t]*""", re.DOTALL)
SYNONYMS, RETIRED = (
    tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("synonyms.toml", "retired.toml")
)
# Values that a section answers in a sentence; in a run's file the default takes their place
RETIRED_VALUES = {"advantage.scope": "literal"}
# Keys that hold a dictionary whose content is not ours to check here
FREE: tuple[str, ...] = (
    "openrlhf",
    "data.chat_template_kwargs",
    "data.reasoning_gym",
    "held_out.reasoning_gym",
)
FREE += ("agents.options", "reward.code.languages", "reward.function_args")
# in a checkout a link to the top-level configs/
CONFIGS = Path(__file__).parents[1] / "configs"


class Setting(typing.NamedTuple):
    """A "key=value" of a command line. adds: it is written as "+key=value"."""

    key: str
    value: Any
    adds: bool


def experiments() -> list[str]:
    """Return the names that `experiment=NAME` takes."""
    return sorted(file.stem for file in (CONFIGS / "experiment").glob("*.yaml"))


def presets() -> list[str]:
    """Return the names that `algo=NAME` takes."""
    return sorted(file.stem for file in (CONFIGS / "algo").glob("*.yaml"))


def split_settings(settings: Iterable[str], *, command: str) -> tuple[str, list[str]]:
    """Return the one experiment=NAME of a command line, and the others. ConfigError: none, or several."""
    names = [
        setting.partition("=")[2] for setting in settings if setting.startswith("experiment=")
    ]
    if len(names) != 1:
        raise ConfigError(
            f"r3 {command} needs one experiment=NAME; known: {', '.join(experiments())}"
        )
    return names[0], [setting for setting in settings if not setting.startswith("experiment=")]


def load_config(experiment: str, overrides: list[str], *, for_arms: bool = False) -> R3Config:
    """Compose and check. `experiment`: a name of configs/experiment, or the path of a YAML file.
    Overrides are "key=value" in Hydra's grammar; lists and strings may be quoted. The value of a
    text is taken as it is (`_with_plain_text`), and what a list or a file spells is kept for texts
    (`config.spelling`).

    `for_arms`: the overrides are those of a study's arms, so some are read by other algorithms alone.

    "algo=NAME" is no plain key: it puts that preset between the experiment and the others, and
    "_NAME" after the experiment's run_dir, so that an experiment's arms have different directories.

    ConfigError, one sentence: unknown experiment, preset or key (with the nearest known one), a
    value of the wrong type or out of range, a key without a value, keys that exclude each other."""
    settings = _experiment_of(experiment)
    parsed = [_check_override(override) for override in overrides]
    chosen = next(
        (setting.value for setting in reversed(parsed) if setting.key == "algo"), None
    )
    # a name is a preset; an algorithm of a user is the key alone
    preset = None if chosen is None or is_import_path(str(chosen)) else str(chosen)
    if preset is not None and preset not in presets():
        raise ConfigError(
            f"algo is {quoted(preset)}, which does not exist in configs/algo; {_instead_of(preset)}"
        )
    if preset:
        settings.append(f"+algo={preset}")
    try:
        with initialize_config_dir(config_dir=str(CONFIGS.resolve()), version_base="1.3"):
            files = _files_of(experiment, [*UNUSED, *settings])
    except HydraException as error:
        raise ConfigError(
            f"experiment {quoted(experiment)} does not compose: {_one_line(error)}"
        ) from error
    composed = _composed(files)
    given = [setting for setting in parsed if setting.key != "algo" or not preset]
    _apply(composed, given, merges=True)
    values = _container(composed)
    keys = {setting.key for setting in parsed}
    for key, other in (("path", "sources"), ("sources", "path")):  # the command line wins
        if f"data.{key}" in keys and f"data.{other}" not in keys and "data" in values:
            values["data"].pop(other, None)
    if preset and values.get("run_dir", MISSING) != MISSING and "run_dir" not in keys:
        values["run_dir"] = f"{values['run_dir']}_{preset}"
    source = (
        experiment if experiment.endswith(".yaml") else f"configs/experiment/{experiment}.yaml"
    )
    config = _checked(values, source=source)
    if not config.run_dir.strip():
        raise ConfigError("run_dir is empty; use run_dir=DIRECTORY")
    if not for_arms:
        check_keys(config, keys if chosen is not None else keys | _keys_beside_algo(experiment))
    # for Ray's workers
    config.run_dir = str(Path(os.path.expanduser(config.run_dir)).absolute())
    config.typed = _typed(values, config)
    return config


def _experiment_of(experiment: str) -> list[str]:
    """Hydra's overrides for an experiment: a name of configs/experiment, or a YAML file."""
    if experiment.endswith(".yaml"):
        file = Path(experiment).expanduser().absolute()
        if not file.is_file():
            raise ConfigError(f"the experiment {experiment} is a file that does not exist")
        # else below its folder
        if "# @package" not in file.read_text(encoding="utf-8", errors="replace"):
            raise ConfigError(
                f"the experiment {experiment} must begin with the line '# @package _global_'; add it"
            )
        return [
            f"hydra.searchpath=[{_in_quotes(f'file://{file.parents[1]}')}]",
            f"+{file.parent.name}={_in_quotes(file.stem)}",
        ]
    if experiment not in (known := experiments()):
        raise ConfigError(
            f"experiment {quoted(experiment)} does not exist in configs/experiment; {nearest(experiment, known)}"
        )
    return [f"+experiment={experiment}"]


def _files_of(experiment: str, overrides: list[str]) -> list[tuple[Path, str]]:
    """List the files that Hydra composes for this experiment, with the section that each is for
    ("" is all); later ones win.

    Inside `initialize_config_dir`. ConfigError: the experiment, or a file next to it, would be
    read from the package, whose folders come first."""
    folder = CONFIGS
    if experiment.endswith(".yaml"):
        folder = Path(experiment).expanduser().absolute().parents[1]
    loader = GlobalHydra.instance().config_loader()
    files = []
    for each in loader.compute_defaults_list("train", overrides, RunMode.RUN).defaults:
        # the root is ours alone
        if each.config_path is None or each.config_path == "train":
            continue
        named, shipped = (base / f"{each.config_path}.yaml" for base in (folder, CONFIGS))
        if named.is_file() and shipped.is_file() and named.read_bytes() != shipped.read_bytes():
            raise ConfigError(
                f"{named} has the name of a shipped file, which would be read instead of it; rename it"
            )
        file = named if named.is_file() else shipped
        if file.is_file():
            files.append((file, each.package or ""))
    return files


def _composed(files: Iterable[tuple[Path, str]]) -> DictConfig:
    """Merge the files, as Hydra's `compose` does, with words typed by their fields."""
    composed = OmegaConf.create()
    for file, package in files:
        values = read_yaml(file.read_text(encoding="utf-8")) or {}
        if not isinstance(values, dict):
            raise ConfigError(f"{file} holds no keys; write KEY: VALUE lines")
        # what is for Hydra itself
        values = {key: part for key, part in values.items() if key not in ("defaults", "hydra")}
        for name in reversed(package.split(".") if package else []):
            values = {name: values}
        composed.merge_with(with_types(values, R3Config))
    return composed


def _keys_beside_algo(experiment: str) -> set[str]:
    """Return the keys that an experiment's own file sets besides `algo`; none where it leaves the algorithm open."""
    file = (
        Path(experiment)
        if experiment.endswith(".yaml")
        else CONFIGS / "experiment" / f"{experiment}.yaml"
    )
    values = yaml.safe_load(file.expanduser().read_text(encoding="utf-8")) or {}
    return {key for key, _ in _leaves(values, R3Config)} if "algo" in values else set()


def check_keys(config: R3Config, keys: Iterable[str]) -> None:
    """ConfigError: one of these keys, which somebody set, does nothing with this algorithm."""
    check_given(config, keys, defaults=flatten(R3Config(run_dir="run")))


def with_overrides(values: dict[str, Any], overrides: list[str], *, source: str) -> R3Config:
    """`values`, an R3Config's sections as dictionaries, "key=value" on top; as load_config. What
    looks like an interpolation in `values` is text, of a run of others perhaps."""
    composed = OmegaConf.create(_as_text(values))
    parsed = [_check_override(override) for override in overrides]
    _apply(composed, parsed)
    config = _checked(_container(composed), source=source)
    check_keys(config, (setting.key for setting in parsed))
    config.typed = _typed(_container(composed), config)
    return config


def config_to_json(config: R3Config) -> str:
    """Return one line that `config_from_json` reads back; Ray actors get the configuration so."""
    return json.dumps(dataclasses.asdict(config))


def config_from_json(text: str) -> R3Config:
    """Read the configuration that `config_to_json` wrote. Raises ConfigError as `load_config` does."""
    return _checked(_as_text(json.loads(text)), source="the stored configuration")


def config_to_yaml(config: R3Config) -> str:
    """Every key with its value, as config.yaml holds it: what the user took from the environment
    stays as typed, with a backslash, so that no reader resolves it."""
    values = dataclasses.asdict(config)
    for key, written in config.typed.items():
        _section_of(values, key)[key.rpartition(".")[2]] = written
    return OmegaConf.to_yaml(OmegaConf.create(_as_text(values)))


def config_from_yaml(text: str, *, source: str, lenient: bool = False) -> R3Config:
    """Read the configuration in `text`; `source` names it in a ConfigError. Keys of `RETIRED` are
    passed over; `lenient`: all that this version does not have, which `passed_over` then names.
    What its user took from the environment is a text, which is checked by nothing.

    Raises ConfigError for what is no YAML, or not the mapping that config_to_yaml wrote."""
    _check_yaml(text, source=source)
    try:
        # an empty file is an empty mapping, as OmegaConf has it
        values = OmegaConf.create(with_types(read_yaml(text), R3Config) or {})
    except (
        yaml.YAMLError,
        OmegaConfBaseException,
        AssertionError,
        ValueError,
        TypeError,
    ) as error:
        raise ConfigError(
            f"{source} cannot be read: {_one_line(error)}; restore it from a copy"
        ) from error
    if not isinstance(values, DictConfig):
        raise ConfigError(f"{source} holds no configuration; restore it from a copy")
    of_file = _container(values)
    old_values = [
        key for key, old in RETIRED_VALUES.items() if (key, old) in _leaves(of_file, R3Config)
    ]
    passed_over = _taken_out(of_file, [*_retired_in(of_file), *old_values])
    known = [f"{name}." for name in fields_of()]
    unknown = [
        key
        for key, _ in _leaves(of_file, R3Config)
        if not any(name.startswith(f"{key}.") for name in known)
    ]
    passed_over |= _taken_out(
        of_file, [key for key in unknown if lenient or of_file.get(key) == {}]
    )
    unchecked = _taken_out(of_file, _unchecked_in(of_file))
    try:
        config = _checked(of_file, source=source)
    except ConfigError as error:
        if source in str(error):
            raise
        raise ConfigError(f"{source}: {error}") from error
    for key, value in unchecked.items():
        section, _, name = key.rpartition(".")
        holder = functools.reduce(getattr, section.split("."), config) if section else config
        setattr(holder, name, _container(OmegaConf.create({name: value}), resolve=True)[name])
    config.passed_over = [key for key, value in passed_over.items() if value != {}]
    return config


def _check_yaml(text: str, *, source: str) -> None:
    """Refuse what config_to_yaml never writes: aliases, depth and size, which are costly to read, and
    interpolations, which would take a reader's variable."""
    depth = 0
    try:
        if len(text) > MAX_YAML_CHARS:
            raise ConfigError(
                f"{source} has more than {MAX_YAML_CHARS} characters; restore it from a copy"
            )
        for event in yaml.parse(text, Loader=EVENTS):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if isinstance(event, yaml.AliasEvent) or depth > MAX_YAML_DEPTH:
                what = (
                    "an alias"
                    if isinstance(event, yaml.AliasEvent)
                    else f"more than {MAX_YAML_DEPTH} levels"
                )
                raise ConfigError(
                    f"{source} holds {what}, which no run writes; restore it from a copy"
                )
            if isinstance(event, yaml.ScalarEvent) and _INTERPOLATION.search(event.value):
                raise ConfigError(
                    f"{source} holds an interpolation, {quoted(event.value)}; write the value itself"
                )
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            f"{source} is not YAML: {_one_line(error)}; restore it from a copy"
        ) from error


def _unchecked_in(values: dict[str, Any]) -> list[str]:
    """Return the keys whose value is an environment's, which is not read, and what may depend on it."""
    typed = [key for key, value in _leaves(values, R3Config) if "${" in str(value)]
    return [
        key for key in (*typed, "data.task") if typed and fields_of()[key].default != MISSING
    ]


def _taken_out(values: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Remove these keys from the sections. Returns those that were there, with their values."""
    sections = {key: (_section_of(values, key), key.rpartition(".")[2]) for key in keys}
    return {
        key: section.pop(name) for key, (section, name) in sections.items() if name in section
    }


def _retired_in(values: dict[str, Any]) -> list[str]:
    """Return the keys of `RETIRED` that these sections set."""
    return [key for key in RETIRED if key.rpartition(".")[2] in _section_of(values, key)]


def _each(value: object, change: Callable[[str], str]) -> Any:
    """Change every text in a value."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(part, change) for key, part in value.items()}
    return (
        [_each(part, change) for part in value] if isinstance(value, (list, tuple)) else value
    )


def _as_text(value: object) -> Any:
    """Escape a value for OmegaConf, which then resolves nothing in it."""
    return _each(value, lambda text: re.sub(r"(\\*)\$\{", r"\1\1\\${", text))


def _typed(values: dict[str, Any], config: R3Config) -> dict[str, Any]:
    """Return the keys that hold texts from outside the configuration, as they were typed. Numbers, words
    of a list and what decides about other keys are no secrets, and readers need them."""
    if not RESOLVER.search(str(values)):
        return {}

    def typed(text: str) -> str:
        return _as_text(text) if RESOLVER.search(text) else text

    defaults = OmegaConf.create(_container(_schema()))
    kept = _container(OmegaConf.merge(defaults, _each(values, typed)), resolve=True)
    values_of, words = (
        flatten(config),
        {key for key, field in fields_of().items() if "words" in field.metadata},
    )
    texts = {
        key: value
        for key, value in _leaves(kept, R3Config)
        if RESOLVER.search(str(value))
        and key not in {*words, "agents.environment"}
        and not isinstance(values_of[key], float | int)
    }
    if "data.sources" in texts:  # whose paths data.path repeats
        texts["data.path"] = SOURCES
    return texts


def _section_of(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the dictionary that holds the last part of a key; an empty one if there is none."""
    section: Any = values
    for part in key.split(".")[:-1]:
        section = section.get(part) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}


def flatten(config: R3Config | dict[str, Any]) -> dict[str, Any]:
    """{"replay.k": 2, ...}: one entry per key of the configuration."""
    values = config if isinstance(config, dict) else dataclasses.asdict(config)
    return {key: value for key, value in _leaves(values, R3Config)}


def settings_of(config: R3Config) -> dict[str, Any]:
    """`flatten`, with what came from the environment as it was typed: to keep and to compare."""
    return {**flatten(config), **config.typed}


def _checked(values: dict[str, Any], *, source: str) -> R3Config:
    values = _with_paths_of_tasks(values)
    known = list(fields_of())
    for key in _retired_in(values):
        raise ConfigError(f"{source} sets {key}, which is no key any more; {RETIRED[key]}")
    for key, _ in _leaves(values, R3Config):
        if key not in known:
            raise ConfigError(
                f"{source} sets {key[:80]}, which does not exist; {_nearest_key(key, known)}"
            )
    _check_bools(values)
    try:
        config = OmegaConf.to_object(OmegaConf.merge(_schema(), _with_quoted_defaults(values)))
    except MissingMandatoryValue as error:
        raise ConfigError(
            f"{error.full_key} has no value; add {error.full_key}=... to the command"
        ) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or source}: {_one_line(error)}") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:  # unforeseen
        raise ConfigError(
            f"{source} holds a value that cannot be used: {_one_line(error)}"
        ) from error
    assert isinstance(config, R3Config)  # OmegaConf gives back what the structure was made from
    return config


def _with_quoted_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Put quotes around the default in ${oc.env:NAME,default}, which is a text, too."""
    return _each(values, lambda text: _DEFAULT.sub(r"\1'\2'\3", text))


def _check_bools(values: dict[str, Any]) -> None:
    """ConfigError: a bool is neither true nor false, which OmegaConf takes for one: 2, "on", "0"."""
    given = {
        key: value
        for key, value in _leaves(values, R3Config)
        if hint_of(key, R3Config) is bool and value != MISSING
    }
    for key, value in given.items():
        if isinstance(value, bool):
            continue
        word = _resolved(values, key) if _INTERPOLATION.search(str(value)) else value
        if str(word).lower() not in ("true", "false"):
            written = "null" if value is None else quoted(value)
            raise ConfigError(f"{key} is {written}; use true or false")


def _resolved(values: dict[str, Any], key: str) -> object:
    """Return the value of a key that refers to others or the environment, of no type."""
    defaults = OmegaConf.create(_container(_schema()))
    try:
        return OmegaConf.select(OmegaConf.merge(defaults, values), key)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: {_one_line(error)}") from error


@functools.cache
def _schema() -> DictConfig:
    """R3Config's keys, types and defaults; what is merged with it gets a copy."""
    return OmegaConf.structured(R3Config)


def _container(composed: object, *, resolve: bool = False) -> dict[str, Any]:
    return typing.cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=resolve))


def _apply(composed: DictConfig, settings: Iterable[Setting], *, merges: bool = False) -> None:
    """Set the keys one after the other. merges: a dictionary joins what is there, as in Hydra; those
    of agents.options, where {} is none of them, never do.

    ConfigError: "+key=value" where the key has a value that this one does not join."""
    for key, value, adds in settings:
        if adds:
            _check_addition(composed, key, value)
        merge = adds or (merges and key != "agents.options")
        OmegaConf.update(composed, key, value, merge=merge, force_add=True)


def _check_addition(composed: DictConfig, key: str, value: object) -> None:
    there = _section_of(_container(composed), key).get(key.rpartition(".")[2])
    joins = isinstance(value, dict) and isinstance(there, dict)
    if there in (None, MISSING) or joins:
        return
    raise ConfigError(
        f"+{key} adds a key, and {key} is {quoted(there)} already; leave out the + to replace it"
    )


def _with_paths_of_tasks(values: dict[str, Any]) -> dict[str, Any]:
    """Fill data.path and held_out.path where nothing is given: with the environment, whose seeds
    are the tasks, or with the word for several sources."""
    data = values.get("data")
    if isinstance(data, dict) and data.get("sources") and data.get("path") in (None, MISSING):
        values = {**values, "data": {**data, "path": SOURCES}}
    agents = values.get("agents")
    if not isinstance(agents, dict) or agents.get("environment") is None:
        return values
    path = f"{ENVIRONMENT}{agents['environment']}"
    values = {
        section: dict(given) if isinstance(given, dict) else given
        for section, given in values.items()
    }
    for section in ("data", "held_out"):
        given = values.setdefault(section, {})
        if not isinstance(given, dict) or given.get("path") not in (None, MISSING):
            continue
        if section == "data" or given.get("max_samples"):
            given["path"] = path
    return values


def _with_plain_text(override: str) -> str:
    """Put quotes around the value of a text, as "~", "(", "#", "=", 1e3 and others are something else
    for Hydra. What is quoted, holds "${" or must be given is Hydra's, and so is null where it is no
    value, and the words of a key that knows its words."""
    key, given, value = override.partition("=")
    if not given or key.lstrip("+") not in _texts():
        return override
    if _IS_QUOTED.fullmatch(value) or "${" in value or value == MISSING:
        return override
    if value == "null" and _texts()[key.lstrip("+")]:
        return override
    return f"{key}={_in_quotes(value)}"


@functools.cache
def _texts() -> dict[str, bool]:
    """Return the keys that hold any text, and whether each may be null."""
    members = {
        key: members_of(hint_of(key, R3Config))
        for key, field in fields_of().items()
        if "words" not in field.metadata
    }
    return {key: types.NoneType in of for key, of in members.items() if str in of}


def _in_quotes(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


def _check_override(text: str) -> Setting:
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigError(
            f"{quoted(text)} holds bytes that are not UTF-8 text; write the value in UTF-8"
        )
    try:
        override = parse_override(_with_plain_text(text))
    except HydraException as error:
        hint = "" if "=" in text else "; quote a value with spaces, as in 'key=two words'"
        raise ConfigError(
            f"{quoted(text)} is not of the form key=value; {_one_line(error)}{hint}"
        ) from error
    if override.type not in (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD):
        raise ConfigError(f"{quoted(text)} deletes a key; set it to another value instead")
    if override.is_sweep_override():
        raise ConfigError(
            f"{quoted(text)} names several values; a run takes one, so quote a value that holds a comma"
        )
    known = list(fields_of())
    key = override.key_or_group
    if key in RETIRED:
        raise ConfigError(f"{key} is no key any more; {RETIRED[key]}")
    if key not in known and not any(key.startswith(f"{free}.") for free in FREE):
        section = [name for name in known if name.startswith(f"{key}.")]
        if section:
            raise ConfigError(
                f"{key} is a group of keys; set one of them, like {section[0]}=..."
            )
        raise ConfigError(f"{key} does not exist; {_nearest_key(key, known)}")
    value = with_types(override.value(), hint_of(key, R3Config))
    return Setting(key, value, override.is_add())


@functools.cache
def fields_of(schema: Any = R3Config, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """Return the field of each key."""
    found: dict[str, dataclasses.Field[Any]] = {}
    hints = hints_of(schema)
    for field in dataclasses.fields(schema):
        name = f"{prefix}{field.name}"
        is_section = dataclasses.is_dataclass(hints[field.name])
        found |= fields_of(hints[field.name], f"{name}.") if is_section else {name: field}
    return found


def _instead_of(preset: str) -> str:
    """Suggest a name that an algorithm is put together from, else the nearest preset."""
    from r3_openrlhf.method.core.estimators import ESTIMATORS
    from r3_openrlhf.method.core.losses import LOSSES

    word = preset.lower()
    for table in (ESTIMATORS, LOSSES):
        if word in table and word not in presets():
            return f"set {table.key}={word}, with algo=r3"
    return nearest(preset, presets())


def of_others() -> dict[str, str]:
    """Name what no command takes from a run of others: key -> "code" or "an address"."""
    addresses = [
        key
        for key, field in fields_of().items()
        if _ADDRESS.search(key) and "str" in str(field.type)
    ]
    return dict.fromkeys(IMPORT_KEYS, "code") | dict.fromkeys(addresses, "an address")


def _leaves(
    values: dict[str, Any], schema: object, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    hints = hints_of(schema)
    for name, value in values.items():
        section = hints.get(name)
        if dataclasses.is_dataclass(section) and isinstance(value, dict):
            yield from _leaves(value, section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _nearest_key(key: str, known: list[str]) -> str:
    """Suggest a synonym first; then keys of the same group, as a misspelt last part is usual."""
    last = key.rpartition(".")[2].lower()
    meant = next((name for name, words in SYNONYMS.items() if last in words), None)
    if meant is not None:
        return f"did you mean {meant}?"
    same_group = [name for name in known if name.rpartition(".")[0] == key.rpartition(".")[0]]
    hint = nearest(key, same_group or known)
    return nearest(key, known) if same_group and not hint.startswith("did") else hint


def _one_line(error: Exception) -> str:
    return shortened(str(error).split("\n")[0])
