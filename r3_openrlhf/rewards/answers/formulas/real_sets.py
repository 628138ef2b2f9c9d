r"""Sets of reals in any notation, as intervals: "4>c>1", "(1,4)", "\mathbb{R}\setminus\{4\}"."""

import re
from fractions import Fraction
from functools import lru_cache

from math_verify.parser import parse_latex_cached
from sympy import (
    Abs,
    Complement,
    Expr,
    FiniteSet,
    Intersection,
    Interval,
    Rational,
    Rel,
    S,
    Set,
    Symbol,
    Union,
    oo,
)

from r3_openrlhf.rewards.answers.amounts.comparison import number
from r3_openrlhf.rewards.answers.formulas.values import mp, real_value
from r3_openrlhf.rewards.answers.text.parts import (
    INTERSECTION,
    UNION,
    nesting_depth,
    top_level,
    without_sizes,
)

MAX_PIECES = 12
MAX_END_CHARS, MAX_END_DEPTH = 80, 4

_IRRATIONAL = re.compile(r"\\(?:sqrt|pi|e|log|ln)(?![a-zA-Z])|(?<![a-zA-Z\\])e(?![a-zA-Z])")
_NAMED_SETS = {
    "\\mathbb{R}": S.Reals,
    "\\mathbb{R}^+": Interval.open(0, oo),
    "\\mathbb{R}^-": Interval.open(-oo, 0),
}
_IS_SET = re.compile(
    r"[<>]|\\(?:[lg]eq?(?:slant)?|neq?|cup|cap|infty|setminus|mathbb\{R\})(?![a-zA-Z])"
)
_RELATION = re.compile(r"(\\(?:[lg]eq?(?:slant)?|neq?)(?![a-zA-Z])|<=|>=|[<>=])")
_WITHOUT = re.compile(r"(.+?)(?:\\setminus(?![a-zA-Z])\s*(.+)|-\s*(\{[^{}]+\}))")
_IN_SYMPY = {
    "=": "==",
    "\\le": "<=",
    "\\leq": "<=",
    "\\ge": ">=",
    "\\geq": ">=",
    "\\ne": "!=",
    "\\neq": "!=",
}
_NAME = re.compile(r"[a-zA-Z](?:_\{?\w\}?)?|[a-z]\s*\([a-z]\)")
_SIZE = re.compile(r"(?:\||\\lvert)\s*([a-zA-Z])\s*([-+]\s*[\d./]+)?\s*(?:\||\\rvert)")
_DESCRIBED = re.compile(
    r"\s*\\?\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\\mid|\\vert|\||:)((?:[^{}]|\\text\s*\{[^{}]*\})*?)\\?\}\s*"
)
_EDGES = re.compile(r"^(?:[\s~$]|\\[ ,;])+|(?:[\s~$]|\\[ ,;])+$")
_BELONGS = re.compile(r"^\s*[a-zA-Z](?:\([a-z]\))?\s*\\in(?![a-zA-Z])\s*")


_X = Symbol("x", real=True)


class _NoSet(Exception):
    """The text is no set of real numbers, or its ends are no plain numbers."""


def same_set(answer: str, reference: str) -> bool | None:
    """Tell whether both are one set; None: one is empty or unreadable, or neither must be a set."""
    answer, reference = _without_element(answer), _without_element(reference)
    if not (_must_be_set(answer, reference) or _must_be_set(reference, answer)):
        return None
    names_answer: set[str] = set()
    names_reference: set[str] = set()
    try:
        set_answer = _union(answer, names_answer)
        set_reference = _union(reference, names_reference)
    except _NoSet:
        return None
    if len(names_answer) > 1 or len(names_reference) > 1:
        return None
    if names_answer and names_reference and names_answer != names_reference:
        return None
    if S.EmptySet in (set_answer, set_reference):
        return None
    if set_answer == set_reference:
        return True
    if _IRRATIONAL.search(answer) or _IRRATIONAL.search(reference):
        return None  # an end may be rounded
    return False


def _without_element(text: str) -> str:
    r"""Remove "x \in" before a set."""
    return text if text.startswith("(") else _BELONGS.sub("", text, count=1)


def _must_be_set(text: str, other: str) -> bool:
    """Tell whether a text is written as a set, and the other one so or in brackets."""
    if not _IS_SET.search(text):
        return False
    return _IS_SET.search(other) is not None or other[:1] in "([\\"


def condition(text: str) -> str:
    r"""x<2 of "\{x \mid x<2\}"; other texts as they are."""
    found = _DESCRIBED.fullmatch(text)
    return found[1].strip() if found and _RELATION.search(found[1]) else text


def _union(text: str, names: set[str]) -> Set:
    text = condition(without_sizes(text)).replace("\\{", "{").replace("\\}", "}")
    text = text.replace("^{+}", "^+").replace("^{-}", "^-")
    parts = UNION.split(text)
    if len(parts) > MAX_PIECES:
        raise _NoSet
    return Union(*[_intersection(part, names) for part in parts])


def _intersection(text: str, names: set[str]) -> Set:
    parts = [part for side in INTERSECTION.split(text) for part in top_level(side) or [""]]
    return Intersection(*[_piece(part, names) for part in parts[:MAX_PIECES]])


def _piece(text: str, names: set[str]) -> Set:
    text = _BELONGS.sub("", _EDGES.sub("", text))
    if match := _WITHOUT.fullmatch(text):
        return Complement(_piece(match[1], names), _piece(match[2] or match[3], names))
    if text in _NAMED_SETS:
        return _NAMED_SETS[text]
    if text[:1] == "{" and text[-1:] == "}":
        return FiniteSet(*map(_end, text[1:-1].split(",")))
    ends = top_level(text[1:-1]) if text[:1] in ("(", "[") and text[-1:] in (")", "]") else None
    if ends and len(ends) == 2:
        return Interval(*map(_end, ends), text[0] == "(", text[-1] == ")")
    return _of_relations([side.strip() for side in _RELATION.split(text)], names)


def _of_relations(sides: list[str], names: set[str]) -> Set:
    """ "1 < x", "1 < x \\le 4", "|x-1| < 2" or "x \\ne 2": sides, and relations between them."""
    where = [
        i
        for i, side in enumerate(sides)
        if i % 2 == 0 and (_NAME.fullmatch(side) or _SIZE.fullmatch(side))
    ]
    if len(sides) not in (3, 5) or len(where) != 1:
        raise _NoSet
    name, unknown = sides[where[0]], _X
    if size := _SIZE.fullmatch(name):
        name, unknown = size[1], Abs(_X + _end((size[2] or "0").replace(" ", "")))
    names.add(name)
    ends = [
        unknown if i == where[0] else _end(side) for i, side in enumerate(sides) if i % 2 == 0
    ]
    relations = [relation.removesuffix("slant") for relation in sides[1::2]]
    links = zip(ends, relations, ends[1:], strict=False)
    return Intersection(
        S.Reals, *[Rel(a, b, _IN_SYMPY.get(sign, sign)).as_set() for a, sign, b in links]
    )


@lru_cache(maxsize=4096)
def _end(text: str) -> Expr:
    r"""Return the value of an end; of \sqrt{3} and the like to 30 digits. _NoSet: it has letters, or is not real."""
    text = text.strip()
    if text.lstrip("+-") == "\\infty":
        return -oo if text[0] == "-" else oo
    stated = number(text)
    if stated is not None and not stated.unit and not stated.percent:
        return Rational(stated.value)
    if (
        stated
        or len(text) > MAX_END_CHARS
        or nesting_depth(text) > MAX_END_DEPTH
        or not _IRRATIONAL.search(text)
    ):
        raise _NoSet
    try:
        value = real_value(parse_latex_cached(text))
    except (
        Exception
    ) as error:  # the parser raises plain Exception for text that is no mathematics
        raise _NoSet from error
    if value is None:
        raise _NoSet
    return Rational(Fraction(mp.nstr(value, 30)))
