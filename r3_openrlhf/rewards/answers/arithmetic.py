"""Exact value of an arithmetic answer such as "1,234.5", "-\\frac{3}{4}" or "1.6\\times10^{-19}".

A parser of its own: the text is hostile, so nothing is evaluated, and every size is bounded before
it is computed."""

from __future__ import annotations

import re
from fractions import Fraction
from math import isqrt

MAX_CHARS = 200
_MAX_BITS = 4096  # of numerator and denominator of every intermediate value
_MAX_DEPTH = 20
_TOKEN = re.compile(
    r"\s*(?:(?P<repeating>[0-9]*\.[0-9]*\\overline\s*\{[0-9]+\})"
    r"|(?P<scientific>[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,3}(?![0-9]))"
    r"|(?P<number>[1-9][0-9]{0,2}(?:[, ][0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"|(?P<operator>\\cdot(?![a-zA-Z])|\\times(?![a-zA-Z])|\\div(?![a-zA-Z])|\\frac(?![a-zA-Z])|\\sqrt(?![a-zA-Z])"
    r"|\*\*|[-+*/^(){}×÷·⋅−]))"
)
_DIGIT = re.compile("[0-9]")
_SAME = {"\\cdot": "*", "\\times": "*", "×": "*", "·": "*", "⋅": "*", "÷": "/", "\\div": "/", "−": "-", "**": "^"}


class _NotArithmetic(Exception):
    """The text is not a plain arithmetic expression, or too large to be computed."""


def exact_value(text: str) -> Fraction | None:
    """The value of `text`; None for anything but numbers and + - * / ^ ( ), or two readings."""
    if len(text) > MAX_CHARS or not _DIGIT.search(text):
        return None
    try:
        return _Parser(_tokens(text)).value()
    except (_NotArithmetic, ZeroDivisionError):
        return None


def _tokens(text: str) -> list[str]:
    tokens, position, text = [], 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _NotArithmetic
        if match["repeating"]:
            tokens.extend(_repeating(match["repeating"]))
        elif match["scientific"]:
            tokens.append(match["scientific"])
        elif match["number"]:
            tokens.append(re.sub("[, ]", "", match["number"]))
        else:
            tokens.append(_SAME.get(match["operator"], match["operator"]))
        position = match.end()
    return tokens


def _repeating(decimal: str) -> list[str]:
    """0.1\\overline{6} as ( 15 / 90 )."""
    head, _, tail = decimal.partition("\\overline")
    fixed, period = head.replace(".", ""), tail.strip(" {}")
    places = len(head.partition(".")[2])
    top = int(fixed + period) - int(fixed or "0")
    return ["(", str(top), "/", str((10 ** len(period) - 1) * 10**places), ")"]


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._position != len(self._tokens):
            raise _NotArithmetic
        return value

    def _next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self, expected: str | None = None) -> str:
        token = self._next()
        if not token or expected is not None and token != expected:
            raise _NotArithmetic
        self._position += 1
        return token

    def _sum(self) -> Fraction:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NotArithmetic
        value = self._product()
        while self._next() in ("+", "-"):
            value = _bounded(value + self._product() if self._take() == "+" else value - self._product())
        self._depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            token = self._next()
            if token in ("*", "/"):
                self._take()
                factor = self._signed()
                value = _bounded(value * factor if token == "*" else value / factor)
            elif token in ("(", "\\sqrt"):  # "1000(26)", "2\\sqrt{4}"
                value = _bounded(value * self._power())
            elif token and token not in "+-)}":  # "2\\frac{1}{2}", "1 1/2": mixed number or product
                raise _NotArithmetic
            else:
                return value

    def _signed(self) -> Fraction:
        sign = 1
        for _ in range(3):
            if self._next() not in ("+", "-"):
                return sign * self._power()
            sign = -sign if self._take() == "-" else sign
        raise _NotArithmetic

    def _power(self) -> Fraction:
        base = self._atom()
        if self._next() != "^":
            return base
        self._take()
        exponent = self._signed() if self._next() == "-" else self._atom()
        if self._next() == "^" or exponent.denominator != 1:
            raise _NotArithmetic
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) * bits > _MAX_BITS:
            raise _NotArithmetic
        return base ** int(exponent)

    def _atom(self) -> Fraction:
        token = self._take()
        if token in ("(", "{"):
            value = self._sum()
            self._take(")" if token == "(" else "}")
            return value
        if token == "\\frac":
            top = self._argument()
            return top / self._argument()
        if token == "\\sqrt":
            value = self._argument()
            root = Fraction(isqrt(max(0, value.numerator)), isqrt(value.denominator))
            if root * root != value:
                raise _NotArithmetic
            return root
        if token[0].isdecimal() or token[0] == ".":
            return Fraction(token)
        raise _NotArithmetic

    def _argument(self) -> Fraction:
        if self._next() != "{":  # "\\frac12" is split differently by different readers
            raise _NotArithmetic
        return self._atom()


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise _NotArithmetic
    return value


_DECIMAL = re.compile(
    r"[+-]?(?P<integer>[0-9]*)\.(?P<decimals>[0-9]+)(?:(?:\s*(?:\\times|\\cdot|\*|×)\s*10\s*\^\s*\{?|[eE])(?P<exponent>[+-]?[0-9]{1,3})\}?)?"
)


def stated_precision(text: str) -> tuple[int, Fraction] | None:
    """Significant digits that a decimal states and half a unit of its last place; None where the
    notation is exact.

    "0.0605" has 3 digits and 1/20000; "1.602\\times10^{-19}" has 4 and 5e-23."""
    match = _DECIMAL.fullmatch(text.replace(",", "").strip())
    if match is None:
        return None
    digits = len((match["integer"] + match["decimals"]).lstrip("0"))
    half_unit = Fraction(1, 2 * 10 ** len(match["decimals"]))
    return digits, half_unit * Fraction(10) ** int(match["exponent"] or 0)
