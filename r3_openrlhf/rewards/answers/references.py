"""The grader's reading of a reference, and if it is an answer. Standard library only."""

from dataclasses import dataclass, replace
from functools import lru_cache

from r3_openrlhf.config.no_answer import says_no_answer
from r3_openrlhf.rewards.answers.extraction import last_statement
from r3_openrlhf.rewards.answers.kinds import kind_of
from r3_openrlhf.rewards.answers.kinds.prose import IN_MATH
from r3_openrlhf.rewards.answers.marks import boxed_answer


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
    boxed = boxed_answer(reference)
    _, marker, marked = reference.rpartition("\n#### ")
    statement = None if boxed or marker else last_statement(reference)
    text = boxed or marked.strip() or (statement[1] if statement else reference.strip())
    if not text:
        return ReferenceReading("", "is empty")
    if says_no_answer(text):
        return ReferenceReading(text, "is a placeholder and no answer")
    if text.startswith('{"') and kind_of(text, "") is None:
        return ReferenceReading(text, "is a JSON text: name the field that holds the answer")
    alone = None if boxed or statement else IN_MATH.fullmatch(text.rstrip(" .,;"))
    if alone and len(IN_MATH.findall(text)) == 1:  # "$k(k-1)$."
        text = next(group for group in alone.groups() if group).strip()
    return ReferenceReading(text)
