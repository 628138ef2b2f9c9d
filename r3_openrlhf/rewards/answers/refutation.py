"""Quick proofs that two parsed answers differ, so that most wrong answers need no symbolic
simplification.

Sound for what math-verify calls equal: a pair is refuted only if its numbers differ by far more
than any tolerance there, or if one is a single value and the other certainly is not."""

from __future__ import annotations

import math

import sympy
from sympy import Basic, Expr, Rational, UnevaluatedExpr, log
from sympy.core.function import AppliedUndef

MAX_SYMBOLS = 8
_TOLERANCE = 1e-3  # relative; math-verify's own is 1e-6 absolute
_CLOSE = 1e-9  # relative: the same value
# one value per symbol, not special for any usual function
_VALUES = [Rational(p, q) for p, q in ((7, 11), (13, 17), (19, 23), (29, 31), (37, 41), (43, 47), (53, 59), (61, 67))]

_WHOLE_VALUES = [
    [9, 4, 5, 3, 7, 2, 6, 8],
    [3, 8, 4, 6, 2, 7, 5, 9],
    [6, 5, 7, 4, 3, 8, 2, 9],
    [4, 11, 6, 9, 5, 8, 7, 10],
]
_OF_WHOLE = (sympy.factorial, sympy.binomial)


def surely_different(a: object, b: object) -> bool:
    """True if math-verify would certainly not call them equal. False: nothing is proven."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        return _differ_at_a_point(a, b)
    if isinstance(a, Basic) and isinstance(b, Basic):
        sizes = _num_values(a), _num_values(b)
        return None not in sizes and sizes[0] != sizes[1] and 1 in sizes
    return False


def _differ_at_a_point(a: Expr, b: Expr) -> bool:
    """Equal expressions have equal values wherever both have one."""
    if isinstance(a, sympy.Symbol) or isinstance(b, sympy.Symbol):
        return False  # math-verify also compares names letter by letter
    symbols = a.free_symbols | b.free_symbols
    names = sorted({str(symbol) for symbol in symbols})
    if len(names) > MAX_SYMBOLS or a.has(UnevaluatedExpr, AppliedUndef) or b.has(UnevaluatedExpr, AppliedUndef):
        return False
    values = dict(zip(names, _VALUES, strict=False))
    point = {symbol: values[str(symbol)] for symbol in symbols}
    try:
        value_a, value_b = a.evalf(15, subs=point), b.evalf(15, subs=point)
        try:
            x, y = complex(value_a), complex(value_b)
        except OverflowError:  # one is beyond floating-point numbers
            return bool(abs(value_a - value_b) > 1)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError, NotImplementedError):
        return False  # no value there
    if not all(map(math.isfinite, (x.real, x.imag, y.real, y.imag))):
        return False
    if max(abs(x), abs(y)) < 1 and _are_exact(value_a, value_b) and not (a.has(sympy.Float) or b.has(sympy.Float)):
        # as numbers of sympy: no error of floating-point arithmetic, and e^{-1000} is no float
        return bool(abs(value_a - value_b) > _TOLERANCE * max(abs(value_a), abs(value_b)))
    return abs(x - y) > _TOLERANCE * max(1.0, abs(x), abs(y))


def _are_exact(a: Expr, b: Expr) -> bool:
    """Whether evalf has both to the last digit, neither zero: cancelling gives precision 1."""
    return all(isinstance(value, sympy.Float) and value._prec > 1 and value != 0 for value in (a, b))


def agree_at_points(a: object, b: object) -> bool:
    """Whether two expressions have one finite value at two points; False: not to be seen."""
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        return False
    names = sorted({str(symbol) for symbol in a.free_symbols | b.free_symbols})
    if len(names) > MAX_SYMBOLS:
        return False
    for shift in (0, 1):
        values = {name: value + shift for name, value in zip(names, _VALUES, strict=False)}
        x, y = (_value_at(expression, values) for expression in (a, b))
        if x is None or y is None or abs(x - y) > _CLOSE * max(1e-6, abs(x), abs(y)):
            return False
    return True


def agree_where_real(a: object, b: object) -> bool:
    """Whether two expressions with roots, powers, logarithms or factorials of letters agree
    wherever both are real.

    The letters stand for positive numbers there, and for whole ones where there are factorials."""
    if not isinstance(a, Expr) or not isinstance(b, Expr) or a.has(sympy.Abs) or b.has(sympy.Abs):
        return False
    names = sorted({str(symbol) for symbol in a.free_symbols | b.free_symbols})
    whole = a.has(*_OF_WHOLE) or b.has(*_OF_WHOLE)
    if not 0 < len(names) <= MAX_SYMBOLS or not whole and not (_has_root(a) or _has_root(b)):
        return False
    agreed = 0
    for point in (
        _WHOLE_VALUES if whole else (_VALUES, _VALUES[::-1], [5 * value for value in _VALUES[3:] + _VALUES[:3]])
    ):
        values = dict(zip(names, point, strict=False))
        x, y = (_value_at(expression, values) for expression in (a, b))
        if x is None or y is None or abs(x.imag) > _CLOSE * abs(x) or abs(y.imag) > _CLOSE * abs(y):
            continue
        if abs(x - y) > _CLOSE * max(abs(x), abs(y)):
            return False
        agreed += 1
    return agreed > 1


def _has_root(expression: Expr) -> bool:
    """Whether letters stand under a root, in a logarithm or in an exponent."""
    return any(power.free_symbols and not power.exp.is_Integer for power in expression.atoms(sympy.Pow)) or any(
        logarithm.free_symbols for logarithm in expression.atoms(log)
    )


def _value_at(expression: Expr, values: dict) -> complex | None:
    try:
        value = complex(expression.evalf(15, subs={symbol: values[str(symbol)] for symbol in expression.free_symbols}))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError, NotImplementedError):
        return None
    return value if math.isfinite(value.real) and math.isfinite(value.imag) else None


def with_imaginary_unit(expression: object) -> object:
    """The letter i as the imaginary unit, which the LaTeX parser takes for a name."""
    if not isinstance(expression, Basic):
        return expression
    letters = {symbol: sympy.I for symbol in expression.free_symbols if str(symbol) == "i"}
    try:
        return expression.xreplace(letters) if letters else expression
    except (TypeError, ValueError, AttributeError):  # "i > 3"
        return expression


def _num_values(answer: Basic) -> float | None:
    """Count the values that an answer stands for; None when that is not plain to see."""
    match answer:
        case Expr():
            return 1 if answer.is_number else None
        case sympy.Interval(start=start, end=end):
            return math.inf if start.is_number and end.is_number and start != end else None
        case sympy.FiniteSet() | sympy.Tuple():
            elements = {element for element in answer.args if isinstance(element, Rational)}
            return len(elements) if len(elements) == len(answer.args) else None
    return None
