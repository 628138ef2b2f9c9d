"""Cheap comparisons of two answers: text, exact numbers, elements. Linear time, no library."""

import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from r3_openrlhf.rewards.answers.amounts.units import (
    A_RATE,
    conversion,
    count_of,
    in_kelvin,
    split_unit,
    unit_of,
)
from r3_openrlhf.rewards.answers.text.arithmetic import (
    exact_value,
    rough_value,
    stated_precision,
)
from r3_openrlhf.rewards.answers.text.parts import AND_OR, INTERSECTION, UNION
from r3_openrlhf.rewards.answers.text.plain import TEXT_COMMAND

MIN_DIGITS = 4  # a rounded decimal needs so many significant digits to stand for an exact value
FLOAT_DIGITS = 12  # so many are the result of a computation with floating-point numbers,
FLOAT_ERROR = Fraction(1, 10**11)  # which is off by less than this, relatively
MIN_DIGITS_OF_SMALL = 3  # of a number such as 0.0909, with as many decimals as MIN_DIGITS
MOST_DIFFERENCE = 0.02  # of two numbers that may still be one: far more than any rounding

_HAS_FREE_LETTER = re.compile(r"(?:^|[({+-])\s*[a-df-hj-zA-Z]\s*[-+]")
_RELATES = re.compile(r"[=<>,;:|]|\\(?!frac|sqrt|cdot|times|left|right)[a-zA-Z]+")
_PLAIN_INTEGER = re.compile(r"[1-9][0-9]{0,14}")
_FRAC_NAMES = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_FRAC_DIGITS = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)")
_COMMANDS = re.compile(
    r"\\(?:left|right|bigl?|bigr|displaystyle|quad|qquad)(?![a-zA-Z])|\\[,!;: ()\[\]]|~"
)
_THOUSANDS = re.compile(r"(?:,\\!|\{,\})\s*")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|°")
_CURRENCY = re.compile(r"\\\$|[€£¥₹]")
_SPACE = re.compile(r"(?<![0-9])\s+|\s+(?![0-9])")  # between digits: two numbers
MAX_AMOUNT_CHARS = 80
_AMOUNT = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:\\[,;: ]|~)?\s*(?:\\(?:text|mathrm|mbox)\s*\{\s*)?([a-zA-Z]+|[\u4e00-\u9fff]+)"
)
_SEVERAL = re.compile(
    rf"\s*(?:\\text\s*\{{\s*)?(?:{_AMOUNT.pattern}(?:\s|\\[,;: ]|~|\}}|,|\\text\s*\{{\s*and\s*\}}|\band\b)*){{2,3}}"
)
_SCALE_WORD = re.compile(
    r"\s*(?:\\text\s*\{\s*)?(?:(hundred|thousand|million|billion|trillion)|dozen(?= [a-z]))(?:\s+([a-z ]+))?\s*\}?$"
)
_SCALES = {
    "hundred": "*10^2",
    "thousand": "*10^3",
    "million": "*10^6",
    "billion": "*10^9",
    "trillion": "*10^12",
}
_PERCENT = re.compile(
    r"\s*(?:\\?%|(?:\\text\s*\{\s*)?\b(?:per\s?cent|percentage|pct)\b\s*\}?)$"
)
_BASE = re.compile(r"(\d+)\s*_\s*\{?\s*(\d+)\s*\}?")
_INEQUALITY = re.compile(r"[<>]|\\(?:leq?|geq?|lt|gt)(?:slant)?(?![a-zA-Z])")
_IS_SAID = re.compile(r"(?<![a-zA-Z\\])([a-zA-Z])\s*=")  # x of "x=1 and y=2"
_PRIME = re.compile(r"([a-zA-Z])\s*('+|\^\s*\{?\s*(?:\\prime\s*)+\}?)")
_TRANSPOSED = re.compile(r"([A-Z])\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?(?![a-zA-Z])")
_NEGATION = re.compile(r"\\neg(?![a-zA-Z])")
_PERMUTATION = re.compile(
    r"(?:\(\s*\d+(?:\s+\d+)+\s*\)\s*)+|(?:\(\s*[a-z](?:\s+[a-z]){1,25}\s*\)\s*)+"
)
_FEET = re.compile(r"\d\s*('+|\^\s*\{?\s*(?:\\prime\s*)+\}?)")
# in one spelling \\sim is \\neg
_ALIKE = re.compile(
    r"(?:\\triangle)?([A-Z]{3,8})(\\(?:neg|sim|cong|simeq|equiv))(?:\\triangle)?([A-Z]{3,8})"
)
_DECIMAL_COMMA = re.compile(r"-?\d+,\d{1,2}|-?\d+,\d{4,20}|-?0,\d{1,20}")
_NAMED = re.compile(
    r"\s*(m?\s*\\(?:angle|measuredangle|widehat|overrightarrow|vec)\s*\{?\s*[A-Z]{2,4}\s*\}?)\s*="
)
_POINTS = re.compile(
    r"m?(\\(?:angle|measuredangle|widehat|overrightarrow|vec|overset\{\\frown\}))?\{?([A-Z]{2,4})\}?"
)
_ARROWS = ("\\overrightarrow", "\\vec")
_GREEK = r"\\(?!(?:frac|sqrt|text|left|begin|angle|vec)(?![a-z]))[a-zA-Z]+"
_ASSIGNMENT = re.compile(
    rf"^\s*(?:\\Delta\s*)?(?:[a-zA-Z]|{_GREEK})\s*(?:_(?:\w|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}))?\s*=(?!.*=)"
)
# 1 234,50 and 1.234,50; 1'234.50
_EUROPEAN = re.compile(
    r"\s*([-+]?)([1-9]\d{0,2}(?:(?: \d{3})+|(?:\.\d{3})+)),(\d{1,2}|\d{4,9})(?![\d.,])"
    r"|\s*([-+]?)(\d{1,3}(?:'\d{3})+)(?:\.(\d{1,9}))?(?![\d.,'])"
)
_MIXED = re.compile(r"\s*([-+]?)(\d{1,9})\s*\\frac\{(\d{1,9})\}\{([1-9]\d{0,8})\}\s*")
_IN_BRACKETS = re.compile(r"\s*\(\s*\d{1,3}(?:,\d{3})+\s*\)\s*")


@lru_cache(maxsize=4096)
def _tidy(answer: str) -> str:
    """Without delimiters, size commands and full stop; "32, 349" keeps its space."""
    text = answer.strip().strip("*").rstrip(".").strip()
    text = _CURRENCY.sub("", text).replace("$", "").replace("−", "-")
    text = _THOUSANDS.sub(",", text)
    text = _FRAC_DIGITS.sub(r"\\frac{\1}{\2}", _FRAC_NAMES.sub(r"\\frac", text))
    return _DEGREES.sub("", _COMMANDS.sub(" ", text)).strip().rstrip(".")


@lru_cache(maxsize=4096)
def normalise(answer: str) -> str:
    """Return the same answer in one spelling, for comparison as text."""
    text = TEXT_COMMAND.sub(r"\1", AND_OR.sub(",", _tidy(answer)))
    text = (
        text.replace("\\{", "{")
        .replace("\\}", "}")
        .replace("\\infin", "\\infty")
        .replace("+\\infty", "\\infty")
    )
    return _SPACE.sub("", text).rstrip(".")


@dataclass(frozen=True, slots=True, order=True)
class Number:
    """Exact value of a purely numeric answer, the text that states it, and what followed."""

    value: Fraction
    text: str
    percent: bool = False
    unit: str | None = field(default=None, compare=False)


@lru_cache(maxsize=4096)
def number(answer: str) -> Number | None:
    """Return the number that an answer is; None when it is anything else."""
    if (amount := _several_units(answer)) is not None:
        return amount
    text = _tidy(answer)
    stated = unit_of(answer)
    if stated and ("/" in stated and _CURRENCY.search(answer) or "/\\text" in text):
        text = A_RATE.sub("", text)  # "5" of "5/\\text{hour}"
    text, percent = _PERCENT.subn("", text)
    if scaled := _SCALE_WORD.search(text):
        rest, unit = split_unit(rf"0\text{{{scaled[2] or ''}}}")
        text = text[: scaled.start()] + _SCALES.get(scaled[1], "*12") if rest == "0" else text
    else:
        text, unit = split_unit(text)
    if "\\pi" in text and (stated or unit) == "radian":  # as degrees, which are exact
        text, stated = text.replace("\\pi", "(180)"), "degree"
    text = _one_value(text)
    value = exact_value(text)
    return None if value is None else Number(value, text, bool(percent), stated or unit)


def _one_value(text: str) -> str:
    """Write a number without the ways of its language: 1234.50 of "1 234,50" and "1.234,50", (2+(3)/(4)) of a mixed one.

    A comma in brackets separates: "(1,234)" is no number."""
    if _IN_BRACKETS.fullmatch(text):
        return ""
    if (mixed := _MIXED.fullmatch(text)) and int(mixed[3]) < int(mixed[4]):
        return f"{mixed[1]}({mixed[2]}+({mixed[3]})/({mixed[4]}))"
    if grouped := _EUROPEAN.fullmatch(text):
        sign, whole, decimals = (grouped[i] or grouped[i + 3] or "" for i in (1, 2, 3))
        return f"{sign}{re.sub(r'[^0-9]', '', whole)}.{decimals or 0}"
    return text


def _several_units(answer: str) -> Number | None:
    """ "2 hours and 30 minutes" as 150 minutes; None: not two or three units of one kind."""
    if len(answer) > MAX_AMOUNT_CHARS or not _SEVERAL.fullmatch(answer):
        return None
    parts = [
        (exact_value(found[1]), unit_of(f"{found[1]} {found[2]}"))
        for found in _AMOUNT.finditer(answer)
    ]
    smallest = parts[-1][1]
    total = Fraction(0)
    for place, (value, unit) in enumerate(parts, 1):
        factor = conversion(unit, smallest) if unit and smallest else None
        if value is None or factor is None or (factor <= 1 and place < len(parts)):
            return None  # the units become smaller
        total += value * factor
    return Number(total, "", unit=smallest)


def numbers_agree(a: Number, b: Number) -> bool:
    """Equal, or one is a decimal to which the other rounds, of enough digits to be no accident.

    The evaluator that the paper uses (Qwen2.5-Math) takes any relative difference up to 1e-4, so
    also 10001 for 10000; here two exact notations must agree exactly. As the field does, 28% agrees
    with 28 and with 0.28."""
    if a.unit and b.unit and a.unit != b.unit:
        return _units_agree(a, b)
    if _counts(a, b) or _counts(b, a):
        return True
    if a.value == b.value:
        return True
    if a.percent != b.percent and 100 in (_ratio(a, b), _ratio(b, a)):
        return True
    return _rounds_to(a, b) or _rounds_to(b, a)


def _units_agree(a: Number, b: Number) -> bool:
    """Tell whether two amounts in different units are equal."""
    kelvin_a, kelvin_b = in_kelvin(a.value, a.unit), in_kelvin(b.value, b.unit)
    if kelvin_a is not None and kelvin_b is not None:
        return kelvin_a == kelvin_b
    assert a.unit is not None and b.unit is not None
    factor = conversion(a.unit, b.unit)
    return factor is not None and a.value * factor == b.value


def _counts(amount: Number, count: Number) -> bool:
    """Tell whether an amount of dozens or the like is this count: 5 dozen are 60."""
    if count.unit is not None:
        return False
    each = count_of(amount.unit)
    if each is None:
        return False
    return amount.value * each == count.value


def _rounds_to(exact: Number, decimal: Number) -> bool:
    """Tell whether a value rounds to a decimal of enough digits, or a computation in floating-point
    numbers gives it."""
    precision = stated_precision(decimal.text)
    if precision is None or not is_rounded(precision):
        return False
    digits, half_unit = precision
    value = exact.value
    if decimal.percent:
        value *= 100
    if exact.percent:
        value /= 100
    error = abs(value - decimal.value)
    if digits >= FLOAT_DIGITS:
        if not exact.value and error < FLOAT_ERROR:
            return True  # 6.1e-17 is what a computation makes of 0
        if error <= FLOAT_ERROR * abs(exact.value):
            return True
    return error <= half_unit


def is_rounded(precision: tuple[int, Fraction]) -> bool:
    """Tell whether a decimal has enough digits to stand for the exact value that rounds to it."""
    digits, half_unit = precision
    return (
        digits >= MIN_DIGITS
        or digits >= MIN_DIGITS_OF_SMALL
        and half_unit <= Fraction(1, 2 * 10**MIN_DIGITS)
    )


def _ratio(a: Number, b: Number) -> Fraction | None:
    """Return a / b where a carries the percent sign; else None."""
    return a.value / b.value if a.percent and b.value else None


def compare_cheaply(answer: str, reference: str) -> bool | None:
    """Compare two answers. True: equal. False: certainly different. None: not decided here.

    The answer may use a decimal comma where the reference has a point ("1,22" for 1.22).
    """
    if _PLAIN_INTEGER.fullmatch(answer) and _PLAIN_INTEGER.fullmatch(reference):
        return answer == reference
    if bool(_ASSIGNMENT.match(answer)) != bool(_ASSIGNMENT.match(reference)):  # "x = 5" for 5
        answer, reference = _ASSIGNMENT.sub("", answer), _ASSIGNMENT.sub("", reference)
    if (decided := _compare_meanings(answer, reference)) is not None:
        return decided
    answer, reference = _tidy(answer), _tidy(reference)
    cycles = _cycles(answer), _cycles(reference)
    if all(cycles):
        return cycles[0] == cycles[1]
    left, right = normalise(answer), normalise(reference)
    if left and left == right:
        return True
    a, b = number(answer), number(reference)
    if a is not None and b is not None:
        return numbers_agree(a, b)
    if b is not None and b.value.denominator > 1 and _DECIMAL_COMMA.fullmatch(answer):
        # "0,5"
        return numbers_agree(
            Number(Fraction(left.replace(",", ".")), left.replace(",", ".")), b
        )
    if _is_decimal_comma(answer, right) or _is_decimal_comma(reference, left, min_decimals=2):
        return True
    if _clearly_differ(answer, reference):
        return False
    return _compare_names(left, right)


def _clearly_differ(answer: str, reference: str) -> bool:
    """Tell whether a number with roots or pi stands against a formula with letters, or against another one
    that no rounding or percent sign can make equal."""
    b = rough_value(reference)
    if b is None:
        return False
    if _HAS_FREE_LETTER.search(answer) and _RELATES.search(answer) is None:
        return True  # (a+5)(b+2) for 12
    a = rough_value(answer)
    if a is None:
        return False
    return not any(
        math.isclose(a * factor, b, rel_tol=MOST_DIFFERENCE, abs_tol=MOST_DIFFERENCE)
        for factor in (1, 100, 0.01)
    )


def _compare_meanings(answer: str, reference: str) -> bool | None:
    """Compare by words, marks and units, before the rest is looked at."""
    if connectives_differ(answer, reference) or _marks_differ(answer, reference):
        return False
    units = unit_of(answer), unit_of(reference)
    if all(units) and units[0] != units[1]:
        a, b = number(answer), number(reference)
        return a is not None and b is not None and numbers_agree(a, b)
    if any(units) and not all(units):
        a, b = number(answer), number(reference)
        if a is not None and b is not None and a.percent != b.percent:
            return False  # 12% is neither $12 nor 12 degrees
    return None


def connectives_differ(answer: str, reference: str) -> bool:
    """Tell whether only one says "or" of inequalities or names, or a union; the other says "and"."""
    several = len(set(_IS_SAID.findall(reference))) > 1
    if not (several or _INEQUALITY.search(answer) or _INEQUALITY.search(reference)):
        return False
    if several and UNION.search(answer) and not UNION.search(reference):
        return True
    kinds = [
        (bool(UNION.search(text)), bool(INTERSECTION.search(text)))
        for text in (answer, reference)
    ]
    return kinds in ([(True, False), (False, True)], [(False, True), (True, False)])


def _marks_differ(answer: str, reference: str) -> bool:
    """Tell whether letters carry other primes or negations: f' is not f, nor a negated p."""
    if answer.count(":") > 1 and ":" not in reference:
        return True  # 3:8:1 is not 3/8
    feet = _FEET.findall(answer), _FEET.findall(reference)
    if (
        any(feet)
        and not all(feet)
        and any("\\circ" in text for text in (answer, reference) if not _FEET.search(text))
    ):
        return True  # 30' is not 30 degrees
    if ("=" in answer) != ("=" in reference):  # "f'(x) = 2x" for 2x
        return False
    own, wanted = _NAMED.match(answer), _NAMED.match(reference)
    if own and wanted and _compare_names(normalise(own[1]), normalise(wanted[1])) is False:
        return True  # another angle
    return any(
        sorted(marks.findall(answer)) != sorted(marks.findall(reference))
        for marks in (_PRIME, _NEGATION, _TRANSPOSED, _BASE)
    )


def _cycles(answer: str) -> frozenset | None:
    """Read a permutation in cycles such as "(1 2 3)(4 5)": cycles commute, and begin anywhere."""
    if not _PERMUTATION.fullmatch(answer):
        return None
    found = [tuple(cycle.split()) for cycle in re.findall(r"\(([^()]*)\)", answer)]
    turned = [
        cycle[cycle.index(min(cycle)) :] + cycle[: cycle.index(min(cycle))] for cycle in found
    ]
    return frozenset(turned)


def _compare_names(left: str, right: str) -> bool | None:
    """Compare angles, which read from both ends, arrows, and similar figures, vertex by vertex."""
    here, there = _POINTS.fullmatch(left), _POINTS.fullmatch(right)
    if here and there and (here[1] or there[1]):
        is_arrow = here[1] in _ARROWS or there[1] in _ARROWS
        return there[2] == here[2] or not is_arrow and there[2] == here[2][::-1]
    here, there = _ALIKE.fullmatch(left), _ALIKE.fullmatch(right)
    if not here or not there or len(here[1]) != len(here[3]):
        return None
    wanted = set(zip(there[1], there[3], strict=False))
    pairs = (here[1], here[3]), (here[3], here[1])
    return here[2] == there[2] and any(
        set(zip(*pair, strict=False)) == wanted for pair in pairs
    )


def _is_decimal_comma(comma: str, point: str, *, min_decimals: int = 1) -> bool:
    return (
        re.fullmatch(rf"-?\d+,\d{{{min_decimals},}}", comma) is not None
        and comma.replace(",", ".") == point
    )
