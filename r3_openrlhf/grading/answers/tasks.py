"""Which grader answers which task; runs inside a grading process."""

from __future__ import annotations

import re
import unicodedata
from zlib import crc32

from r3_openrlhf.grading.answers.extraction import (
    FULL_WIDTH,
    MAX_ANSWER_CHARS,
    after_thinking,
    final_answer,
    last_line,
)
from r3_openrlhf.grading.answers.marks import boxed_answer, end_of_what_is_withdrawn, tagged_answer
from r3_openrlhf.grading.answers.mathematics import Result, grade_mathematics
from r3_openrlhf.grading.answers.request import Item

_OPERATOR = re.compile(r"\\[a-zA-Z]+|[-=+*/^_<>|]")

_TEXT_COMMAND = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|textnormal|mathrm|mathbf)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"(?:\s|\\[,;! ]|(?<!\\)~(?!\s*[a-zA-Z(]))+")
_AROUND_MARKS = re.compile(r"\s*([,;:()\[\]{}=<>|])\s*")
_SAME_SIGN = FULL_WIDTH | str.maketrans(
    dict(zip("‘’“”", "''\"\"", strict=True)) | dict.fromkeys("\u200b\u200c\u200d\ufeff")
)
_QUOTES = (("**", "**"), ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ('"', '"'), ("'", "'"), ("`", "`"))


def short_answer(response: str) -> str | None:
    """The last boxes, else the last <answer>, else the last line of what follows the thinking part.

    Several boxes, or tags, that belong to one answer are that answer, not the last of them.
    """
    text = after_thinking(response)
    if text is None or end_of_what_is_withdrawn(text) is not None:
        return None
    return boxed_answer(text) or tagged_answer(text) or last_line(text)


def grade_item(item: Item, *, may_take_long: bool) -> Result | None:
    """The verdict on one item; None when it may not take long and only something that may could decide."""
    if item.task == "math":
        return grade_mathematics(
            item.response, item.references, item.truncated, may_take_long=may_take_long, problem=item.problem
        )
    answer = short_answer(item.response)
    if answer is None:
        return "wrong", "no_answer", 0.0, None
    if item.task == "exact":
        return grade_exact(answer, item.references)
    if not may_take_long:
        return None
    from r3_openrlhf.grading.answers.reasoning_gym_tasks import grade_reasoning_gym

    return grade_reasoning_gym(answer, _entry_of(item))


def complexity_of(item: Item) -> int:
    """Operators and commands in the answer and the longest reference; 0 where nothing is known."""
    found = final_answer(item.response, truncated=item.truncated) if item.task == "math" else None
    if found is None:
        return 0
    return len(_OPERATOR.findall(found.text)) + len(_OPERATOR.findall(max(item.references, key=len, default="")))


def subject_of(item: Item) -> int:
    """A number that items with the same references have in common; 0: whatever takes long, plain references are not why."""
    if item.task == "math" and not any(map(_OPERATOR.search, item.references)):
        return 0
    return crc32("\0".join((item.task, *item.references)).encode("utf-8", "surrogatepass"))


def data_set_of(item: Item) -> str:
    """The reasoning_gym data set that the item needs; "" when none, or none whose answers are graded."""
    if item.task != "reasoning_gym":
        return ""
    from r3_openrlhf.grading.answers.reasoning_gym_tasks import named_data_set

    return named_data_set(_entry_of(item)) or ""


def _entry_of(item: Item) -> dict | None:
    if isinstance(item.metadata, bytes):
        raise TypeError("the metadata of this item have not been read yet; worker.py does that")
    return item.metadata


def prepare(data_set: str) -> None:
    """Loads the scorer of a reasoning_gym data set, a name that data_set_of gave."""
    from r3_openrlhf.grading.answers.reasoning_gym_tasks import load_scorer

    load_scorer(data_set)


def grade_exact(answer: str, references: tuple[str, ...]) -> Result:
    """Equal letter by letter, in any case, spacing and quoting aside."""
    if len(answer) > MAX_ANSWER_CHARS + 2 * max(map(len, references), default=0):
        return "wrong", "answer_too_long", 0.0, answer[:MAX_ANSWER_CHARS]
    if exact_text(answer) in set(map(exact_text, references)):
        return "correct", "correct", 1.0, answer
    return "wrong", "wrong", 0.0, answer


def exact_text(text: str) -> str:
    """One spelling of a text that is compared letter by letter; what stands in it is never left out, only around it."""
    text = _in_one_code(text)
    while (shorter := _without_its_frame(text)) != text:
        text = shorter  # what was around a frame may be a frame itself
    return text


def _in_one_code(text: str) -> str:
    """Accents composed, full-width letters and typographic quotes as in ASCII, without invisible signs."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_SAME_SIGN))


def _without_its_frame(text: str) -> str:
    text = _SPACES.sub(" ", _TEXT_COMMAND.sub(r"\1", text)).strip()
    if text.endswith(".") and any(map(str.isalnum, text)):
        text = text.rstrip(". ")
    for opening, closing in _QUOTES:
        inside = text[len(opening) : -len(closing)].strip()
        if text.startswith(opening) and text.endswith(closing) and any(map(str.isalnum, inside)):
            text = inside
    if text.endswith(".") and any(map(str.isalnum, text)):
        text = text.rstrip(". ")
    return _AROUND_MARKS.sub(r"\1", text).casefold()
