"""The grader's reading of a reference, and if it is an answer. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from r3_openrlhf.config.no_answer import says_no_answer
from r3_openrlhf.rewards.answers.comparison import number
from r3_openrlhf.rewards.answers.extraction import last_statement
from r3_openrlhf.rewards.answers.marks import boxed_answer
from r3_openrlhf.rewards.answers.units import unit_of

_IN_MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$]+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_A_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_CONNECTIVE = re.compile(r"(?:and|or)", re.IGNORECASE)
# "The value of x is $5$": what is said before the last formula, without taking anything back
_LABEL = re.compile(
    r"(?!.*\b(?:not|no|never|unless|except(?:ions?)?|if|when)\b)(?:(?!\b(?:is|are)\b)[^;,])*(?:\b(?:is|are|equals)|[:=])\s*",
    re.I,
)


@dataclass(frozen=True, slots=True)
class ReferenceReading:
    """The reference that `grade` compares an answer of task "math" with.

    Attributes:
        text: The part of the reference that counts: its last box, what follows "answer is" or
            "####", or all of it.
        unusable: Why no answer can be compared with it, to follow "the reference"; None where it is
            usable. Such rows are ungraded, with the reason "bad_reference"."""

    text: str
    unusable: str | None = None


@lru_cache(maxsize=4096)
def read_reference(reference: str) -> ReferenceReading:
    """Read one reference of task "math": either only an answer, or a whole worked solution.

    Returns:
        The part that counts (`text`), and why no answer can match it (`unusable`, or None).
    """
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
    if text.startswith('{"'):
        return ReferenceReading(text, "is a JSON text: name the field that holds the answer")
    if boxed or statement or not (formulas := _IN_MATH.findall(text)):
        return ReferenceReading(text)
    alone = _IN_MATH.fullmatch(text.rstrip(" .,;"))
    if alone and len(formulas) == 1:  # "$k(k-1)$."
        return ReferenceReading(next(group for group in alone.groups() if group).strip())
    if _is_prose(text):
        return ReferenceReading(text, "is prose around a formula, which no answer can be compared with")
    return ReferenceReading(text)


def _is_prose(text: str) -> bool:
    """Whether words between formulas say more than "and", "or", a unit, or what the last is."""
    words = _A_WORD.findall(_IN_MATH.sub(" ", text))
    if all(map(_CONNECTIVE.fullmatch, words)):
        return False
    bare = _IN_MATH.sub(lambda match: next(group for group in match.groups() if group), text)
    if number(bare) is not None or unit_of(bare) is not None:
        return False
    *_, last = _IN_MATH.finditer(text)
    before = _IN_MATH.sub("x", text[: last.start()])
    return _LABEL.fullmatch(before) is None or _A_WORD.search(text[last.end() :]) is not None
