"""Compare an output with the expected one as contests do, in the process that holds the latter.

Outputs of programs are hostile: the work is linear in their size, nothing is evaluated.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

RELATIVE = 1e-6  # as Codeforces' checkers
ABSOLUTE = 1e-9
# An expected number with so many decimals was rounded: its last digit may differ by one.
ROUNDED_DECIMALS = 6
MAX_NUMBER_CHARS = 400
MAX_KEY = 10**MAX_NUMBER_CHARS
# An expected word with a leading zero is a text: a binary number, a time
_TEXT = re.compile(r"[+-]?0[0-9]")
# ASCII digits alone, no underscores: what Python reads as a number, and judges do not
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))(?:[eE][+-]?[0-9]{1,4})?")


def same_text(expected: str, printed: str) -> bool:
    """White space around text and lines, and its amount, does not count; the number of lines does.

    A word is right if equal, or a number: of the value of an expected integer, else within
    RELATIVE."""
    wanted, actual = (text.replace("\r\n", "\n").strip().split("\n") for text in (expected, printed))
    return len(wanted) == len(actual) and all(map(_same_line, wanted, actual))


def _same_line(expected: str, printed: str) -> bool:
    if expected.strip() == printed.strip():
        return True
    wanted, actual = expected.split(), printed.split()
    return len(wanted) == len(actual) and all(map(_same_word, wanted, actual))


def _same_word(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    if max(len(expected), len(printed)) > MAX_NUMBER_CHARS or _TEXT.match(expected):
        return False
    wanted, actual = _NUMBER.fullmatch(expected), _NUMBER.fullmatch(printed)
    if wanted is None or actual is None:
        return False
    decimals = wanted[1] or wanted[2]
    if decimals is None and "e" not in expected.lower():
        return Decimal(expected) == Decimal(printed)
    digits = len(decimals or "") - 1
    rounded = 1.01 * 10.0**-digits if digits >= ROUNDED_DECIMALS else 0.0
    return _close(float(expected), float(printed), max(ABSOLUTE, rounded))


def same_value(expected: Any, returned: Any, *, boxed: bool = False) -> bool:
    """True if a function returned the expected JSON value. Tuples count as lists and keys as their
    texts; floats are compared as in same_text, everything else is equal or not.

    boxed: `expected` is a list around the value, which counts too.
    """
    if _same(expected, returned):
        return True
    return boxed and isinstance(expected, list) and len(expected) == 1 and _same(expected[0], returned)


def _same(expected: Any, returned: Any) -> bool:
    """RecursionError cannot come: data.py, or `expected`, bounds the nesting."""
    if isinstance(expected, list):
        if not isinstance(returned, (list, tuple)) or len(expected) != len(returned):
            return False
        return all(map(_same, expected, returned))
    if isinstance(expected, dict):
        if not isinstance(returned, dict) or len(expected) != len(returned):
            return False
        if any(isinstance(key, int) and abs(key) >= MAX_KEY for key in returned):  # str() has a limit
            return False
        actual = {_key(key): value for key, value in returned.items()}
        return actual.keys() == expected.keys() and all(_same(value, actual[key]) for key, value in expected.items())
    if isinstance(expected, float):
        if isinstance(returned, bool) or not isinstance(returned, (int, float)):
            return False
        try:
            return math.isnan(expected) and math.isnan(returned) or _close(expected, float(returned), ABSOLUTE)
        except OverflowError:
            return False
    if expected is None or isinstance(expected, str):
        return type(expected) is type(returned) and expected == returned
    return isinstance(returned, (bool, int, float)) and expected == returned


def _key(key: object) -> object:
    """Write a key of a dictionary as JSON does."""
    if isinstance(key, bool):
        return str(key).lower()
    return "null" if key is None else str(key) if isinstance(key, (int, float)) else key


def _close(expected: float, actual: float, absolute: float) -> bool:
    return math.isclose(expected, actual, rel_tol=RELATIVE, abs_tol=absolute)
