"""Parsed formulas, compared by their values at points. Every step has a bounded cost.

Two formulas are equal if their values agree at all points where both have one. Nothing is
simplified or solved. Numbers have 50 digits; what is beyond 10^(10^12) has no value."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import mpmath
import sympy
from latex2sympy2_extended import is_expr_of_only_symbols
from latex2sympy2_extended.logic import And
from sympy import Basic, Expr
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.matrices import MatrixBase
from sympy.matrices.expressions import MatrixExpr

from r3_openrlhf.rewards.answers.formulas.safe_expressions import ELEMENTARY
from r3_openrlhf.rewards.answers.text.parts import match

MAX_NODES = 2_000
MAX_LEVELS = 100  # of nodes within nodes
MAX_SYMBOLS = 8
_MAX_LOG = 1e12  # of a value's decimal logarithm
_MAX_ARGUMENT = 1e15  # of a function that grows or turns
_CLOSE = mpmath.mpf(10) ** -30  # relative: the same value
_CLOSE_FLOAT = mpmath.mpf(10) ** -6  # where a decimal is in a formula
_NOISE = mpmath.mpf(10) ** -42  # relative to the largest term: a sum is zero
_TINY = 1e-15  # an exponent next to 0
_PRIMES = (7, 13, 19, 29, 37, 43, 53, 61)

_MATRICES = (MatrixBase, MatrixExpr)
_HUNDREDTH = sympy.Rational(1, 100)
mp = mpmath.MPContext()
mp.dps = 50
Point = dict[str, Any]


_ERRORS = (
    ArithmeticError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    NotImplementedError,
    mpmath.libmp.libhyper.NoConvergence,
)


class NoValue(Exception):
    """The formula has no value at a point, or one that is too large to be computed."""


def _bounded(function: Callable) -> Callable:
    def call(*values: Any) -> Any:
        if any(abs(value) > _MAX_ARGUMENT for value in values):
            raise NoValue
        return function(*values)

    return call


def _power(base: Any, exponent: Any) -> Any:
    if base == 1 or exponent == 0:
        return mp.mpf(1)
    if base == 0:
        if mp.re(exponent) < 0:
            raise NoValue
        return mp.mpf(0)
    if not _TINY < abs(exponent) < _MAX_ARGUMENT or abs(exponent * mp.log(base)) > _MAX_LOG:
        raise NoValue
    return mp.power(base, exponent)


def _logarithm(value: object, base: object = None) -> object:
    if value == 0 or base in (0, 1):
        raise NoValue
    return mp.log(value) if base is None else mp.log(value) / mp.log(base)


_OF_NUMBERS = ["gamma", "factorial", "binomial", "floor", "sign", "re", "im", "conjugate"]
_FUNCTIONS: dict[str, Callable] = {
    name: _bounded(getattr(mp, name)) for name in [*ELEMENTARY, *_OF_NUMBERS]
}
_FUNCTIONS |= {
    "factorial2": _bounded(mp.fac2),
    "log": _logarithm,
    "ceiling": _bounded(mp.ceil),
    "Abs": abs,
    "UnevaluatedExpr": lambda value: value,
    "Mod": lambda value, modulus: value - modulus * mp.floor(value / modulus),
    "Max": max,
    "Min": min,
}
_CONSTANTS = {sympy.pi: mp.pi, sympy.E: mp.e, sympy.I: mp.j, sympy.EulerGamma: mp.euler}


def value_at(node: Basic, point: Point, known: dict[Basic, Any] | None = None) -> Any:
    """Compute the value of a formula, each symbol with its value of `point`. NoValue: there is none.

    known: values of parts at this point, which are computed once; the new ones are added."""
    known = {} if known is None else known
    if node not in known:
        known[node] = _computed(node, point, known)
    return known[node]


def _computed(node: Basic, point: Point, known: dict[Basic, Any]) -> Any:
    if node.is_Rational:
        return mp.mpf(node.p) / node.q
    if node.is_Float:
        return mp.mpf(str(node))
    if node in _CONSTANTS:
        return +_CONSTANTS[node]
    if node.is_Symbol:
        return point[str(node)]
    if node.is_Pow:
        return _power_at(node, point, known)
    values = [value_at(argument, point, known) for argument in node.args]
    if node.is_Add:
        return _sum(values)
    if node.is_Mul:
        return _finite(mp.fprod(values))
    if isinstance(node, AppliedUndef):
        return _of_any_function(node.func.__name__, values)
    function = _FUNCTIONS.get(type(node).__name__)
    if function is None:
        raise NoValue
    return function(*values)


def _power_at(node: Basic, point: Point, known: dict[Basic, Any]) -> Any:
    base = value_at(node.base, point, known)
    if base == 1:
        return mp.mpf(1)  # whatever the exponent
    return _power(base, value_at(node.exp, point, known))


def _sum(values: list[Any]) -> Any:
    total = _finite(mp.fsum(values))
    is_noise = abs(total) < _NOISE * max(map(abs, values))
    return mp.mpf(0) if is_noise else total


def _finite(total: Any) -> Any:
    if not mp.isfinite(total) or mp.mag(total) > 4 * _MAX_LOG:
        raise NoValue
    return total


def _of_any_function(name: str, values: list[Any]) -> Any:
    """Return another number for another name or other arguments."""
    of_name = sum(map(ord, name))
    return mp.sin(of_name + mp.fsum(i * value for i, value in enumerate(values, 2)))


def _value(node: Basic, point: Point) -> Any | None:
    try:
        value = value_at(node, point)
        return value if mp.isfinite(value) else None
    except (NoValue, *_ERRORS):
        return None


def real_value(node: object) -> Any | None:
    """Return the value of a formula without letters, if it is real; else None."""
    if not isinstance(node, Expr) or node.free_symbols or is_too_large(node):
        return None
    value = _value(node, {})
    return None if value is None or abs(mp.im(value)) > abs(value) * _CLOSE else mp.re(value)


def is_too_large(node: object) -> bool:
    """Tell whether it has too many parts, or levels, to be evaluated, or is a number too large to have a value."""
    if not isinstance(node, Basic):
        return False
    parts = list(islice(_nodes(node), MAX_NODES + 1))
    if len(parts) > MAX_NODES or _has_many_levels(node):
        return True
    known: dict[Basic, Any] = {}
    return any(
        part.func.__name__ in ("Pow", "factorial", "factorial2", "gamma", "binomial")
        and not part.free_symbols
        and _is_huge(part, known)
        for part in reversed(parts)  # the inner ones first
    )


def _has_many_levels(node: Basic) -> bool:
    level = [node]
    for _ in range(MAX_LEVELS):
        level = [
            argument for part in level for argument in part.args if isinstance(argument, Basic)
        ]
        if not level:
            return False
    return True


def _is_huge(node: Basic, known: dict[Basic, Any]) -> bool:
    try:
        value = value_at(node, {}, known)
    except NoValue:
        return True
    except _ERRORS:
        return False
    return bool(mp.isfinite(value)) and mp.mag(value) > 350_000  # 100,000 digits


def _nodes(node: Basic) -> Iterator[Basic]:
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        if not (part.is_Pow and part.base == 1):
            waiting.extend(argument for argument in part.args if isinstance(argument, Basic))


def _points(a: Basic, b: Basic) -> list[Point]:
    """Points for two formulas: whole ones for factorials, positive ones for roots of letters."""
    names = sorted({str(symbol) for symbol in a.free_symbols | b.free_symbols})
    if len(names) > MAX_SYMBOLS:
        return []
    if a.has(*_OF_WHOLE) or b.has(*_OF_WHOLE):
        rows = _whole_rows(len(names))
    elif a.has(*_OF_STEPS) or b.has(*_OF_STEPS):
        rows = _rows_over_steps(names)
    else:
        has_root = _has_root(a) or _has_root(b)
        has_abs = a.has(sympy.Abs) or b.has(sympy.Abs)
        rows = _rows(len(names), with_negative=has_abs or not has_root)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _whole_rows(size: int) -> list[list[Any]]:
    """Return rows of whole numbers from 2 to 10."""
    rows = []
    for start in (7, 3, 5, 2):
        rows.append([mp.mpf((start + 5 * i) % 9 + 2) for i in range(size)])
    return rows


def _rows_over_steps(names: list[str]) -> list[list[Any]]:
    """Return rows for floors and ceilings, which are all 0 or 1 near 0: whole numbers from 2 to 102, as n stands for
    them, and for other letters fractions beside these."""
    rows = []
    for start in (29, 53, 71, 96, 7, 84):
        rows.append([mp.mpf((start + 17 * i) % 101 + 2) for i in range(len(names))])
    if _LETTERS_OF_WHOLE.issuperset(names):
        return rows
    larger = [[value * 97 for value in row] for row in _rows(len(names), with_negative=True)]
    return rows + larger


def _rows(size: int, *, with_negative: bool) -> list[list[Any]]:
    """Return rows of positive fractions, and two with negative ones."""
    rows = []
    for turn, scale in ((0, 71), (3, 17), (5, 31)):
        rows.append([mp.mpf(_PRIMES[(i + turn) % 8]) / scale for i in range(size)])
    if with_negative:
        negative = [-value for value in rows[1]]
        alternating = [value * (-1) ** i for i, value in enumerate(rows[2])]
        rows += [negative, alternating]
    return rows


_LETTERS_OF_WHOLE = frozenset("ijklmnN")
_OF_STEPS = (sympy.floor, sympy.ceiling)
_OF_WHOLE = (sympy.factorial, sympy.binomial, sympy.factorial2, sympy.gamma, sympy.Mod)


def _has_root(formula: Basic) -> bool:
    """Tell whether letters are under a root, in a logarithm or in an exponent."""
    return any(
        power.free_symbols and not power.exp.is_Integer for power in formula.atoms(sympy.Pow)
    ) or any(logarithm.free_symbols for logarithm in formula.atoms(sympy.log))


def _agree(x: Any, y: Any, tolerance: Any = _CLOSE) -> bool:
    return bool(abs(x - y) <= tolerance * max(abs(x), abs(y)))


def same_value(a: Expr, b: Expr) -> bool:
    """Tell whether two formulas have one value at every point where both have one, and at two."""
    if is_too_large(a) or is_too_large(b):
        return False
    tolerance = _CLOSE_FLOAT if a.has(sympy.Float) or b.has(sympy.Float) else _CLOSE
    is_whole = a.has(*_OF_WHOLE) or b.has(*_OF_WHOLE)
    points = _points(a, b)
    agreed = 0
    for point in points:
        x, y = _value(a, point), _value(b, point)
        if x is None and y is None:
            continue
        if x is None or y is None:
            if is_whole:
                continue
            return False
        if not _agree(x, y, tolerance):
            return False
        agreed += 1
    if agreed == 0:
        return _shape(a) == _shape(b)
    without_letters = not points[0]
    return agreed > 1 or without_letters


def _shape(node: object) -> object:
    """Describe a formula without values: what it is made of, the terms of sums and products in any order."""
    if not isinstance(node, Basic) or not node.args:
        return str(node)
    parts = [_shape(argument) for argument in node.args]
    return (
        type(node).__name__,
        sorted(parts, key=str) if node.is_Add or node.is_Mul else parts,
    )


def same(gold: object, said: object) -> bool:
    """Tell whether a reading of an answer is a reading of the reference."""
    if isinstance(gold, str):
        return isinstance(said, str) and gold.strip() == said.strip() != ""
    if isinstance(said, str):
        return False
    gold, said = _sides(gold, said)
    if gold in (sympy.nan, sympy.zoo):
        return False
    if gold == said:
        return True
    if isinstance(gold, (Relational, And)) or isinstance(said, (Relational, And)):
        return _same_relation(gold, said)
    if any(isinstance(node, (sympy.Set, sympy.Tuple, *_MATRICES)) for node in (gold, said)):
        return _same_parts(gold, said)
    if isinstance(gold, sympy.Symbol) or isinstance(said, sympy.Symbol):
        return _letters(gold) == _letters(said) != ""
    if not isinstance(gold, Expr) or not isinstance(said, Expr):
        return False
    return same_value(gold, said) or same_value(_without_percent(gold), _without_percent(said))


def _without_percent(node: Expr) -> Expr:
    """x of the x% that the parser makes of it."""
    is_percent = (
        node.is_Mul
        and len(node.args) == 2
        and node.args[1] == sympy.UnevaluatedExpr(_HUNDREDTH)
    )
    return node.args[0] if is_percent else node


def _letters(node: object) -> str:
    """ "abc" of the symbol abc and of the product of a, b and c; "" of other formulas."""
    if isinstance(node, sympy.Symbol):
        return node.name if len(node.name) == 1 else node.name.lower()
    if node == sympy.E:
        return "e"
    if isinstance(node, sympy.Mul) and all(
        arg == sympy.E or isinstance(arg, sympy.Symbol) for arg in node.args
    ):
        return "".join("e" if arg == sympy.E else arg.name for arg in node.args).lower()
    return ""


def _links(node: object) -> list:
    """Relations of a chain such as a = b = c, in the order in which they are written."""
    if not isinstance(node, And):
        return [node]
    return [
        link for part in getattr(node, "_unsorted_args", node.args) for link in _links(part)
    ]


def _sides(gold: object, said: object) -> tuple[Any, Any]:
    """Return the values of both, where one says the name of a value and the other does not."""
    chains = _links(gold), _links(said)
    equations = [
        bool(chain) and all(isinstance(link, sympy.Eq) for link in chain) for chain in chains
    ]
    named = [
        is_one and is_expr_of_only_symbols(chain[0].lhs)
        for chain, is_one in zip(chains, equations, strict=True)
    ]
    if equations[1] and not equations[0]:
        return gold, chains[1][-1].rhs
    if named[0] and not equations[1]:
        return chains[0][-1].rhs, said
    gold, said = (
        sympy.Eq(chain[0].lhs, chain[-1].rhs, evaluate=False)
        if name and len(chain) > 1
        else node
        for node, chain, name in zip((gold, said), chains, named, strict=True)
    )
    return gold, said


_TURNED = {sympy.Ge: sympy.Le, sympy.Le: sympy.Ge, sympy.Gt: sympy.Lt, sympy.Lt: sympy.Gt}


def _same_relation(gold: object, said: object) -> bool:
    if isinstance(gold, And) and isinstance(said, And):
        links = _links(gold), _links(said)
        return len(links[0]) == len(links[1]) and all(map(_same_relation, *links))
    if not isinstance(gold, Relational) or not isinstance(said, Relational):
        return False
    try:
        a, b = gold.lhs - gold.rhs, said.lhs - said.rhs
    except TypeError:
        return False
    ratios = _ratios(a, b)
    if (
        len(ratios) < 2
        or not all(_agree(ratio, ratios[0]) for ratio in ratios)
        or ratios[0] == 0
    ):
        return False
    if type(gold) is type(said) and type(gold) not in _TURNED:
        return True
    is_real = abs(mp.im(ratios[0])) < _CLOSE * abs(ratios[0])
    wanted = type(gold) if mp.re(ratios[0]) > 0 else _TURNED.get(type(gold))
    return is_real and type(said) is wanted


def _ratios(a: Expr, b: Expr) -> list:
    """b / a at the points where both have values; [] if one is zero where the other is not."""
    found = []
    for point in _points(a, b):
        x, y = _value(a, point), _value(b, point)
        if x is None or y is None:
            continue
        if x == 0 or y == 0:
            return []
        found.append(y / x)
    return found


def _same_parts(gold: object, said: object) -> bool:
    """Compare matrices, and lists that the parser reads; parts.py has compared those that are written with commas."""
    gold, said = (
        node.doit() if isinstance(node, MatrixExpr) else node for node in (gold, said)
    )
    if isinstance(gold, MatrixBase) and isinstance(said, MatrixBase):
        return gold.shape == said.shape and all(map(same, gold.flat(), said.flat()))
    listed = (sympy.FiniteSet, sympy.Tuple)
    others = [node for node in (gold, said) if not isinstance(node, listed)]
    if len(others) == 2 or any(isinstance(node, sympy.Set) for node in others):
        return False  # {\\emptyset} is not \\emptyset
    a, b = (node.args if isinstance(node, listed) else (node,) for node in (gold, said))
    if isinstance(gold, sympy.Tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return match(a, b, same)
