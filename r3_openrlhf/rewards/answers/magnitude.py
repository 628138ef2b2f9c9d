"""Decide from its sympy tree if an expression is small enough to be computed.

Without this, common endless answers (9^{9^{9^{9}}}, factorials) would cost their whole deadline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sympy import Add, Basic, Integer, Mul, Pow, Rational, binomial, factorial, factorial2

MAX_DIGITS = 100_000  # of a number that is computed; 2014! has 5786
MAX_TERMS = 20_000  # of a power of a sum that is expanded
MAX_NODES = 2_000


def is_too_large(expression: object) -> bool:
    """Whether a part is too large to be computed, or the whole has too many parts."""
    if not isinstance(expression, Basic):
        return False
    for count, node in enumerate(_nodes(expression)):
        if count > MAX_NODES or _digits(node) > MAX_DIGITS or _terms(node) > MAX_TERMS:
            return True
    return False


def _nodes(expression: Basic) -> Iterator[Basic]:
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Pow) and node.base == 1:
            continue  # whatever the exponent
        waiting.extend(argument for argument in node.args if isinstance(argument, Basic))


def _digits(node: Basic, depth: int = 0) -> float:
    """About log10 |node| for numbers; 0 for what is no number or not known to be large."""
    if depth > 50:
        return math.inf
    match node:
        case Rational(p=p, q=q):
            return max(p.bit_length(), q.bit_length()) * math.log10(2)
        case Pow(base=Integer(p=1)):
            return 0.0
        case Pow(base=base, exp=exponent):
            return max(_digits(base, depth + 1), 0.3 if base.is_number else 0.0) * _value(exponent, depth + 1)
        case Mul() | Add():
            return sum(_digits(argument, depth + 1) for argument in node.args)
        case factorial() | factorial2() | binomial():
            n = _value(node.args[0], depth + 1)
            return math.inf if math.isinf(n) else n * max(0.0, math.log10(max(n, 1.0)) - 0.4343)
    return 0.0


def _value(node: Basic, depth: int) -> float:
    """|node| of a number as a float, infinity if too large for one; 0 for no number."""
    if isinstance(node, Rational):
        return abs(node.p / node.q) if node.p.bit_length() < 1000 and node.q.bit_length() < 1000 else math.inf
    digits = _digits(node, depth)
    return 10**digits if digits < 300 else math.inf


def _terms(node: Basic) -> float:
    """Terms of an expanded power of a sum."""
    if isinstance(node, Pow) and isinstance(node.base, Add) and isinstance(node.exp, Integer) and node.exp.p > 1:
        n, k = min(node.exp.p, 10**6), len(node.base.args)
        return math.comb(n + k - 1, k - 1) if k < 50 else math.inf
    return 0
