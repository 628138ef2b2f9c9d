"""The final answer inside a response. Every function is linear in the length of the text: the text is hostile."""

from __future__ import annotations

import re

MAX_ANSWER_CHARS = 1000  # a final answer longer than this is compared as text only
TAIL_CHARS = 1000  # without a box, the answer is looked for in the end of the response

_SEPARATOR = re.compile(r"\b(?:and|or)\b|,|;")
_CONCLUSION = re.compile(r"\b(?:answer|thus|therefore|hence|so|final|finally|equals?|gives?)\b", re.IGNORECASE)


def after_thinking(response: str) -> str | None:
    """The part behind the last </think>; the whole response when it does not think; None when it never stops."""
    head, closing, tail = response.rpartition("</think>")
    if closing:
        return tail
    return None if "<think>" in head + tail else response


def _matching_brace(text: str, opening: int, end: int) -> int | None:
    """Position of the brace that closes text[opening], escaped braces not counted, before `end`."""
    depth, position = 0, opening
    while position < end:
        character = text[position]
        if character == "\\":
            position += 2
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def last_boxes(text: str) -> list[str]:
    r"""Contents of the last \boxed{} (or \fbox{}), and of those directly before it that belong to the same answer.

    "\boxed{1} and \boxed{2}" is one answer of two parts; boxes further apart, or with a conclusion such as
    "therefore" between them, are not. A last box that never closes is not an answer.
    """
    contents: list[str] = []
    end = len(text)  # where the box found last begins
    while True:
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            return contents
        command_end = start + (6 if text.startswith("\\boxed", start) else 5)
        opening = command_end
        while opening < end and text[opening].isspace():
            opening += 1
        if opening < end and text[opening] == "{":
            closing = _matching_brace(text, opening, end)
            content = None if closing is None else text[opening + 1 : closing].strip()
        else:  # "\boxed 5"
            word = text[opening : min(end, opening + 50)].split(maxsplit=1)
            content, closing = (word[0].strip("$.") if word else None), opening + (len(word[0]) if word else 0)
        if contents:
            if content is None or not _belongs_together(text[closing + 1 : end]):
                return contents
            if content != contents[0]:
                contents.insert(0, content)
        elif content:
            contents.append(content)
        end = start


def _belongs_together(between: str) -> bool:
    if len(between) >= 70 or _CONCLUSION.search(between):
        return False
    return len(between) < 10 or _SEPARATOR.search(between) is not None


def tagged_answer(text: str) -> str | None:
    """Content of the last <answer>...</answer>."""
    start = text.rfind("<answer>")
    if start < 0:
        return None
    end = text.find("</answer>", start)
    return None if end < 0 else text[start + len("<answer>") : end].strip()


def last_line(text: str) -> str | None:
    """The last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
