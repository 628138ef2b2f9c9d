"""Which grader answers which task; runs inside a grading process."""

from __future__ import annotations

from collections.abc import Callable

from r3_openrlhf.grading.comparison import normalise
from r3_openrlhf.grading.extraction import MAX_ANSWER_CHARS, after_thinking, last_boxes, last_line, tagged_answer
from r3_openrlhf.grading.mathematics import Result, grade_mathematics
from r3_openrlhf.grading.wire import Item


def short_answer(response: str) -> str | None:
    """The last box, else the last <answer>, else the last line of what follows the thinking part."""
    text = after_thinking(response)
    if text is None:
        return None
    boxes = last_boxes(text)
    return boxes[-1] if boxes else tagged_answer(text) or last_line(text)


def grade_item(item: Item, before_slow: Callable[[], None]) -> Result:
    if item.task == "math":
        return grade_mathematics(item.response, item.references, item.truncated, before_slow)
    answer = short_answer(item.response)
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    if item.task == "exact":
        return grade_exact(answer, item.references)
    before_slow()
    from r3_openrlhf.grading.reasoning_gym_tasks import grade_reasoning_gym

    return grade_reasoning_gym(answer, item.metadata)


def grade_exact(answer: str, references: tuple[str, ...]) -> Result:
    """Equal in one spelling (comparison.normalise), letters in any case."""
    if len(answer) > MAX_ANSWER_CHARS + 2 * max(map(len, references), default=0):
        return "wrong", "answer_too_long", 0.0, answer[:MAX_ANSWER_CHARS]
    if normalise(answer).casefold() in {normalise(reference).casefold() for reference in references}:
        return "correct", "correct", 1.0, answer
    return "wrong", "wrong", 0.0, answer
