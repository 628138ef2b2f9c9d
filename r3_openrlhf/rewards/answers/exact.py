"""Grader of task "exact": the short answer, letter by letter."""

from __future__ import annotations

import functools
import re
import unicodedata

from r3_openrlhf.rewards.answers.choices import TEXT_COMMAND
from r3_openrlhf.rewards.answers.extraction import FULL_WIDTH, MAX_ANSWER_CHARS, after_thinking, last_line
from r3_openrlhf.rewards.answers.marks import boxed_answer, end_of_what_is_withdrawn, tagged_answer
from r3_openrlhf.rewards.answers.request import Item, Result

_SPACES = re.compile(r"(?:\s|\\[,;! ]|(?<!\\)~(?!\s*[a-zA-Z(]))+")
_LETTER_IN_BRACKETS = re.compile(r"\([a-j]\)")
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


def grade(item: Item) -> Result:
    """The verdict on one item."""
    answer = short_answer(item.response)
    return ("wrong", "no_answer", 0.0, None) if answer is None else grade_exact(answer, item.references)


def grade_exact(answer: str, references: tuple[str, ...]) -> Result:
    """Equal letter by letter, in any case, spacing and quoting aside."""
    if len(answer) > MAX_ANSWER_CHARS + 2 * max(map(len, references), default=0):
        return "wrong", "answer_too_long", 0.0, answer[:MAX_ANSWER_CHARS]
    if exact_text(answer) in set(map(exact_text, references)):
        return "correct", "correct", 1.0, answer
    return "wrong", "wrong", 0.0, answer


@functools.lru_cache(maxsize=4096)  # responses share references, and often answers
def exact_text(text: str) -> str:
    """One spelling of a text that is compared by letter; only its surroundings go."""
    text = _in_one_code(text)
    while (shorter := _without_its_frame(text)) != text:
        text = shorter  # what was around a frame may be a frame itself
    return text[1] if _LETTER_IN_BRACKETS.fullmatch(text) else text


def _in_one_code(text: str) -> str:
    """Accents composed, full-width and typographic signs as in ASCII, no invisible signs."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_SAME_SIGN))


def _without_its_frame(text: str) -> str:
    text = _SPACES.sub(" ", TEXT_COMMAND.sub(r"\1", text)).strip()
    if text.endswith(".") and any(map(str.isalnum, text)):
        text = text.rstrip(". ")
    for opening, closing in _QUOTES:
        inside = text[len(opening) : -len(closing)].strip()
        if text.startswith(opening) and text.endswith(closing) and any(map(str.isalnum, inside)):
            text = inside
    if text.endswith(".") and any(map(str.isalnum, text)):
        text = text.rstrip(". ")
    return _AROUND_MARKS.sub(r"\1", text).casefold()
