"""Two answers of several parts, compared part by part: (1.7321, 2) and (\\sqrt{3}, 2)."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_PARTS = 9
_OPENING, _CLOSING = "({[", ")}]"
_BARE = {"{}": ""}  # a set and a bare list are the same
_MATRIX = re.compile(r"\\begin\s*\{[pbv]?matrix\}([^{}]*(?:\{[^{}]*\}[^{}]*)*?)\\end\s*\{[pbv]?matrix\}")
_BOTH_SIGNS = re.compile(r"(?:[a-z]\s*=\s*)?\\pm(?![a-zA-Z])([^,;{}]*(?:\{[^{}]*\}[^,;{}]*)*)")


def agree_part_by_part(answer: str, gold: str, agree: Callable[[str, str], bool]) -> bool:
    """Whether both are tuples, intervals, sets or lists with the same brackets and parts that agree, in order.

    The parts of a set or of a bare list may come in any order.
    """
    a, b = split_parts(answer), split_parts(gold)
    if (
        a is None
        or b is None
        or (_BARE.get(a[0], a[0]) != _BARE.get(b[0], b[0]))
        or len(a[1]) != len(b[1])
        or not 1 < len(a[1]) <= MAX_PARTS
    ):
        return False
    if a[0] not in ("", "{}"):
        return all(map(agree, a[1], b[1]))
    left = list(b[1])
    for part in a[1]:
        match = next((other for other in left if agree(part, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def split_parts(text: str) -> tuple[str, list[str]] | None:
    """Brackets and top-level parts of a text in one spelling; None when its brackets do not match."""
    if matrix := _MATRIX.fullmatch(text.strip()):
        rows = [[cell.strip() for cell in row.split("&")] for row in matrix[1].split("\\\\") if row.strip()]
        return f"matrix of {list(map(len, rows))}", [cell for row in rows for cell in row]
    if signs := _BOTH_SIGNS.fullmatch(text.strip()):
        return "", [signs[1].strip(), f"-({signs[1].strip()})"]
    text = text.strip().replace("\\left", "").replace("\\right", "").replace("\\{", "{").replace("\\}", "}").strip()
    brackets = ""
    if text[:1] and text[0] in _OPENING and text[-1:] in (*_CLOSING,) and _closes(text) == len(text) - 1:
        brackets, text = text[0] + text[-1], text[1:-1]
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return None
        if character in ",;" and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return (brackets, parts) if depth == 0 and all(parts) else None


def _closes(text: str) -> int:
    """Position of the bracket that closes the first one; intervals may mix their kinds."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0:
            return position
    return -1
