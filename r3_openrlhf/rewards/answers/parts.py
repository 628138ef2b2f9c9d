"""Two answers of several parts, compared part by part: (1.7321, 2) and (\\sqrt{3}, 2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from r3_openrlhf.rewards.answers.plain import TEXT_COMMAND

MAX_PARTS = 9
_OPENING, _CLOSING = "({[", ")}]"
_BARE = {"{}": ""}  # a set and a bare list are the same
_MATRIX = re.compile(r"\\begin\s*\{[pb]?matrix\}([^{}]*(?:\{[^{}]*\}[^{}]*)*?)\\end\s*\{[pb]?matrix\}")
_CASES = re.compile(r"(?:[a-zA-Z]\([a-zA-Z]\)\s*=\s*)?\\begin\s*\{cases\}(.*)\\end\s*\{cases\}", re.DOTALL)
_IF = re.compile(r"\\text\s*\{\s*(?:,?\s*(?:if|when|for|where)\b)?|(?<=[a-z ])\}")
_WORD = re.compile(r"(?<![\\a-z])[a-z]{2,}")
_GROUPS = re.compile(r";(?:\\ )?|\\text\s*\{\s*or\s*\}|\bor\b|\\\\")
_BOTH_SIGNS = re.compile(r"(?:[a-z]\s*=\s*)?\\pm(?![a-zA-Z])([^,;{}]*(?:\{[^{}]*\}[^,;{}]*)*)")


def agree_part_by_part(answer: str, gold: str, agree: Callable[[str, str], bool]) -> bool:
    """Tell whether both are tuples, intervals, sets or lists with the same brackets and parts that
    agree, in order.

    The parts of a set or of a bare list may come in any order."""
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
    return match(a[1], b[1], agree)


def decide_by_label(answer: str, gold: str, agree: Callable[[str, str], bool]) -> bool | None:
    """Tell whether the same is said of the same: cases, "9 red, 4 blue", "x=1, y=8". None: no labels."""
    rows, wanted = _rows(answer), _rows(gold)
    if rows and wanted:
        both_say_it = any("otherwise" in row[1] for row in rows) and any("otherwise" in row[1] for row in wanted)
        return match(rows, wanted, lambda a, b: _same_condition(a[1], b[1], agree, both_say_it) and agree(a[0], b[0]))
    groups = [[split_parts(group) for group in _GROUPS.split(text)] for text in (answer, gold)]
    if "=" in gold and all(len(found) > 1 and all(group and len(group[1]) > 1 for group in found) for found in groups):
        sides = [[", ".join(group[1]) for group in found if group] for found in groups]
        return match(sides[0], sides[1], lambda a, b: agree_part_by_part(a, b, agree))
    labelled = [dict(map(_label, found[1])) if (found := split_parts(text)) else {} for text in (answer, gold)]
    if len(labelled[1]) < 2 or labelled[0].keys() != labelled[1].keys() or "" in labelled[1]:
        return None
    return all(agree(labelled[0][label], value) for label, value in labelled[1].items())


def match(some: Sequence, others: Sequence, agree: Callable) -> bool:
    """Tell whether each of some goes with another one of the others, and none is left."""
    left = list(others)
    for one in some:
        partner = next((i for i, other in enumerate(left) if agree(one, other)), None)
        if partner is None:
            return False
        del left[partner]
    return not left


def _rows(text: str) -> list[tuple[str, str]] | None:
    """(value, condition) of each row of cases, those without a condition of their own last."""
    cases = _CASES.fullmatch(text.strip())
    rows = [row.split("&") for row in cases[1].split("\\\\") if row.strip()] if cases else []
    if not rows or any(len(row) != 2 for row in rows) or len(rows) > MAX_PARTS:
        return None
    pairs = [(value.strip(" ,;~"), _IF.sub("", condition).strip(" ,;.~")) for value, condition in rows]
    return sorted(pairs, key=lambda pair: "otherwise" in pair[1])


def _same_condition(a: str, b: str, agree: Callable[[str, str], bool], both_say_it: bool) -> bool:
    """both_say_it: "otherwise" is on both sides; on one alone it is what is left of the others."""
    if "otherwise" in a + b:
        return not both_say_it or ("otherwise" in a) == ("otherwise" in b)
    words = [_WORD.findall(text.lower()) for text in (a, b)]
    return words[0] == words[1] if any(words) else agree(a, b)


def _label(part: str) -> tuple[str, str]:
    """The words of a part, and what it is without them."""
    words = " ".join(TEXT_COMMAND.findall(part) + re.findall(r"\\(max|min)(?![a-zA-Z])", part))
    bare = re.sub(r"\\(?:max|min)(?![a-zA-Z])", "", TEXT_COMMAND.sub("", part))
    return " ".join(words.split()).strip(" :=").lower(), re.sub(r"\\[,;: ]", "", bare).strip(" :=~")


def split_parts(text: str) -> tuple[str, list[str]] | None:
    """Brackets and top-level parts of a text in one spelling; None: unmatched brackets."""
    if matrix := _MATRIX.fullmatch(text.strip()):
        rows = [[cell.strip() for cell in row.split("&")] for row in matrix[1].split("\\\\") if row.strip()]
        return f"matrix of {list(map(len, rows))}", [cell for row in rows for cell in row]
    if signs := _BOTH_SIGNS.fullmatch(text.strip()):
        return "", [signs[1].strip(), f"-({signs[1].strip()})"]
    text = text.strip().replace("\\left", "").replace("\\right", "").replace("\\{", "{").replace("\\}", "}").strip()
    if text[:1] in (*_OPENING,) and text[-1:] in (*_CLOSING,) and (inside := top_level(text[1:-1])):
        return text[0] + text[-1], inside  # intervals may mix their kinds
    parts = top_level(text)
    return ("", parts) if parts else None


def top_level(text: str) -> list[str] | None:
    """Parts between commas that are in no brackets; None: unmatched brackets, or an empty part."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return None
        if character in ",;" and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts if depth == 0 and all(parts) else None
