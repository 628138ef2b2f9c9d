"""Graders of the tasks that name a kind, of "words" and "number", and reward functions by import path."""

import importlib
from fractions import Fraction

from r3_openrlhf.rewards.answers.kinds import is_right
from r3_openrlhf.rewards.answers.kinds.words import word_f1
from r3_openrlhf.rewards.answers.physical_amounts import amount, amounts_agree, last_amount
from r3_openrlhf.rewards.answers.reading.extraction import final_answer
from r3_openrlhf.rewards.answers.request import Item, Result


def of_kind(item: Item) -> Result:
    """Grade an answer, read as the kind that the task names, a file of kinds/: "choice", "date"."""
    answer = final_answer(item.response, truncated=item.truncated, problem=item.problem)
    kind = importlib.import_module(f"{__package__}.kinds.{item.task}").KIND
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    values = [kind.read(reference, item.problem) for reference in item.references]
    if not any(value is not None for value in values):
        return "ungraded", "bad_reference", None, None
    right = any(
        is_right(kind, v, answer.text, item.problem, exact=answer.exact)
        for v in values
        if v is not None
    )
    return (
        ("correct", "correct", 1.0, answer.text)
        if right
        else ("wrong", "wrong", 0.0, answer.text[:1000])
    )


def words(item: Item) -> Result:
    """Words in any case, with or without articles; the score of a wrong answer is F1 of its words."""
    result = of_kind(item)
    if result[1] != "wrong" or result[3] is None:
        return result
    shared = max(word_f1(result[3], reference) for reference in item.references)
    return "wrong", "wrong", min(shared, 0.99), result[3]


def number(item: Item, tolerance: float = 0.01) -> Result:
    """Accept an amount within `tolerance` of a reference, relatively, for physics and the like. Units of one
    dimension convert; a unit may be missing on one side."""
    answer = final_answer(item.response, truncated=item.truncated, problem=item.problem)
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    said = amount(answer.text) if answer.exact else last_amount(answer.text)
    references = [amount(reference) for reference in item.references]
    near_enough = (
        amounts_agree(said, wanted, tolerance=Fraction(str(tolerance)))
        for wanted in references
        if said is not None and wanted is not None
    )
    if any(near_enough):
        return "correct", "correct", 1.0, answer.text
    return "wrong", "wrong", 0.0, answer.text[:1000]


def near(
    response: str,
    references: list[str],
    *,
    problem: str = "",
    truncated: bool = False,
    tolerance: float = 0.01,
) -> float | None:
    """Reward function: 1.0 for a number within `tolerance`, relatively, of a reference."""
    return number(
        Item("number", response, tuple(references), truncated, None, problem), tolerance
    )[2]


def in_form(response: str) -> float:
    """Reward function: 1.0 if thinking has ended and an answer is marked after it, right or wrong."""
    return float(final_answer(response, truncated=True) is not None)
