"""Grader of task "exact": the short answer, letter by letter."""

import functools
import re
import unicodedata

from r3_openrlhf.rewards.answers.kinds import json_text
from r3_openrlhf.rewards.answers.reading.extraction import MAX_ANSWER_CHARS
from r3_openrlhf.rewards.answers.reading.scanner import (
    FULL_WIDTH,
    answer_part,
    boxed_answer,
    end_of_what_is_withdrawn,
    last_line,
    last_statement,
    tagged_answer,
)
from r3_openrlhf.rewards.answers.request import Item, Result
from r3_openrlhf.rewards.answers.text.plain import TEXT_COMMAND

_ANNOUNCED = re.compile(r"(?i)^.*?(?:answer|option|choice)\s*(?:\*\*)?\s*(?:is|:)?\s*:?\s*")
_SPACES = re.compile(r"(?:\s|\\[,;! ]|(?<!\\)~(?!\s*[a-zA-Z(]))+")
_LETTER_IN_BRACKETS = re.compile(r"\([a-j]\)")
_AROUND_MARKS = re.compile(r"\s*([,;:()\[\]{}=<>|])\s*")
_SAME_SIGN = FULL_WIDTH | str.maketrans(
    dict(zip("‘’“”。", "''\"\".", strict=True)) | dict.fromkeys("\u200b\u200c\u200d\ufeff")
)
_QUOTES = (
    ("**", "**"),
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ('"', '"'),
    ("'", "'"),
    ("`", "`"),
)


def short_answers(response: str) -> list[str]:
    """Return the last boxes, else the last <answer>, else the last line of what follows the
    thinking part, and what that line announces: "Paris" of "The answer is Paris."

    Several boxes, or tags, that belong to one answer are that answer, not the last of them.
    """
    text = answer_part(response)
    if text is None or end_of_what_is_withdrawn(text) is not None:
        return []
    if marked := boxed_answer(text) or tagged_answer(text):
        return [marked]
    statement = last_statement(text)
    said = (
        [_ANNOUNCED.sub("", statement[1].partition("\n")[0]).strip(" _")] if statement else []
    )
    # "**Answer:** B"
    said = [text.strip(" *") if text.count("**") % 2 else text for text in said]
    line = last_line(text)
    return [*([line] if line and (not said or said[0] in line) else []), *said]


def short_answer(response: str) -> str | None:
    """Return the shortest of the texts that may be the answer; None: there is none."""
    return min(short_answers(response), key=len, default=None)


def grade(item: Item) -> Result:
    """Grade one item."""
    results = [grade_exact(answer, item.references) for answer in short_answers(item.response)]
    if not results:
        return "wrong", "no_answer", 0.0, None
    return next((result for result in results if result[0] == "correct"), results[-1])


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
    # accents composed, full-width and typographic signs as in ASCII, no invisible signs
    in_one_code = (
        text if text.isascii() else unicodedata.normalize("NFC", text.translate(_SAME_SIGN))
    )
    text = json_text.KIND.read(text, "") or in_one_code
    while (shorter := _without_its_frame(text)) != text:
        text = shorter  # what was around a frame may be a frame itself
    return text[1] if _LETTER_IN_BRACKETS.fullmatch(text) else text


def _without_its_frame(text: str) -> str:
    text = _SPACES.sub(" ", TEXT_COMMAND.sub(r"\1", text)).strip()
    if text.endswith(".") and any(map(str.isalnum, text)):
        text = text.rstrip(". ")
    for opening, closing in _QUOTES:
        inside = text[len(opening) : -len(closing)].strip()
        if (
            text.startswith(opening)
            and text.endswith(closing)
            and any(map(str.isalnum, inside))
        ):
            text = inside
    return _AROUND_MARKS.sub(r"\1", text).casefold()
