"""The grader's reading of a reference, and if it is an answer. Standard library only."""

from dataclasses import dataclass, replace
from functools import lru_cache

from r3_openrlhf.config.no_answer import says_no_answer
from r3_openrlhf.rewards.answers.kinds import kind_of
from r3_openrlhf.rewards.answers.kinds.prose import IN_MATH
from r3_openrlhf.rewards.answers.reading.scanner import (
    boxed_answer,
    last_statement,
    tagged_answer,
)


@dataclass(frozen=True, slots=True)
class ReferenceReading:
    """The reference that `grade` compares an answer of task "math" with.

    Attributes:
        text: The part of the reference that counts: its last box, what follows "answer is" or
            "####", or all of it.
        unusable: Why no answer can be compared with it, to follow "the reference"; None where it is
            usable. Such rows are ungraded, with the reason "bad_reference".
        kind: The kind as which answers are read, "ordered list: 3 values, order counts"; "" for
            mathematics."""

    text: str
    unusable: str | None = None
    kind: str = ""


@lru_cache(maxsize=4096)
def read_reference(reference: str, problem: str = "") -> ReferenceReading:
    """Read one reference of task "math": either only an answer, or a whole worked solution.

    Args:
        problem: The text of the problem, which may ask for a date, an order or the like.

    Returns:
        The part that counts (`text`), why no answer can match it (`unusable`, or None), and `kind`.
    """
    reading = _read(reference)
    entry = None if reading.unusable else kind_of(reading.text, problem)
    if entry is None:
        return reading
    kind, value = entry
    return replace(reading, kind=": ".join(filter(None, [kind.name, kind.describe(value)])))


def _read(reference: str) -> ReferenceReading:
    if reference.isdecimal():
        return ReferenceReading(reference)
    in_box = boxed_answer(reference)
    marked = in_box or _behind_a_mark(reference)
    statement = None if marked else last_statement(reference)
    if marked:
        text = marked
    elif statement:
        text = statement[1]
    else:
        text = reference.strip()
    if not text:
        return ReferenceReading("", "is empty")
    if says_no_answer(text):
        return ReferenceReading(text, "is a placeholder and no answer")
    if text.startswith('{"') and kind_of(text, "") is None:
        return ReferenceReading(text, "is a JSON text: name the field that holds the answer")
    if not in_box and not statement:
        text = _without_dollars(text)
    return ReferenceReading(text)


def _behind_a_mark(reference: str) -> str:
    """Return what an <answer> tag, or "#### " of a solution, marks as its answer, "" without any."""
    in_tag = tagged_answer(reference)
    if in_tag:
        return in_tag
    _, marker, behind = reference.rpartition("\n#### ")
    return behind.strip() if marker else ""


def _without_dollars(text: str) -> str:
    """Return the formula of a text that is one formula between signs, as "$k(k-1)$."."""
    formula = IN_MATH.fullmatch(text.rstrip(" .,;"))
    if formula is None or len(IN_MATH.findall(text)) != 1:
        return text
    return next(group for group in formula.groups() if group).strip()
