"""Compare an output with the expected one as contests do, in the process that holds the latter.

Outputs of programs are hostile: the work is bounded by the size of what is expected, nothing is
evaluated, and of the values of a program nothing is made, hashed or counted: marks are compared.
"""

import json
import math
import re
from decimal import Decimal
from typing import Any

RELATIVE = 1e-6  # as Codeforces' checkers
ABSOLUTE = 1e-9
# An expected number with so many decimals was rounded: its last digit may differ by one.
ROUNDED_DECIMALS = 6
MAX_NUMBER_CHARS = 400
# A right value is written with at most so many times as many characters as the expected one: 0 as -1.2345678901234567e-300
MOST_TIMES_LONGER, MORE_CHARS = 16, 64
# An expected word with a leading zero is a text: a binary number, a time
_TEXT = re.compile(r"[+-]?0[0-9]")
# ASCII digits alone, no underscores: what Python reads as a number, and judges do not
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))(?:[eE][+-]?[0-9]{1,4})?")


def same_text(expected: str, printed: str) -> bool:
    """White space around text and lines, and its amount, does not count. The number of lines does,
    blank ones aside where none is expected.

    A word is right if equal, or a number: of the value of an expected integer, else within
    RELATIVE."""
    wanted = _unified(expected).split("\n")
    text = _unified(printed)
    if all(line.strip() for line in wanted):
        text = re.sub(r"\n\s*\n", "\n", text)
    return text.count("\n") == len(wanted) - 1 and all(
        map(_same_line, wanted, text.split("\n"))
    )


def _unified(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff").strip()


def _same_line(expected: str, printed: str) -> bool:
    if expected.strip() == printed.strip():
        return True
    wanted = expected.split()
    actual = printed.split(maxsplit=len(wanted))
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
        difference = abs(Decimal(expected) - Decimal(printed))
        return difference == 0 or "." in printed and difference < Decimal(ABSOLUTE)
    digits = len(decimals or "") - 1
    rounded = 1.01 * 10.0**-digits if digits >= ROUNDED_DECIMALS else 0.0
    return math.isclose(
        float(expected), float(printed), rel_tol=RELATIVE, abs_tol=max(ABSOLUTE, rounded)
    )


def same_value(expected: object, returned: str, *, boxed: bool = False) -> bool:
    """Tell whether a function returned the expected JSON value, as data.encode wrote it. Tuples count as
    lists and keys as their texts; floats are compared as in same_text, all else is equal or not.

    boxed: `expected` is a list around the value, which counts too.
    """
    wanted = [
        expected,
        *(expected if boxed and isinstance(expected, list) and len(expected) == 1 else []),
    ]
    if len(returned) > MOST_TIMES_LONGER * len(json.dumps(expected)) + MORE_CHARS:
        return False
    try:
        marks = json.loads(returned)
        return any(_same(value, marks) for value in wanted)
    except (
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
    ):  # marks that data.encode never makes
        return False


def _same(expected: object, returned: object) -> bool:
    """Compare a JSON value with the marks of a returned one. Marks of data.encode have one key."""
    if isinstance(expected, dict):
        return _same_dict(expected, returned)
    returned = _unmarked(returned)
    if isinstance(expected, list):
        if not isinstance(returned, list) or len(expected) != len(returned):
            return False
        return all(map(_same, expected, returned))
    if isinstance(expected, float):
        return _same_float(expected, returned)
    if expected is None or isinstance(expected, str):
        return type(expected) is type(returned) and expected == returned
    return isinstance(returned, (bool, int, float)) and expected == returned


def _unmarked(returned: object) -> object:
    """Return a tuple as its list and a large integer as a number; anything else as it is."""
    if not isinstance(returned, dict):
        return returned
    ((kind, content),) = returned.items()
    if kind == "tuple":
        return content
    if kind == "int":
        return int(content, 16)
    return returned


def _same_dict(expected: dict[str, Any], returned: object) -> bool:
    """Compare a JSON object with the marks of a returned dictionary."""
    if not isinstance(returned, dict):
        return False
    ((kind, pairs),) = returned.items()
    if kind != "dict" or len(expected) != len(pairs):
        return False
    actual = {_key(key): value for key, value in pairs}
    if actual.keys() != expected.keys():
        return False
    return all(_same(value, actual[key]) for key, value in expected.items())


def _same_float(expected: float, returned: object) -> bool:
    """Compare a number within the tolerance; NaN is equal to NaN alone."""
    if not isinstance(returned, (int, float)) or isinstance(returned, bool):
        return False
    if math.isnan(expected):
        return math.isnan(returned)
    return math.isclose(expected, float(returned), rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _key(key: object) -> str:
    """Write a key of a dictionary as JSON does; of what JSON has no key for, the mark."""
    if isinstance(key, dict) and "int" in key:
        return str(int(key["int"], 16))
    return key if isinstance(key, str) else json.dumps(key)
