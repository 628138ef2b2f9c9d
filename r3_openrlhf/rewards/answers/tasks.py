"""Graders of the tasks "choice", "words" and "number": every reference is of one kind."""

from __future__ import annotations

from fractions import Fraction

from r3_openrlhf.rewards.answers import comparison
from r3_openrlhf.rewards.answers.extraction import FinalAnswer, final_answer
from r3_openrlhf.rewards.answers.kinds import is_right, kinds
from r3_openrlhf.rewards.answers.kinds.words import word_f1
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.answers.spelling import unify

TOLERANCE = Fraction(1, 100)  # of task "number", relative


def choice(item: Item) -> Result:
    """A letter, or the text of an option of the problem."""
    return _of_kind("choice", item)


def words(item: Item) -> Result:
    """Words in any case, with or without articles; the score of a wrong answer is F1 of its words."""
    result = _of_kind("words", item)
    if result[1] != "wrong" or result[3] is None:
        return result
    shared = max(word_f1(result[3], reference) for reference in item.references)
    return "wrong", "wrong", min(shared, 0.99), result[3]


def number(item: Item) -> Result:
    """A number within one percent of a reference, for physics and the like."""
    answer = _answer(item)
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    said = comparison.number(unify(answer.text if answer.exact else answer.text.split()[-1].rstrip(".")))
    for reference in item.references:
        wanted = comparison.number(unify(reference))
        if said and wanted and abs(said.value - wanted.value) <= TOLERANCE * abs(wanted.value):
            units = said.unit, wanted.unit
            if None in units or units[0] == units[1] or comparison.numbers_agree(said, wanted):
                return "correct", "correct", 1.0, answer.text
    return "wrong", "wrong", 0.0, answer.text[:1000]


def _answer(item: Item) -> FinalAnswer | None:
    return final_answer(item.response, truncated=item.truncated, problem=item.problem)


def _of_kind(name: str, item: Item) -> Result:
    answer, kind = _answer(item), kinds()[name]
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    values = [kind.read(reference, item.problem) for reference in item.references]
    if not any(value is not None for value in values):
        return "ungraded", "bad_reference", None, None
    right = any(is_right(kind, v, answer.text, item.problem, exact=answer.exact) for v in values if v is not None)
    return ("correct", "correct", 1.0, answer.text) if right else ("wrong", "wrong", 0.0, answer.text[:1000])
