"""A map of every setting, made from the code: `r3 config`, and (tools/settings_page.py) docs/settings.md.

The meaning of a key is the comment above or after its line, its allowed values are those that its
check names, and its unit follows from its name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import tomllib
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from r3_openrlhf.config import MISSING, R3Config
from r3_openrlhf.method import open_table
from r3_openrlhf.method.errors import ConfigError, quoted

UNITS = tomllib.loads(Path(__file__).with_name("units.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of a run's configuration.

    Attributes:
        kind: its type as it is written in the code.
        default: as YAML; "(must be given)" where there is none.
        allowed: the words that it may have; () where any value of the type may be.
    """

    key: str
    kind: str
    default: str
    unit: str
    meaning: str
    allowed: tuple[str, ...]


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Return every key, in the order of the code."""
    return tuple(_settings_of(R3Config, ""))


def chosen(section: str | None, search: str | None) -> list[Setting]:
    """Return the settings of one section (or one key), and those that a word finds in key, meaning
    or allowed values.

    Raises:
        ConfigError: a section that does not exist, or nothing found."""
    kept = list(settings())
    if section is not None:
        kept = [
            setting
            for setting in kept
            if setting.key == section or setting.key.startswith(f"{section}.")
        ]
        if not kept:
            sections = sorted(
                {setting.key.rpartition(".")[0] or setting.key for setting in settings()}
            )
            raise ConfigError(
                f"{section} is no section and no key; {open_table.nearest(section, sections)}"
            )
    if search is not None:
        word = search.lower()
        kept = [
            setting
            for setting in kept
            if word in " ".join((setting.key, setting.meaning, *setting.allowed)).lower()
        ]
        if not kept:
            raise ConfigError(
                f"no setting mentions {quoted(search)}; `r3 config` lists all of them"
            )
    return kept


def _settings_of(schema: type, prefix: str) -> Iterable[Setting]:
    hints, comments = typing.get_type_hints(schema), _comments(schema)
    for field in dataclasses.fields(schema):
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _settings_of(hints[field.name], f"{key}.")
            continue
        yield Setting(
            key=key,
            kind="str" if field.type == "Name" else str(field.type),
            default=_default(field),
            unit=next((unit for end, unit in UNITS.items() if field.name.endswith(end)), ""),
            # of `enabled` what its section is for
            meaning=comments.get(field.name)
            or ((schema.__doc__ or "").splitlines()[0] if field.name == "enabled" else ""),
            allowed=_allowed(field.metadata.get("words", ())),
        )


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        value = field.default
    if value == MISSING:
        return "(must be given)"
    return (
        yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
    )


@functools.cache
def _comments(schema: type) -> dict[str, str]:
    """Field -> its comment. A subclass has those of its bases."""
    comments: dict[str, str] = {}
    for owner in reversed(schema.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            text = line.strip()
            if text.startswith("#"):
                above.append(text.lstrip("# "))
                continue
            named = re.match(r"(\w+): [^#]*?(?:\s\s#\s*(.*))?$", text)
            if named:
                comments[named[1]] = " ".join([*above, named[2] or ""]).strip()
            above = []
    return comments


def _allowed(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a setting; an open table takes an import path, too."""
    return (
        *map(str, words),
        *(["package.module:name"] if isinstance(words, open_table.OpenTable) else []),
    )


def described(setting: Setting) -> str:
    """Describe a setting in two or three lines of text."""
    head = f"{setting.key} = {setting.default}    {setting.kind}" + (
        f", {setting.unit}" if setting.unit else ""
    )
    lines = [head, *([f"    {setting.meaning}"] if setting.meaning else [])]
    if setting.allowed:
        lines.append(f"    one of: {', '.join(setting.allowed)}")
    return "\n".join(lines)
