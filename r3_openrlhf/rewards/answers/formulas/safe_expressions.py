"""Python-like expressions as sympy expressions, without evaluating them as Python.

sympy.parse_expr and eval run what they are given, and so does everything in sympy that takes a
string: sympify, and even Number("12"), which the LaTeX parser calls for every number. Here the text
is only parsed (ast), and the few node types that arithmetic needs are translated; sizes are bounded
before anything is computed."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

import sympy
from sympy.parsing import sympy_parser

from r3_openrlhf.rewards.answers.text.arithmetic import ARITHMETIC, evaluate

MAX_CHARS = 2000
_MAX_BITS = 20_000
_MAX_EXPONENT = 1000

_NAMES = {"pi": sympy.pi, "E": sympy.E, "I": sympy.I, "oo": sympy.oo}
# of one argument, as sympy and mpmath name them
ELEMENTARY = [
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "asin",
    "acos",
    "atan",
    "acot",
    "asec",
    "acsc",
    "sinh",
    "cosh",
    "tanh",
    "coth",
    "asinh",
    "acosh",
    "atanh",
    "exp",
    "erf",
]
_FUNCTIONS = {name: getattr(sympy, name) for name in [*ELEMENTARY, "log", "sqrt", "Abs"]}
_FUNCTIONS |= {"ln": sympy.log, "abs": sympy.Abs}
_INTEGER = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]*\.[0-9]+|[0-9]+\.")


def _parsed(text: str) -> ast.expr:
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        raise ValueError(f"an expression has at most {MAX_CHARS} characters")
    return ast.parse(text.strip(), mode="eval").body


def parse_expression(
    text: str,
    local_dict: Mapping[str, sympy.Expr] | None = None,
    *_ignored: object,
    **_options: object,
) -> sympy.Expr:
    """Return the sympy expression of `text`; replaces sympy.parse_expr, whose further options are
    ignored.

    SyntaxError for anything but numbers, names, + - * / ** and elementary functions."""
    try:
        if _INTEGER.fullmatch(text):
            return sympy.Integer(int(text))
        if _DECIMAL.fullmatch(text):
            return sympy.Float(text)
        return _expression(_parsed(text), local_dict or {})
    except ValueError as error:
        raise SyntaxError(str(error)) from error


def replace_in_sympy() -> None:
    """Make sympify, and all of sympy that takes a string, use `parse_expression`, for good."""
    sympy_parser.parse_expr = parse_expression


def _expression(node: ast.expr, names: Mapping[str, sympy.Expr]) -> sympy.Expr:
    def atom(node: ast.expr) -> sympy.Expr:
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return sympy.sympify(value)
            case ast.Name(id=name):
                return names.get(name) or _NAMES.get(name) or sympy.Symbol(name)
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if (
                name in _FUNCTIONS
            ):
                return _FUNCTIONS[name](_expression(argument, names))
        raise ValueError(f"{type(node).__name__} is not allowed in an expression")

    return evaluate(node, atom, _OPERATORS)


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if exponent.is_number:
        if not exponent.is_Rational or abs(exponent) > _MAX_EXPONENT:
            raise ValueError("an exponent is a number of moderate size")
        if (
            base.is_Rational
            and abs(exponent) * max(base.p.bit_length(), base.q.bit_length()) > _MAX_BITS
        ):
            raise ValueError("a power is too large")
    return base**exponent


_OPERATORS = ARITHMETIC | {ast.Pow: _power}


def integer_value(text: str) -> int:
    """Value of an integer expression, + - * // % & | ^ << >> ~; a scorer's eval."""
    return evaluate(_parsed(text), _integer, _INTEGER_OPERATORS)


def _integer(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(f"{type(node).__name__} is not allowed in an integer expression")


def _shift(value: int, places: int) -> int:
    if not 0 <= places <= _MAX_BITS:
        raise ValueError("a shift is too large")
    return value << places


_INTEGER_OPERATORS: dict[type, Callable] = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Invert: operator.invert,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.LShift: _shift,
    ast.RShift: operator.rshift,
}


def literal(text: str) -> object:
    """Read a list, tuple, string or number as a Python literal; a scorer's eval."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"a literal has at most {MAX_CHARS} characters")
    return ast.literal_eval(text)
