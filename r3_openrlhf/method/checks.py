"""Checks of settings. A field says what it may be; `check_fields` raises a ConfigError that names
the key, the value and what to use instead.

    k: int = number(2, min=1)
    mode: str = word("add", ReplayMode)
"""

import dataclasses
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import OpenTable, nearest

MAX_VALUE = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a number: `min` and `max` are included, `above` and `below` are not.

    `instead` is what a refusal says, where the bounds alone do not say why.
    """

    min: float | None = None
    above: float | None = None
    max: float | None = None
    below: float | None = None
    instead: str = ""

    def allow(self, value: Any) -> bool:
        """Return whether the value is a finite number within the bounds."""
        is_number = isinstance(
            value, int | float | np.integer | np.floating
        ) and not isinstance(value, bool)
        return is_number and (
            abs(value) <= MAX_VALUE  # not of nan
            and (self.min is None or value >= self.min)
            and (self.above is None or value > self.above)
            and (self.max is None or value <= self.max)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """Say what to use instead of a number that is refused."""
        if self.instead:
            return self.instead
        if self.max is None and self.below is None:
            return (
                f"use {self.min} or more, up to 2**53"
                if self.above is None
                else f"use a number above {self.above}"
            )
        low = f"above {self.above}" if self.min is None else f"of at least {self.min}"
        high = f"at most {self.max}" if self.below is None else f"below {self.below}"
        return f"use a number {low} and {high}"


def number(default: float | None, **bounds: Any) -> Any:
    """Return a dataclass field for a number within Bounds(**bounds). None is 'not set', always fine."""
    return dataclasses.field(default=default, metadata={"bounds": Bounds(**bounds)})


def word(default: str | None, known: Iterable[str]) -> Any:
    """Return a dataclass field for one of these words, or an entry of an OpenTable."""
    return dataclasses.field(default=default, metadata={"words": known})


def section_of(key: str, kind: Any, value: Any) -> Any:
    """`value`, or the section that a mapping describes. ConfigError: neither; an unknown key."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{key} is {quoted(value)}; use {kind.__name__}(...) or a dict of its keys"
        )
    known = [field.name for field in dataclasses.fields(kind)]
    for name in value:
        if name not in known:
            raise ConfigError(f"{key}.{name} does not exist; {nearest(str(name), known)}")
    return kind(**value)


def check_fields(section: Any, prefix: str = "", *, key_of: Callable[[str], str] = str) -> None:
    """Check every field that `number` or `word` made, switches, and sections within this one, which
    may be mappings. ConfigError: the first bad value.

    prefix: the section's key and a dot. key_of: a field's name -> the user's name for it.
    """
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):
        key = f"{prefix}{key_of(field.name)}"
        hint = hints[field.name]
        bounds, words = field.metadata.get("bounds"), field.metadata.get("words")
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(hint):
            setattr(section, field.name, section_of(key, hint, value))
        if hint is bool and not isinstance(value, bool):
            raise ConfigError(f"{key} is {quoted(value)}; use true or false")
        if value is None:
            continue
        if hint in (str, str | None) and not isinstance(words, OpenTable):
            setattr(section, field.name, _text(key, value))
        if bounds is not None:
            is_whole = int in (hint, *typing.get_args(hint))
            setattr(section, field.name, _bounded(key, value, bounds, is_whole=is_whole))
        if words is not None:
            _check_word(key, value, words)


def _text(key: str, value: object) -> str:
    """Return a text or path as text. ConfigError: it is neither."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{key} is {quoted(value)}; use text")
    return str(value)


def _bounded(key: str, value: Any, bounds: Bounds, *, is_whole: bool) -> object:
    """Return a number, as an int where it must be whole. ConfigError: it is out of its bounds."""
    if not bounds.allow(value):
        raise ConfigError(f"{key} is {quoted(value)}; {bounds}")
    if not is_whole:
        return value
    if value != int(value):
        raise ConfigError(f"{key} is {value}; use a whole number")
    return int(value)


def _check_word(key: str, value: object, words: OpenTable[Any] | Iterable[str]) -> None:
    """ConfigError: the value is none of the words."""
    if isinstance(words, OpenTable):
        words[value]  # an unknown word is an error
        return
    known = list(words)
    if not isinstance(value, str) or value not in known:
        raise ConfigError(
            f"{key} is {quoted(value)}, which does not exist; {nearest(str(value), known)}"
        )


class Section:
    """A dataclass of settings, checked when it is made: `class ReplaySettings(Section, prefix="replay.")`."""

    prefix: ClassVar[str]

    def __init_subclass__(cls, *, prefix: str = "") -> None:
        """`prefix`: the section's key and a dot."""
        cls.prefix = prefix

    def __post_init__(self) -> None:
        check_fields(self, self.prefix)
