"""Checks of settings: each raises a ConfigError that names the key, the value and what to use instead."""

from __future__ import annotations

import math
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
