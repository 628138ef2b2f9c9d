r"""Sets of reals in any notation, as intervals: "4>c>1", "(1,4)", "\mathbb{R}\setminus\{4\}"."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

from math_verify.parser import parse_latex_cached

from r3_openrlhf.rewards.answers.comparison import number
from r3_openrlhf.rewards.answers.extraction import nesting_depth
from r3_openrlhf.rewards.answers.parts import top_level
from r3_openrlhf.rewards.answers.values import mp, real_value

MAX_PIECES = 12
MAX_END_CHARS, MAX_END_DEPTH = 80, 4
Interval = tuple[float | Fraction, bool, float | Fraction, bool]  # low, is it in, high, is it in

_IRRATIONAL = re.compile(r"\\(?:sqrt|pi|e|log|ln)(?![a-zA-Z])|(?<![a-zA-Z\\])e(?![a-zA-Z])")
_LINE: Interval = (-math.inf, False, math.inf, False)
_NAMED_SETS: dict[str, Interval] = {
    "\\mathbb{R}": _LINE,
    "\\mathbb{R}^+": (Fraction(0), False, math.inf, False),
    "\\mathbb{R}^-": (-math.inf, False, Fraction(0), False),
}
_IS_SET = re.compile(r"[<>]|\\(?:[lg]eq?(?:slant)?|neq?|cup|cap|infty|setminus|mathbb\{R\})(?![a-zA-Z])")
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\\(?:lor|vee|cup)(?![a-zA-Z])|\bor\b")
_AND = re.compile(r"\\text\s*\{\s*and\s*\}|\\(?:land|wedge|cap)(?![a-zA-Z])|\band\b")
_RELATION = re.compile(r"(\\(?:[lg]eq?(?:slant)?|neq?)(?![a-zA-Z])|<=|>=|[<>=])")
_WITHOUT = re.compile(r"(.+?)(?:\\setminus(?![a-zA-Z])\s*(.+)|-\s*(\{[^{}]+\}))")
_NAME = re.compile(r"[a-zA-Z](?:_\{?\w\}?)?|[a-z]\s*\([a-z]\)")
_SIZE = re.compile(r"\|\s*([a-zA-Z])\s*\||\\lvert\s*([a-zA-Z])\s*\\rvert")
_DESCRIBED = re.compile(
    r"\s*\\?\{\s*[a-z]\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\\mid|\\vert|\||:)((?:[^{}]|\\text\s*\{[^{}]*\})*?)\\?\}\s*"
)
_BELONGS = re.compile(r"^\s*[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")


class _NoSet(Exception):
    """The text is no set of real numbers, or its ends are no plain numbers."""


def same_set(answer: str, reference: str) -> bool | None:
    """Tell whether both are one set; None: one is empty or unreadable, or neither must be a set."""
    answer, reference = (_BELONGS.sub("", text, count=1) if text[:1] != "(" else text for text in (answer, reference))
    if not (_IS_SET.search(answer) and (_IS_SET.search(reference) or reference[:1] in "([\\")) and not (
        _IS_SET.search(reference) and answer[:1] in "([\\"
    ):
        return None
    names: list[set[str]] = [set(), set()]
    try:
        sets = [_union(text, found) for text, found in zip((answer, reference), names, strict=True)]
    except _NoSet:
        return None
    if all(names) and names[0] != names[1] or any(len(found) > 1 for found in names):
        return None
    if sets[0] != sets[1] and (_IRRATIONAL.search(answer) or _IRRATIONAL.search(reference)):
        return None  # an end may be rounded
    return sets[0] == sets[1] if all(sets) else None


def condition(text: str) -> str:
    r"""x<2 of "\{x \mid x<2\}"; other texts as they are."""
    found = _DESCRIBED.fullmatch(text)
    return found[1].strip() if found and _RELATION.search(found[1]) else text


def _union(text: str, names: set[str]) -> list[Interval]:
    text = condition(text).replace("\\left", "").replace("\\right", "").replace("\\{", "{").replace("\\}", "}")
    text = text.replace("^{+}", "^+").replace("^{-}", "^-")
    parts = _OR.split(text)
    if len(parts) > MAX_PIECES:
        raise _NoSet
    return _joined([interval for part in parts for interval in _intersection(part, names)])


def _intersection(text: str, names: set[str]) -> list[Interval]:
    found = [_LINE]
    parts = [part for side in _AND.split(text) for part in top_level(side) or [""]]
    for part in parts[:MAX_PIECES]:
        found = [both for a in found for b in _piece(part, names) if (both := _common(a, b))]
    return found


def _piece(text: str, names: set[str]) -> list[Interval]:
    text = _BELONGS.sub("", text).strip(" ~$")
    if match := _WITHOUT.fullmatch(text):
        kept = _piece(match[1], names)
        for left_out in _piece(match[2] or match[3], names):
            kept = [both for a in kept for b in _outside(left_out) if (both := _common(a, b))]
        return kept
    if text in _NAMED_SETS:
        return [_NAMED_SETS[text]]
    if text[:1] == "{" and text[-1:] == "}":
        return [(value, True, value, True) for value in map(_end, text[1:-1].split(","))]
    ends = top_level(text[1:-1]) if text[:1] in ("(", "[") and text[-1:] in (")", "]") else None
    if ends and len(ends) == 2:
        low, high = map(_end, ends)
        return [(low, text[0] == "[", high, text[-1] == "]")]
    return _of_relations([side.strip() for side in _RELATION.split(text)], names)


def _of_relations(sides: list[str], names: set[str]) -> list[Interval]:
    """ "1 < x", "1 < x \\le 4", "x = 2" or "x \\ne 2": sides, and relations between them."""
    where = [i for i, side in enumerate(sides) if i % 2 == 0 and (_NAME.fullmatch(side) or _SIZE.fullmatch(side))]
    if len(sides) not in (3, 5) or len(where) != 1:
        raise _NoSet
    if size := _SIZE.fullmatch(sides[where[0]]):
        of_size = _of_relations([size[1] if i == where[0] else side for i, side in enumerate(sides)], names)
        up = [both for a in of_size if (both := _common(a, (Fraction(0), True, math.inf, False)))]
        return _joined(up + [(-high, high_in, -low, low_in) for low, low_in, high, high_in in up])
    names.add(sides[where[0]])
    found = [_LINE]
    for i in (where[0] - 1, where[0] + 1):
        if not 0 < i < len(sides):
            continue
        is_after = i > where[0]
        value, relation = _end(sides[i + 1 if is_after else i - 1]), sides[i]
        if relation == "=":
            allowed = [(value, True, value, True)]
        elif relation.startswith("\\n"):
            allowed = _outside((value, True, value, True))
        else:
            closed = relation[-1] == "=" or relation.startswith(("\\le", "\\ge"))
            below = (relation[0] == "<" or relation.startswith("\\l")) == is_after
            allowed = [(-math.inf, False, value, closed) if below else (value, closed, math.inf, False)]
        found = [both for a in found for b in allowed if (both := _common(a, b))]
    return found


def _end(text: str) -> float | Fraction:
    text = text.strip()
    if text.lstrip("+-") == "\\infty":
        return -math.inf if text[0] == "-" else math.inf
    found = number(text)
    if found is not None and not found.unit and not found.percent:
        return found.value
    value = value_of(text) if found is None else None
    if value is None:
        raise _NoSet
    return value


@lru_cache(maxsize=4096)
def value_of(text: str) -> Fraction | None:
    r"""The value of \sqrt{3} and the like, to 30 digits; None: it has letters, or is not real."""
    if len(text) > MAX_END_CHARS or nesting_depth(text) > MAX_END_DEPTH or not _IRRATIONAL.search(text):
        return None
    try:
        value = real_value(parse_latex_cached(text))
    except Exception:  # the parser raises plain Exception for text that is no mathematics
        return None
    return None if value is None else Fraction(mp.nstr(value, 30))


def _outside(interval: Interval) -> list[Interval]:
    low, low_in, high, high_in = interval
    return [(-math.inf, False, low, not low_in), (high, not high_in, math.inf, False)]


def _common(a: Interval, b: Interval) -> Interval | None:
    low, low_in = max((a[0], not a[1]), (b[0], not b[1]))
    high, high_in = min((a[2], a[3]), (b[2], b[3]))
    low_in = not low_in
    return (low, low_in, high, high_in) if low < high or low == high and low_in and high_in else None


def _joined(intervals: list[Interval]) -> list[Interval]:
    """Sorted, and those that touch as one."""
    found: list[Interval] = []
    for low, low_in, high, high_in in sorted(intervals, key=lambda interval: (interval[0], not interval[1])):
        if found and (low < found[-1][2] or low == found[-1][2] and (low_in or found[-1][3])):
            end, end_in = max((found[-1][2], found[-1][3]), (high, high_in))
            found[-1] = (*found[-1][:2], end, end_in)
        else:
            found.append((low, low_in, high, high_in))
    return found
