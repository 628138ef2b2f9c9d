"""Quick proofs that two parsed answers differ, so that most wrong answers need no symbolic simplification.

Sound for what math-verify calls equal: a pair is refuted only if its numbers differ by far more than any tolerance
there, or if one is a single value and the other certainly is not.
"""

from __future__ import annotations

import math

from sympy import Basic, Expr, FiniteSet, Interval, Rational, Symbol, Tuple, UnevaluatedExpr
from sympy.core.function import AppliedUndef

MAX_SYMBOLS = 8
_TOLERANCE = 1e-3  # relative; math-verify's own is 1e-6 absolute
# one value per symbol, not special for any usual function
_VALUES = [Rational(p, q) for p, q in ((7, 11), (13, 17), (19, 23), (29, 31), (37, 41), (43, 47), (53, 59), (61, 67))]


def surely_different(a: object, b: object) -> bool:
    if isinstance(a, Expr) and isinstance(b, Expr):
        return _differ_at_a_point(a, b)
    if isinstance(a, Basic) and isinstance(b, Basic):
        sizes = _num_values(a), _num_values(b)
        return None not in sizes and sizes[0] != sizes[1] and 1 in sizes
    return False


def _differ_at_a_point(a: Expr, b: Expr) -> bool:
    """Equal expressions have equal values wherever both have one."""
    if isinstance(a, Symbol) or isinstance(b, Symbol):
        return False  # math-verify also compares names letter by letter
    symbols = a.free_symbols | b.free_symbols
    names = sorted({str(symbol) for symbol in symbols})
    if len(names) > MAX_SYMBOLS or a.has(UnevaluatedExpr, AppliedUndef) or b.has(UnevaluatedExpr, AppliedUndef):
        return False
    values = dict(zip(names, _VALUES, strict=False))
    point = {symbol: values[str(symbol)] for symbol in symbols}
    try:
        x, y = complex(a.evalf(15, subs=point)), complex(b.evalf(15, subs=point))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError, NotImplementedError):
        return False  # no value there
    if not all(map(math.isfinite, (x.real, x.imag, y.real, y.imag))):
        return False
    return abs(x - y) > _TOLERANCE * max(1.0, abs(x), abs(y))


def _num_values(answer: Basic) -> float | None:
    """How many values an answer stands for; None when that is not plain to see."""
    match answer:
        case Expr():
            return 1 if answer.is_number else None
        case Interval(start=start, end=end):
            return math.inf if start.is_number and end.is_number and start != end else None
        case FiniteSet() | Tuple():
            elements = {element for element in answer.args if isinstance(element, Rational)}
            return len(elements) if len(elements) == len(answer.args) else None
    return None
