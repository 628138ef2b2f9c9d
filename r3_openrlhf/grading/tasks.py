"""Which grader answers which task; runs inside a grading process."""

from __future__ import annotations

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


def grade_item(item: Item, *, may_take_long: bool) -> Result | None:
    """The verdict on one item; None when it may not take long and only something that may could decide."""
    if item.task == "math":
        return grade_mathematics(item.response, item.references, item.truncated, may_take_long=may_take_long)
    answer = short_answer(item.response)
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    if item.task == "exact":
        return grade_exact(answer, item.references)
    if not may_take_long:
        return None
    from r3_openrlhf.grading.reasoning_gym_tasks import grade_reasoning_gym

    return grade_reasoning_gym(answer, item.metadata)


def data_set_of(item: Item) -> str:
    """The reasoning_gym data set that the item needs; "" when none, or none whose answers are graded."""
    if item.task != "reasoning_gym":
        return ""
    from r3_openrlhf.grading.reasoning_gym_tasks import named_data_set

    return named_data_set(item.metadata) or ""


def prepare(data_set: str) -> None:
    """Loads the scorer of a reasoning_gym data set, a name that data_set_of gave."""
    from r3_openrlhf.grading.reasoning_gym_tasks import load_scorer

    load_scorer(data_set)


def grade_exact(answer: str, references: tuple[str, ...]) -> Result:
    """Equal in one spelling (comparison.normalise), letters in any case."""
    if len(answer) > MAX_ANSWER_CHARS + 2 * max(map(len, references), default=0):
        return "wrong", "answer_too_long", 0.0, answer[:MAX_ANSWER_CHARS]
    if normalise(answer).casefold() in {normalise(reference).casefold() for reference in references}:
        return "correct", "correct", 1.0, answer
    return "wrong", "wrong", 0.0, answer
