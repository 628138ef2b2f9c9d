"""Exact value of an arithmetic answer such as "1,234.5", "-\\frac{3}{4}" or "1.6\\times10^{-19}".

The text is hostile. It is rewritten in the notation of Python, which only parses it (ast); every size is bounded before it is
computed."""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

MAX_CHARS = 200
_MAX_BITS = 4096  # of numerator and denominator of every intermediate value
_TOKEN = re.compile(
    r"\s*(?:(?P<repeating>[0-9]*\.[0-9]*\\overline\s*\{[0-9]+\})"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,3}(?![0-9])"
    r"|[1-9][0-9]{0,2}(?:[, ][0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"|(?P<operator>\\(?:cdot|times|div)(?![a-zA-Z])|\\frac(?=\s*\{)|\*\*|[-+*/^(){}×÷·⋅−])"
    r"|(?P<irrational>\\sqrt(?=\s*\{)|\\pi(?![a-zA-Z])|π))"
)
_DIGIT = re.compile("[0-9]")
_IN_PYTHON = {
    "\\cdot": "*",
    "\\times": "*",
    "×": "*",
    "·": "*",
    "⋅": "*",
    "÷": "/",
    "\\div": "/",
    "−": "-",
    "^": "**",
    "{": "(",
    "}": ")",
    "\\frac": "F",
    "\\sqrt": "R",
    "\\pi": "(P)",
    "π": "(P)",
}


def exact_value(text: str) -> Fraction | None:
    """Return the value of `text`; None for anything but numbers and + - * / ^ ( ), or two readings."""
    if len(text) > MAX_CHARS or not _DIGIT.search(text):
        return None
    if (plain := _TOKEN.fullmatch(text.strip())) and plain["number"]:
        return _number(plain["number"])
    try:
        return evaluate(_parsed(text), _atom, _OPERATORS)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def rough_value(text: str) -> float | None:
    """Return about the value of `text`, which may have square roots and pi; None for anything else.

    It costs a tenth of a parser of formulas, and tells that two answers differ; not that they are equal."""
    if len(text) > MAX_CHARS:
        return None
    try:
        return float(evaluate(_parsed(text), _rough_atom, _ROUGH_OPERATORS))
    except (SyntaxError, ValueError, TypeError, ArithmeticError):
        return None


def _parsed(text: str) -> ast.expr:
    return ast.parse(_in_python(text.strip()).strip(), mode="eval").body


def evaluate(
    node: ast.expr, atom: Callable[[ast.expr], Any], operators: Mapping[type, Callable]
) -> Any:
    """Compute a parsed expression by the given operators; `atom` has the value of any other node.

    Raises:
        ValueError: a part has no value."""
    match node:
        case ast.UnaryOp(op=op, operand=operand) if type(op) in operators:
            return operators[type(op)](evaluate(operand, atom, operators))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in operators:
            return operators[type(op)](
                evaluate(left, atom, operators), evaluate(right, atom, operators)
            )
    return atom(node)


def _in_python(text: str) -> str:
    """ "2(3)" as "(2)*((3))"; two numbers side by side, and 2\\frac12, become a call, which has no value."""
    tokens, position = "", 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("no arithmetic")
        sign = match["operator"] or match["irrational"]
        if (sign == "(" or match["irrational"]) and tokens.endswith(")"):
            tokens += "*"
        if sign:
            tokens += f" {_IN_PYTHON.get(sign, sign)}"  # "* *" is no power
        else:
            tokens += f"({_repeating(match['repeating']) if match['repeating'] else _number(match['number'])})"
        position = match.end()
    return tokens


def _number(digits: str) -> Fraction:
    return Fraction(re.sub("[, ]", "", digits))


def _repeating(decimal: str) -> Fraction:
    """0.1\\overline{6} is 15/90."""
    head, _, tail = decimal.partition("\\overline")
    fixed, period = head.replace(".", ""), tail.strip(" {}")
    places = len(head.partition(".")[2])
    return Fraction(
        int(fixed + period) - int(fixed or "0"), (10 ** len(period) - 1) * 10**places
    )


def _atom(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() as value):
            return Fraction(value)
        case ast.Call(func=ast.Call(func=ast.Name(id="F"), args=[top]), args=[bottom]):
            return evaluate(top, _atom, _OPERATORS) / evaluate(bottom, _atom, _OPERATORS)
    raise ValueError("no arithmetic")


def _rough_atom(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() as value):
            return float(value)
        case ast.Name(id="P"):
            return math.pi
        case ast.Call(func=ast.Name(id="R"), args=[inside]):
            return math.sqrt(evaluate(inside, _rough_atom, _ROUGH_OPERATORS))
        case ast.Call(func=ast.Call(func=ast.Name(id="F"), args=[top]), args=[bottom]):
            above: float = evaluate(top, _rough_atom, _ROUGH_OPERATORS)
            return above / evaluate(bottom, _rough_atom, _ROUGH_OPERATORS)
    raise ValueError("no arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * bits > _MAX_BITS:
        raise ValueError("no power of moderate size")
    return base ** int(exponent)


def _bounded(
    function: Callable[[Fraction, Fraction], Fraction],
) -> Callable[[Fraction, Fraction], Fraction]:
    def call(a: Fraction, b: Fraction) -> Fraction:
        value = function(a, b)
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
            raise ValueError("a number is too large")
        return value

    return call


ARITHMETIC: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_BOUNDED = {kind: _bounded(ARITHMETIC[kind]) for kind in (ast.Add, ast.Sub, ast.Mult, ast.Div)}
_OPERATORS = ARITHMETIC | _BOUNDED | {ast.Pow: _power}
_ROUGH_OPERATORS = ARITHMETIC | {ast.Pow: math.pow}
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
