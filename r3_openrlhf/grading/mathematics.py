"""Grader of task "math": the final answer against the references, cheap comparisons first, then math-verify.

Runs in a grading process, which may be killed at any moment: math-verify's own time-outs use SIGALRM and are off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import math_verify.parser
from latex2sympy2_extended.latex2sympy2 import latex2sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from r3_openrlhf.grading.comparison import compare_cheaply, normalise
from r3_openrlhf.grading.extraction import MAX_ANSWER_CHARS, TAIL_CHARS, after_thinking, last_boxes

Result = tuple[str, str, float | None, str | None]  # verdict, reason, score, extracted


def _parse_arithmetic(expression: str):
    """Stands in for math-verify's parse_expr, which is sympy's and evaluates its input as Python code."""
    return latex2sympy(expression.replace("**", "^"), is_real=True, convert_degrees=False, normalization_config=None)


math_verify.parser.parse_expr_cached = _parse_arithmetic
logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_TARGETS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def _parsed(text: str) -> list:
    return parse(text, _TARGETS, parsing_timeout=None)


def _answer_text(text: str) -> Iterator[str]:
    """What math-verify is given: an answer in a form that its patterns find."""
    yield text if "$" in text or "\\(" in text or "\\[" in text else f"${text}$"


def grade_mathematics(
    response: str, references: tuple[str, ...], truncated: bool, before_slow: Callable[[], None]
) -> Result:
    """The verdict on one response. `before_slow` is called once, before anything that may take long."""
    text = after_thinking(response)
    if text is None:
        return "wrong", "no_answer", 0.0, None
    boxes = last_boxes(text)
    if boxes:
        answer = ", ".join(boxes)
    elif truncated:  # the number at which the limit struck is not an answer
        return "wrong", "no_answer", 0.0, None
    else:
        answer = text[-TAIL_CHARS:]
    reference_answers = [_reference_answer(reference) for reference in references]
    if not any(reference_answers):
        return "ungraded", "bad_reference", None, answer[:MAX_ANSWER_CHARS] if boxes else None
    decisions = [compare_cheaply(answer, reference) for reference in reference_answers]
    if True in decisions:
        return "correct", "correct", 1.0, answer[:MAX_ANSWER_CHARS]
    if all(decision is False for decision in decisions):
        return "wrong", "wrong", 0.0, answer
    if len(answer) > MAX_ANSWER_CHARS:
        return "wrong", "answer_too_long", 0.0, answer[:MAX_ANSWER_CHARS]
    before_slow()
    prediction = _parsed(next(_answer_text(answer)) if boxes else answer)
    if not prediction:
        return "wrong", "no_answer", 0.0, None
    extracted = answer if boxes else str(prediction[-1])[:MAX_ANSWER_CHARS]
    for reference, reference_answer in zip(references, reference_answers, strict=True):
        gold = _parsed(next(_answer_text(reference_answer)))
        if verify(gold, prediction, timeout_seconds=None):
            return "correct", "correct", 1.0, extracted
        if normalise(extracted) == normalise(reference_answer):
            return "correct", "correct", 1.0, extracted
    return "wrong", "wrong", 0.0, extracted


def _reference_answer(reference: str) -> str:
    boxes = last_boxes(reference)
    return ", ".join(boxes) if boxes else reference.strip()
