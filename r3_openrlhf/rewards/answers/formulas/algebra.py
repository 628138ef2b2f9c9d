"""Mathematics: two answers as labels, sets, numbers and lists, then as parsed formulas at points.

Runs in a grading process, which may be killed: math-verify's own time-outs (SIGALRM) are off.
"""

import logging
import re
from fractions import Fraction
from functools import lru_cache, partial

import math_verify.parser
from latex2sympy2_extended.latex2sympy2 import (
    ConversionConfig,
    NormalizationConfig,
    convert_to_pct,
    latex2sympy,
    normalize_latex,
)
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from math_verify.parser import parse_latex_cached
from sympy import Basic, Eq, Expr, I, Integer, Symbol, factorial, factorial2

from r3_openrlhf.rewards.answers.amounts.comparison import (
    Number,
    compare_cheaply,
    connectives_differ,
    normalise,
    number,
    numbers_agree,
)
from r3_openrlhf.rewards.answers.amounts.units import without_unit
from r3_openrlhf.rewards.answers.formulas import two_stage_parsing
from r3_openrlhf.rewards.answers.formulas.real_sets import same_set
from r3_openrlhf.rewards.answers.formulas.safe_expressions import replace_in_sympy
from r3_openrlhf.rewards.answers.formulas.spelling import align, unify
from r3_openrlhf.rewards.answers.formulas.values import (
    is_too_large,
    real_value,
    same,
    same_value,
)
from r3_openrlhf.rewards.answers.reading.scanner import last_statement
from r3_openrlhf.rewards.answers.text.arithmetic import stated_precision
from r3_openrlhf.rewards.answers.text.parts import decide_by_label, nesting_depth, same_list

MAX_SYMBOLIC_CHARS = 400
MAX_DEPTH = 10
MAX_CELLS = 40
MAX_BARS = 16


def _parse_arithmetic(expression: str):
    """Replace math-verify's parse_expr, which is sympy's and runs its input as Python."""
    return latex2sympy(
        expression.replace("**", "^"),
        is_real=True,
        convert_degrees=False,
        normalization_config=None,
    )


replace_in_sympy()
two_stage_parsing.install()
math_verify.parser.parse_expr_cached = _parse_arithmetic
math_verify.parser.latex2sympy = partial(
    latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False)
)
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_DEEP_SUBSCRIPTS = re.compile(r"_\s*\{[^{}]*_\s*\{[^{}]*_")
_DEEP_POWERS = re.compile(r"(?:\^\s*\{[^{}^]*){5}")
# functions without brackets
_CHAIN = re.compile(
    r"(?:\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|exp|lg)(?:h(?![a-zA-Z]))?\s*){6}"
)
_PROSE = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{2,} [a-zA-Z]{2,}")  # no product of letters
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
_IN_TEXT = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_BARE = NormalizationConfig(
    basic_latex=True,
    units=False,
    malformed_operators=True,
    nits=True,
    boxed="none",
    equations=False,
)

unified = lru_cache(maxsize=4096)(unify)


def parse_in_text(text: str) -> list:
    """Return the readings of the mathematics in a text."""
    return parse(text, _IN_TEXT, parsing_timeout=None)


def _parse_bare(answer: str) -> list:
    """Return the readings of a text that is only an answer: as an expression, and as a string."""
    # math-verify's own list of units has single letters, and takes the t of 5t for one
    if _WHOLE_NUMBER.fullmatch(answer):
        return [Integer(answer), answer]  # as the parser reads it
    normalised = normalize_latex(without_unit(answer), _BARE)
    percent = normalised.endswith("%")
    if percent:
        normalised = normalised.removesuffix("%").removesuffix("\\").strip()
    if _PROSE.search(normalised):
        return [normalised]
    try:
        expression = _double_factorials(parse_latex_cached(normalised), normalised)
        if percent and not isinstance(expression, Expr):
            return [normalised]  # a percentage of a list
        return [convert_to_pct(expression) if percent else expression, normalised]
    except MemoryError:
        raise
    except Exception:  # the parser raises plain Exception for text that is no mathematics
        return [normalised]


def _double_factorials(expression: Basic, text: str) -> Basic:
    """n!! as the parser does not read it: not the factorial of a factorial."""
    if "!!" not in text or "!!!" in text:
        return expression
    nested = [
        part for part in expression.atoms(factorial) if isinstance(part.args[0], factorial)
    ]
    return expression.xreplace(
        {part: factorial2(part.args[0].args[0], evaluate=False) for part in nested}
    )


def _has_math_inside(text: str) -> bool:
    inner = text.strip().removeprefix("$").removesuffix("$").strip("$").replace("\\$", "")
    return "$" in inner or "\\(" in inner or "\\[" in inner or last_statement(text) is not None


def parse_any(answer: str) -> list:
    """Return the readings of a text: of what is in dollar signs or announced, else of all of it."""
    return parse_in_text(answer) if _has_math_inside(answer) else _parse_bare(answer)


@lru_cache(maxsize=4096)
def parse_reference(reference: str) -> tuple:
    """Return the readings of a reference, which many responses share."""
    return tuple(parse_any(reference))


def decide(answer: str, gold: str) -> bool | None:
    """Compare by labels, intervals, texts and numbers, without the libraries."""
    if answer == gold and normalise(answer):
        return True
    if answer == gold or answer.isalnum() and gold.isalnum():
        return compare_cheaply(*align(answer, gold))
    if (same := same_set(answer, gold)) is not None:
        return same
    if "," in gold or ";" in gold or "{cases}" in gold:
        by_label = (
            False if connectives_differ(answer, gold) else decide_by_label(answer, gold, agree)
        )
        if by_label is not None:
            return by_label
    return compare_cheaply(*align(answer, gold))


def value_is_same(a: str, b: str) -> bool:
    """Tell whether two texts are expressions of one value, at sample points if they have letters."""
    x, y = number(a), number(b)
    if x is not None and y is not None:
        return numbers_agree(x, y)
    left, right = (next(iter(parse_reference(text)), "") for text in (a, b))
    left, right = _with_imaginary_unit(left), _with_imaginary_unit(right)
    return isinstance(left, Expr) and isinstance(right, Expr) and same_value(left, right)


def rounded_side(text: str, gold: str) -> str:
    r"""Return 28.3 of "9\pi \approx 28.3" beside a rounded reference, where that is rounded rightly; else the text."""
    exact, _, last = text.rpartition("\\approx")
    rounded, wanted = (number(side.strip()) if exact else None for side in (last, gold))
    if rounded is None or wanted is None:
        return text
    precision = stated_precision(rounded.text)
    if precision is None or stated_precision(wanted.text) is None:
        return text
    if is_too_complex(exact, [gold]):
        return text
    value = real_value(next(iter(parse_reference(exact.rpartition("=")[2].strip())), ""))
    if value is None:
        return text
    is_right = abs(Fraction(str(value)) - rounded.value) <= precision[1]
    return last.strip() if is_right else text


def is_too_complex(answer: str, golds: list[str]) -> bool:
    """Nested so deeply, or a matrix so large, that parsing alone would take seconds.

    Of 50,000 references of DeepScaleR and the evaluation sets none is nested more than 6 deep.
    """
    # each level takes the parser up to ten times as long
    for slow in (_DEEP_SUBSCRIPTS, _DEEP_POWERS, _CHAIN):
        if slow.search(answer) and not any(map(slow.search, golds)):
            return True
    limits = ((nesting_depth, MAX_DEPTH), (_cells, MAX_CELLS), (_bars, MAX_BARS))
    return any(count(answer) > max(limit, *map(count, golds)) for count, limit in limits)


def _cells(text: str) -> int:
    return text.count("&")


def _bars(text: str) -> int:
    return text.count("|")


def agree(answer: str, gold: str) -> bool:
    """Tell whether one element of an answer is one of the reference."""
    decision = compare_cheaply(answer, gold)
    decision = same_list(answer, gold, agree) if decision is None else decision
    if decision is not None:
        return decision
    if len(answer) > MAX_SYMBOLIC_CHARS or nesting_depth(answer) > MAX_DEPTH:
        return False
    golds, said = parse_reference(gold), _parse_bare(answer)
    if any(map(is_too_large, (*golds, *said))):
        return False
    return any(equal(a, b, gold, answer) for a in golds for b in said)


def equal(gold: Basic | str, reading: Basic | str, gold_text: str, text: str) -> bool:
    """Tell whether a reading of a text is one of the reference, or a decimal to which it rounds."""
    gold, reading = _in_one_case(gold, reading)
    if (
        isinstance(gold, Eq)
        and isinstance(reading, Eq)
        and gold.lhs == reading.lhs
        and gold.lhs.is_Symbol
    ):
        gold, reading = gold.rhs, reading.rhs  # of x = 1.7321 and x = \sqrt{3} the values
        gold_text, text = gold_text.partition("=")[2], text.partition("=")[2]
    if same(gold, reading):
        return True
    complex_gold, complex_reading = _with_imaginary_unit(gold), _with_imaginary_unit(reading)
    if (complex_gold is not gold or complex_reading is not reading) and same(
        complex_gold, complex_reading
    ):
        return True
    return _rounds_to(gold, number(text)) or _rounds_to(reading, number(gold_text))


def _in_one_case(a: Basic | str, b: Basic | str) -> tuple[Basic | str, Basic | str]:
    """Write both in small letters, unless one of them has both R and r."""
    if isinstance(a, str) or isinstance(b, str):
        return a, b
    letters = [
        {
            symbol: type(symbol)(str(symbol).lower(), **symbol.assumptions0)
            for symbol in text.atoms(Symbol)
        }
        for text in (a, b)
    ]
    if letters[0].keys() == letters[1].keys() or any(
        len(set(of.values())) < len(of) for of in letters
    ):
        return a, b
    return a.xreplace(letters[0]), b.xreplace(letters[1])


def _with_imaginary_unit(expression: object) -> object:
    """Replace the letter i, which the LaTeX parser takes for a name, by the imaginary unit."""
    if not isinstance(expression, Expr):
        return expression
    letters = {symbol: I for symbol in expression.free_symbols if str(symbol) == "i"}
    return expression.xreplace(letters) if letters else expression


def _rounds_to(expression: Basic | str, decimal: Number | None) -> bool:
    """Tell whether an irrational number rounds to a decimal ("3.1416" for pi), as in numbers_agree."""
    if decimal is None or stated_precision(decimal.text) is None:
        return False
    value = real_value(expression)
    return value is not None and numbers_agree(
        Number(Fraction(str(value)), "", decimal.percent), decimal
    )


def equal_texts(answer: str, gold: str) -> bool:
    """Tell whether two texts, as they were written, are one value."""
    return agree(unified(answer), unified(gold))
