r"""Marked answers: \boxed{} and <answer></answer>, and if the words around take them back. Every function is linear in the text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from r3_openrlhf.rewards.answers.patterns import phrases

MAX_MARKS = 50  # only the last ones are looked at

ALTERNATIVE = r" \lor "  # between answers that are offered side by side
MAX_BETWEEN_ALTERNATIVES = 160  # characters

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])")
_BLANK = phrases("marks")["blank"]
_BLANK_BOX = re.compile(rf"{BOX.pattern}\s*\{{{_BLANK.pattern}\}}", _BLANK.flags)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<(?P<slash>/?)answer>", re.IGNORECASE)
_BETWEEN = phrases("between")
_TAKES_BACK = phrases("withdrawn")
CHARS_AFTER = 160  # of the text after an answer, which may take it back
CHARS_BEFORE = 80  # of the text before it
_WHITE = re.compile(r"[^\S\n]*\n\s*|[^\S\n]{2,}|[^\S\n ]")  # all but a single space
CHARS_OF_A_FORMULA = 80  # around a box
_COMPUTES = phrases("computes")
_CLOSES = re.compile(r"\\[)\]]")


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked answer, text[start:end] with its mark; content: None if not closed, or empty."""

    start: int
    end: int
    content: str | None


def without_blanks(text: str) -> str:
    """Remove the boxes that are to be filled in from a text."""
    return _BLANK_BOX.sub(" ", text) if "box" in text else text


def boxed_answer(text: str, *, fills: bool = False) -> str | None:
    """Return the last boxes as one answer, with those that "or" or tags join to them. fills: the problem has a box in a
    formula, which is filled in."""
    boxes = _last_group(text, _boxes(text))
    if not boxes:
        return None
    answer = _joined(text, boxes, fills=fills)
    others = [
        tag.content
        for tag in _tags(text)
        if tag.content and BOX.search(tag.content) is None and _stands_beside(text, tag, boxes)
    ]
    return " or ".join(dict.fromkeys([answer, *others]))


def tagged_answer(text: str) -> str | None:
    """Return the last <answer>...</answer>, with those that belong to it as boxes do, as one answer."""
    tags = _tags(text)
    if not tags or tags[-1].end < 0:
        return None  # it never closes
    group = _last_group(text, tags)
    return _joined(text, group) if group else None


def end_of_what_is_withdrawn(text: str) -> int | None:
    """Return where the last mark ends, if there are marks and all are taken back; else None."""
    marks = [mark for mark in (*_boxes(text), *_tags(text)) if mark.content]
    if marks and all(is_withdrawn(text, mark.start, mark.end) for mark in marks):
        return max(mark.end for mark in marks)
    return None


def is_withdrawn(text: str, start: int, end: int) -> bool:
    """Tell whether the words directly before text[start:end], or directly after it, take it back.

    Only whole clauses count: "\\boxed{5}. This is no coincidence", "... Check: 4 is wrong" do not."""
    return _takes_back(
        text[max(0, start - CHARS_BEFORE) : start], text[end : end + CHARS_AFTER]
    )


@lru_cache(maxsize=64)  # a mark is asked about more than once
def _takes_back(before: str, after: str) -> bool:
    # every run of white space is one space or one line break: the patterns are then linear
    before, after = (
        _WHITE.sub(lambda run: "\n" if "\n" in run[0] else " ", text)
        for text in (before, after)
    )
    return (
        _TAKES_BACK["after"].match(after) or _TAKES_BACK["before"].search(before)
    ) is not None


def _in_its_formula(text: str, box: Mark) -> str:
    r"""Return a box's content in the formula that computes with it: 9+1 of "$\boxed{9}+1$"."""
    content = box.content or ""
    before, after = (
        text[max(0, box.start - CHARS_OF_A_FORMULA) : box.start],
        text[box.end :][:CHARS_OF_A_FORMULA],
    )
    paragraph = text[: box.start].rpartition("\n\n")[2].replace("$$", "$").replace("\\$", "")
    if paragraph.count("$") % 2 or paragraph.count("\\(") + paragraph.count("\\[") > len(
        _CLOSES.findall(paragraph)
    ):
        before, after = _COMPUTES["ends"].split(before)[-1], _COMPUTES["ends"].split(after)[0]
        computed = _COMPUTES["before"].search(before) or _COMPUTES["after"].match(after)
    else:
        sign = _COMPUTES["minus"].search(before)
        before, after = sign[0] if sign else "", ""
        computed = sign
    inner = content if content.isalnum() else f"({content})"
    whole = f"{before}{inner}{after}".strip()
    return whole if computed and whole.count("{") == whole.count("}") else content


def _joined(text: str, marks: list[Mark], *, fills: bool = False) -> str:
    if len(marks) == 1 and not fills and text.startswith("\\", marks[0].start):
        return _in_its_formula(text, marks[0])
    between = [text[a.end : b.start] for a, b in zip(marks, marks[1:], strict=False)]
    if len(marks) == 2 and _BETWEEN["about"].search(between[0]):
        return r" \approx ".join(_contents(marks))  # exact and rounded
    if any(map(_BETWEEN["another"].search, between)):
        return ALTERNATIVE.join(_contents(marks))
    return (" or " if any(map(_BETWEEN["says_or"].search, between)) else ", ").join(
        _contents(marks)
    )


def _contents(marks: list[Mark]) -> list[str]:
    """Return the contents of the marks; a direct repetition counts once."""
    return [content for content, _ in groupby(mark.content for mark in marks if mark.content)]


def _last_group(text: str, marks: Sequence[Mark]) -> list[Mark]:
    """Return the last mark that holds an answer, and those before it of the same answer, in order."""
    group: list[Mark] = []
    for mark in reversed(marks):
        if mark.content is not None and is_withdrawn(text, mark.start, mark.end):
            continue
        if not group:
            group += [mark] if mark.content else []
        elif mark.content is None or not belongs_together(text[mark.end : group[0].start]):
            break
        else:
            group.insert(0, mark)
    return group


def _stands_beside(text: str, tag: Mark, boxes: list[Mark]) -> bool:
    """Tell whether words such as "or" tie a tag to the boxes before or after it."""
    if tag.start >= boxes[-1].end:
        between = text[boxes[-1].end : tag.start]
    elif 0 <= tag.end <= boxes[0].start:
        between = text[tag.end : boxes[0].start]
    else:
        return False
    between = _TAG.sub("", between)
    return (
        belongs_together(between)
        and (_BETWEEN["separator"].search(between) or _BETWEEN["another"].search(between))
        is not None
    )


def belongs_together(between: str) -> bool:
    """Tell whether two marked answers with this text between them are parts of one."""
    between = _TAG.sub("", between) if len(between) < 200 else between
    if len(between) < MAX_BETWEEN_ALTERNATIVES and _BETWEEN["another"].search(between):
        return True
    if len(between) >= 70 or _BETWEEN["conclusion"].search(between):
        return False
    return len(between) < 10 or _BETWEEN["separator"].search(between) is not None


@lru_cache(maxsize=2)  # a response is asked more than once
def _boxes(text: str) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    end = len(text)  # where the next box begins
    for command in reversed([match for match in BOX.finditer(text)][-MAX_MARKS:]):
        content, after = _box_content(text, command.end(), end)
        end = command.start()
        if (
            after < len(text) + 1
            and _BLANK.fullmatch(content or text[command.end() : after].strip(" {}")) is None
        ):
            marks.insert(0, Mark(command.start(), after, content))
    return tuple(marks)


def _box_content(text: str, start: int, end: int) -> tuple[str | None, int]:
    """Return the braces' content after a command, or its first word ("\\boxed 5"); and its end."""
    opening = start
    while opening < end and text[opening].isspace():
        opening += 1
    if text.startswith("{", opening) and opening < end:
        closing = _matching_brace(text, opening, end)
        return (
            (None, end)
            if closing is None
            else (text[opening + 1 : closing].strip() or None, closing + 1)
        )
    word = text[opening : min(end, opening + 50)].split(maxsplit=1)
    return (word[0].strip("$.") or None, opening + len(word[0])) if word else (None, end)


def _matching_brace(text: str, opening: int, end: int) -> int | None:
    """Position of the brace that closes text[opening], escaped braces not counted, before `end`."""
    depth = 0
    for sign in _BRACE.finditer(text, opening, end):
        depth += (sign[0] == "{") - (sign[0] == "}")
        if depth == 0:
            return sign.start()
    return None


def _tags(text: str) -> list[Mark]:
    marks: list[Mark] = []
    closing: re.Match[str] | None = None
    for tag in reversed(list(_TAG.finditer(text))[-2 * MAX_MARKS :]):
        if tag["slash"]:
            closing = tag
            continue
        content = text[tag.end() : closing.start()].strip() or None if closing else None
        marks.insert(0, Mark(tag.start(), closing.end() if closing else -1, content))
        closing = None
    return marks
