"""Cheap comparisons of two final answers: as text and as plain numbers. No symbolic library, linear time."""

from __future__ import annotations

import re
from fractions import Fraction

_MAX_NUMBER_CHARS = 60
_INTEGER = r"(?:\d{1,3}(?:[, ]\d{3})+|\d+)"
_NUMBER = re.compile(rf"([+-]?)({_INTEGER}(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"([+-]?)(?:\\frac\{([+-]?\d+)\}\{([+-]?\d+)\}|\\frac(\d)(\d)|(\d+)/(\d+))")
_COMMANDS = re.compile(r"\\(?:left|right|displaystyle|,|!|;|:|quad|qquad)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|textnormal|mathrm|mathbf)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # "1 000" is left alone: "1 2" is not "12"


def normalise(answer: str) -> str:
    """The same answer in one spelling: no spaces, no size commands, one kind of fraction, no trailing full stop."""
    text = answer.strip().replace("\\$", "").replace("$", "")
    text = text.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]")
    text = (
        text.replace("{,}", ",").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    )
    text = _TEXT.sub(r"\1", _COMMANDS.sub("", text))
    text = text.replace("−", "-").replace("^{\\circ}", "").replace("^\\circ", "")
    return _SPACE.sub("", text).rstrip(".")


def plain_number(normalised: str) -> Fraction | None:
    """The value of "1,234.5", "-3/4" or "\\frac{1}{2}"; None for everything else.

    A comma that does not group thousands ("1,22", "1,2") has two readings and is left to the symbolic comparison.
    """
    if len(normalised) > _MAX_NUMBER_CHARS:
        return None
    if match := _NUMBER.fullmatch(normalised):
        return Fraction(match[1] + re.sub("[, ]", "", match[2]))
    if match := _FRACTION.fullmatch(normalised):
        top, bottom = next((a, b) for a, b in ((match[2], match[3]), (match[4], match[5]), (match[6], match[7])) if a)
        if int(bottom):
            value = Fraction(int(top), int(bottom))
            return -value if match[1] == "-" else value
    return None


def compare_cheaply(answer: str, reference: str) -> bool | None:
    """True: equal. False: two plain numbers that differ. None: not decided here."""
    left, right = normalise(answer), normalise(reference)
    if left and left == right:
        return True
    a, b = plain_number(left), plain_number(right)
    if a is None or b is None:
        return None
    return numbers_agree(a, b, left, right)


def significant_digits(number: str) -> int | None:
    """Digits that a decimal with a point states ("0.060" has 2); None where the notation is exact."""
    if "." not in number:
        return None
    return len(re.sub("[^0-9]", "", number).lstrip("0"))


def numbers_agree(a: Fraction, b: Fraction, a_text: str, b_text: str) -> bool:
    """Equal, or one is a decimal of at least 4 significant digits and the other rounds to it.

    The evaluator that the field uses (Qwen2.5-Math) takes any relative difference up to 1e-4, which would also accept
    10001 for 10000; two exact notations must agree exactly here.
    """
    if a == b:
        return True
    for exact, rounded, text in ((a, b, b_text), (b, a, a_text)):
        digits = significant_digits(text)
        if digits is not None and digits >= 4:
            decimals = len(text.rpartition(".")[2])
            if abs(exact - rounded) * 10**decimals * 2 <= 1:
                return True
    return False
