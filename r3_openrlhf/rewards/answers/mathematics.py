"""Grader of task "math": the final answer against references, cheaply first, then math-verify.

Runs in a grading process, which may be killed: math-verify's own time-outs (SIGALRM) are off.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache

import math_verify.parser
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig, convert_to_pct, latex2sympy, normalize_latex
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.parser import parse_latex_cached
from sympy import Basic, Expr

from r3_openrlhf.rewards.answers import two_stage_parsing
from r3_openrlhf.rewards.answers.arithmetic import stated_precision
from r3_openrlhf.rewards.answers.comparison import Number, compare_cheaply, number, numbers_agree
from r3_openrlhf.rewards.answers.extraction import (
    MAX_ANSWER_CHARS,
    FinalAnswer,
    final_answer,
    last_statement,
    nesting_depth,
    why_no_guess,
)
from r3_openrlhf.rewards.answers.form import formulas, is_copied, is_other_amount, is_plain, is_single, objection
from r3_openrlhf.rewards.answers.magnitude import is_too_large
from r3_openrlhf.rewards.answers.parameters import renamed
from r3_openrlhf.rewards.answers.parts import agree_part_by_part, decide_by_label
from r3_openrlhf.rewards.answers.real_sets import same_set
from r3_openrlhf.rewards.answers.references import read_reference
from r3_openrlhf.rewards.answers.refutation import (
    agree_at_points,
    agree_where_real,
    surely_different,
    with_imaginary_unit,
)
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.answers.safe_expressions import replace_in_sympy
from r3_openrlhf.rewards.answers.spelling import OR, UNEVALUATED, align, unify
from r3_openrlhf.rewards.answers.units import without_unit

MAX_SYMBOLIC_CHARS = 400
MAX_DEPTH = 10
MAX_CELLS = 40


def _parse_arithmetic(expression: str):
    """Replace math-verify's parse_expr, which is sympy's and runs its input as Python."""
    return latex2sympy(expression.replace("**", "^"), is_real=True, convert_degrees=False, normalization_config=None)


replace_in_sympy()
two_stage_parsing.install()
math_verify.parser.parse_expr_cached = _parse_arithmetic
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_PROSE = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{2,} [a-zA-Z]{2,}")  # no product of letters
_LAST_LETTER = re.compile(r"(?<=\d)[a-zA-Z]$")
_NO_DIGIT = re.compile(r"[^0-9]+")
_IN_TEXT = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_BARE = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)


def _parse_in_text(text: str) -> list:
    return parse(text, _IN_TEXT, parsing_timeout=None)


def _parse_bare(answer: str) -> list:
    """Readings of a text that is only an answer: as an expression, and as a string."""
    # math-verify's own list of units has single letters, and takes the t of 5t for one
    normalised = normalize_latex(without_unit(answer), _BARE)
    percent = normalised.endswith("%")
    if percent:
        normalised = normalised.removesuffix("%").removesuffix("\\").strip()
    if _PROSE.search(normalised):
        return [normalised]
    try:
        expression = parse_latex_cached(normalised)
        return [convert_to_pct(expression) if percent else expression, normalised]
    except MemoryError:
        raise
    except Exception:  # the parser raises plain Exception for text that is no mathematics
        return [normalised]


def _has_math_inside(text: str) -> bool:
    inner = text.strip().removeprefix("$").removesuffix("$").strip("$").replace("\\$", "")
    return "$" in inner or "\\(" in inner or "\\[" in inner or last_statement(text) is not None


def _parse(answer: str) -> list:
    return _parse_in_text(answer) if _has_math_inside(answer) else _parse_bare(answer)


@lru_cache(maxsize=4096)
def _parse_reference(reference: str) -> tuple:
    return tuple(_parse(reference))


_failed: list[str] = []  # errors of the comparisons of the item that is being graded

_unified = lru_cache(maxsize=4096)(unify)


def grade(item: Item) -> Result:
    """The verdict on one item."""
    return grade_mathematics(item.response, item.references, item.truncated, problem=item.problem)


def grade_mathematics(response: str, references: tuple[str, ...], truncated: bool, *, problem: str = "") -> Result:
    """The verdict on one response.

    problem: the text of the problem, where it is known: what is copied from it is no answer
    (form.py)."""
    golds = [read.text for read in map(read_reference, references) if read.unusable is None]
    if not golds:
        return "ungraded", "bad_reference", None, None
    found = final_answer(response, truncated=truncated)
    if found is None:
        return "wrong", "no_answer", 0.0, None
    if len(found.text) > MAX_ANSWER_CHARS:
        return _compare_long_text(found.text, golds)
    golds = [_with_factors(_unified(gold), problem) for gold in golds] if problem else list(map(_unified, golds))
    if found.exact:
        text = _with_factors(_unified(found.text), problem) if problem else _unified(found.text)
        decisions = [_decide(text, gold) for gold in golds]
        for gold, decision in zip(golds, decisions, strict=True):
            if decision:
                return _in_its_form(text, gold, problem, found.text)
        if all(decision is False for decision in decisions):
            return "wrong", "wrong", 0.0, found.text
    if found.exact and _leaves_the_computing(_unified(found.text), golds):
        return "wrong", "unevaluated", 0.0, found.text  # it leaves the computing to the grader
    if found.exact and len(found.text) > max(MAX_SYMBOLIC_CHARS, 2 * max(map(len, golds))):
        return "wrong", "answer_too_long", 0.0, found.text
    if found.exact and _is_too_complex(found.text, golds):
        return "wrong", "too_large", 0.0, found.text
    if found.exact and problem and all(is_copied(_unified(found.text), gold, problem) for gold in golds):
        return "wrong", "restated", 0.0, found.text  # whatever its value
    return _grade_symbolically(found, golds, problem)


def _with_factors(text: str, problem: str) -> str:
    r"""6m as 6 \cdot m, where the problem has a variable m: it is no unit."""
    letter = _LAST_LETTER.search(text)
    if letter is None or not any(formula.size > 2 and formula.signs[letter[0]] for formula in formulas(problem)):
        return text
    return rf"{text[: letter.start()]} \cdot {letter[0]}"


def _decide(answer: str, gold: str) -> bool | None:
    """Compare by labels, intervals, texts and numbers, without the libraries."""
    if answer == gold or answer.isalnum() and gold.isalnum():
        return compare_cheaply(*align(answer, gold))
    if "," in gold or ";" in gold or "{cases}" in gold:
        by_label = decide_by_label(answer, gold, _agree)
        if by_label is not None:
            return by_label
    same = same_set(answer, gold)
    return compare_cheaply(*align(answer, gold)) if same is None else same


def _in_its_form(answer: str, gold: str, problem: str, extracted: str) -> Result:
    """Correct, unless the answer equals the reference without being solved."""
    reason = "unsolved" if is_other_amount(answer, gold, problem) else None
    if reason is None and not is_plain(answer, gold):
        reason = objection(*align(answer, gold), problem, _same_value)
        ways = OR.split(answer)
        if len(ways) > 1 and is_single(gold) and not all(_agree(way.strip(), gold) for way in ways):
            reason = "several"  # one of them is right
    if reason is not None:
        return "wrong", reason, 0.0, extracted
    return "correct", "correct", 1.0, extracted


def _same_value(a: str, b: str) -> bool:
    """Whether two texts are expressions of one value, at sample points if they have letters."""
    x, y = number(a), number(b)
    if x is not None and y is not None:
        return numbers_agree(x, y)
    left, right = (next(iter(_parse_reference(text)), "") for text in (a, b))
    if is_too_large(left) or is_too_large(right):
        return False
    return agree_at_points(with_imaginary_unit(left), with_imaginary_unit(right))


def _leaves_the_computing(answer: str, golds: list[str]) -> bool:
    """Whether it has an integral, a sum or the like that no reference has."""
    return not set(UNEVALUATED.findall(answer)) <= {
        operator for gold in golds for operator in UNEVALUATED.findall(gold)
    }


def _is_too_complex(answer: str, golds: list[str]) -> bool:
    """Nested so deeply, or a matrix so large, that parsing alone would take seconds.

    Of 50,000 references of DeepScaleR and the evaluation sets none is nested more than 6 deep.
    """
    return nesting_depth(answer) > max(MAX_DEPTH, *map(nesting_depth, golds)) or answer.count("&") > max(
        MAX_CELLS, *(gold.count("&") for gold in golds)
    )


def _compare_long_text(answer: str, golds: list[str]) -> Result:
    """An answer so long is right only if a reference says the same, white space aside."""
    if "".join(answer.split()) in {"".join(gold.split()) for gold in golds}:
        return "correct", "correct", 1.0, answer[:MAX_ANSWER_CHARS]
    return "wrong", "answer_too_long", 0.0, answer[:MAX_ANSWER_CHARS]


def _grade_symbolically(found: FinalAnswer, golds: list[str], problem: str) -> Result:
    _failed.clear()
    pairs = [align(_unified(found.text), gold) if found.exact else (found.text, gold) for gold in golds]
    parse_answer = _parse if found.exact else _parse_in_text
    readings = {answer: parse_answer(answer) for answer, _ in pairs}
    every = [reading for found_readings in readings.values() for reading in found_readings]
    if not every or not found.exact and not _ends_the_text(str(every[-1]), found):
        return "wrong", "no_answer", 0.0, None
    extracted = found.text if found.exact else str(every[-1])[:MAX_ANSWER_CHARS]
    if not found.exact and _leaves_the_computing(extracted, golds):
        return "wrong", "unevaluated", 0.0, extracted
    if any(map(is_too_large, (reading for gold in golds for reading in _parse_reference(gold)))):
        return "ungraded", "too_large", None, extracted
    if any(map(is_too_large, every)):
        return "wrong", "too_large", 0.0, extracted  # none of the references is
    if reason := why_no_guess(extracted, found):
        return "wrong", reason, 0.0, extracted
    for answer, gold in pairs:
        if not found.exact and compare_cheaply(*align(_unified(extracted), gold)):
            return _in_its_form(_unified(extracted), gold, problem, extracted)
        text = answer if found.exact else extracted
        if any(_equal(a, b, gold, text) for a in _parse_reference(gold) for b in readings[answer]) or (
            found.exact
            and (
                agree_part_by_part(answer, gold, _agree)
                or any(_agree(other, gold) for other in renamed(answer, gold, problem))
            )
        ):
            # a guess at the end of a text: what comes out of "1/2 = 10/9" is the last side
            last = text.rpartition("=")[2].partition("\\approx")[0].strip()
            if not found.exact and last != text and _agree(_unified(last), gold):
                text = last
            return _in_its_form(_unified(text), gold, problem, extracted)
    return "wrong", "incomparable" if _failed else "wrong", 0.0, extracted


def _agree(answer: str, gold: str) -> bool:
    """Whether one element of an answer is one of the reference."""
    decision = compare_cheaply(answer, gold)
    if decision is not None:
        return decision
    name, _, value = answer.partition("=")
    wanted_name, _, wanted = gold.partition("=")
    if value and wanted and name.strip() == wanted_name.strip() and name.strip().isalpha():
        answer, gold = value.strip(), wanted.strip()  # of x = 1.7321 and x = \sqrt{3} the values
    if len(answer) > MAX_SYMBOLIC_CHARS or nesting_depth(answer) > MAX_DEPTH:
        return False
    golds, said = _parse_reference(gold), _parse_bare(answer)
    if any(map(is_too_large, (*golds, *said))):
        return False
    return any(_equal(a, b, gold, answer) for a in golds for b in said)


def _ends_the_text(extracted: str, found: FinalAnswer) -> bool:
    """Whether a guessed answer has the text's last number: what is before it is a step."""
    numbers = _NUMBER.findall(found.text)
    return found.stated or not numbers or _digits(numbers[-1]) in _digits(extracted)


def _digits(text: str) -> str:
    return _NO_DIGIT.sub("", text)


def _equal(gold: Basic | str, reading: Basic | str, gold_text: str, text: str) -> bool:
    if _are_equal(gold, reading, gold_text, text):
        return True
    complex_gold, complex_reading = with_imaginary_unit(gold), with_imaginary_unit(reading)
    if complex_gold is gold and complex_reading is reading:
        return False
    return _are_equal(complex_gold, complex_reading, gold_text, text)


def _are_equal(gold: Basic | str, reading: Basic | str, gold_text: str, text: str) -> bool:
    try:
        if not surely_different(gold, reading) and verify(
            gold, reading, timeout_seconds=None, raise_on_error=True, allow_set_relation_comp=True
        ):
            return True
        if agree_where_real(gold, reading):
            return True
        return _rounds_to(gold, number(text)) or _rounds_to(reading, number(gold_text))
    except MemoryError:
        raise
    except Exception as error:  # sympy raises anything for expressions that it cannot compare
        _failed.append(type(error).__name__)
        return False


def _rounds_to(expression: Basic | str, decimal: Number | None) -> bool:
    """A decimal to which an irrational number rounds ("3.1416" for pi), as in numbers_agree."""
    if decimal is None or stated_precision(decimal.text) is None:
        return False
    if not isinstance(expression, Expr) or not expression.is_number or not expression.is_real:
        return False
    return numbers_agree(Number(Fraction(str(expression.evalf(30))), "", decimal.percent), decimal)
