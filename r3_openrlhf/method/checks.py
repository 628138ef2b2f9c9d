"""Checks of settings: each raises a ConfigError that names the key, the value and what to use instead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import nearest

MAX_VALUE = 2**53


def one_of(key: str, value: str, known: Iterable[str]) -> None:
    """ConfigError unless `value` is one of these words."""
    words = list(known)
    if value not in words:
        raise ConfigError(f"{key} is {quoted(value)}, which does not exist; {nearest(value, words)}")


def at_least(key: str, value: float | None, low: float) -> None:
    """ConfigError unless low <= value <= 2**53. None is 'not set' and always fine."""
    if value is not None and not low <= value <= MAX_VALUE:
        raise ConfigError(f"{key} is {value}; use {low} or more" + (", up to 2**53" if value > MAX_VALUE else ""))


def above(key: str, value: float | None, low: float) -> None:
    """ConfigError unless `value` is finite and larger than `low`. None is 'not set' and always fine."""
    if value is not None and not (math.isfinite(value) and value > low):
        raise ConfigError(f"{key} is {value}; use a number above {low}")


def fraction(key: str, value: float) -> None:
    """ConfigError unless `value` lies between 0 and 1, both included."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{key} is {value}; use a fraction between 0 and 1")


def check_typed(key: str, *texts: str) -> None:
    r"""ConfigError: a text has \n or \t as two characters, as a command line gives them, and so never occurs."""
    for text in texts:
        if typed := re.search(r"\\[nt](?![a-zA-Z])", text):
            raise ConfigError(
                f"{key} holds {quoted(typed[0])} as two characters, a backslash and a letter; on the command line write a real "
                "line break or tab inside the quotes ($'...' in bash), or put the text into a YAML file"
            )
