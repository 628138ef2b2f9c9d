r"""A cell of the answer column -> accepted answers: after "####", in JSON, in the last \boxed{}."""

import ast
import html
import json
import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.table import Numeral, parse_json

AS_IT_IS = "as it is"
AFTER_MARKS = "cut at ####"
OF_JSON = "taken from a JSON text"
OF_PYTHON = "taken from what Python prints"
AFTER_WORDS = "cut after 'answer is'"
LAST_BOX = "the last \\boxed{}"
INTEGERS = "whole numbers written as 1.0"
PRINTED = "freed of tags, notes and types"

# GSM8K: the last line of a worked solution
_MARKED_LINE = re.compile(r"(?:^|\n)[ \t]*#{4}[ \t]*([^\n]+?)\s*\Z")
# "First ... The answer is: 72": MetaMath, chains of thought; the last sentence alone
_STATED = re.compile(
    r"(?:^|[.!?]\s|\n)\s*(?:so |thus |therefore,? |hence,? )?(?:the )?(?:final )?answer(?: is:?|:)"
    r"\s*((?:(?![.!?]\s)[^\n]){1,80}?)\.?\s*\Z",
    re.IGNORECASE,
)
MOST_OF_PYTHON = 10_000  # characters of a text that is read as what Python prints
# an escaped brace, as in \left\{, opens nothing
_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
_WHOLE_FLOAT = re.compile(r"-?\d+\.0")
# "\boxed{3}$ or $\boxed{5}": less text than this between two boxes, and they may be one answer
_BESIDE = 40
# verl's name for the answer in a JSON text; a text with one key has no other
_JSON_KEY = "ground_truth"


# <b>100</b>: what a browser shows is the answer; a power and an index stay one
_TAGS = re.compile(
    r"<(?P<tag>[A-Za-z]\w*)(?:\s[^<>]*)?>(?P<text>[^<>]*)</(?P=tag)>|<(?:br|hr)\s*/?>",
    re.IGNORECASE,
)
_OF_TAG = {"sup": "^{%s}", "sub": "_{%s}"}
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z]\w{1,7});", re.IGNORECASE)
# np.int64(100), jnp.array(3), array([3], dtype=int64), Decimal('3.5'), mpf('3.5'): a number as Python prints it
_TYPED = re.compile(
    r"\b(?:[a-z]\w*(?:\.\w+)+|u?int\d*|float\d*|mpf|Integer|Float|Decimal|[Aa]rray|tensor)"
    r"\(\s*(?P<text>[^()]*?)\s*(?:,\s*\w+=[^()]*)?\)"
)
_FRACTION = re.compile(r"\b(?:Fraction|Rational|mpq)\((-?\d+), (\d+)\)")
# "9 (apples)", "9 [in all]", "7 pens (total)", "100 (one hundred)", not "3 (mod 5)" or "2 (x + y)"
_NOTE = re.compile(
    r"([^\w\s()]*\d[\d.,/%]*(?: [^\W\d_]{3,})?)\s*[([](?!mod\b)(?:[^\W\d_]{3,}|[^\W\d_]+ [^\W\d_]{2,}|\d+ [^\W\d_]{3,})"
    r"(?:[ ,.'-]+\w+)*\.?[)\]](?P<unit>(?: [^\W\d_]{3,})?)"
)
_MARKED_UP = re.compile(r"(\*{1,3}|__|`{1,3})([^*`]+)\1")
_LONG_DECIMAL = re.compile(r"(?<![\w.])-?\d*\.\d{2,}(?:e-?\d+)?(?![\w.])")
FLOAT32_DIGITS = 7


class NoAnswer(DataError):
    """A row without answer: "proof", a solution that lacks the others' mark, no tests."""


def references_of(cell: object, *, key: str) -> tuple[list[str], str]:
    r"""Return the accepted answers in a cell, and the form of their text (a constant of this file).

    A list has several answers. A JSON text is opened: its value, or of `ground_truth`. In a text
    whose last line begins with "####" the rest counts, of one with \boxed{} the last box.

    Args:
        key: the column, for the sentence.

    Raises:
        DataError: why the cell holds no answer.
    """
    if isinstance(cell, dict):
        name = _JSON_KEY if _JSON_KEY in cell else next(iter(cell)) if len(cell) == 1 else None
        if name is None:
            keys = ", ".join(map(str, list(cell)[:10]))
            raise DataError(
                f"the answer ({key}) has the keys {keys}; name the one with the answer, as in {key}.KEY"
            )
        return references_of(cell[name], key=f"{key}.{name}")[0], OF_JSON
    if isinstance(cell, list):
        if not all(
            item is None or isinstance(item, str | int | float | Decimal | date)
            for item in cell
        ):
            raise DataError(
                f"the answer ({key}) is neither a text nor a number, nor a list of them"
            )
        found = [references_of(item, key=key) for item in cell if not _is_empty(item)]
        forms = [form for texts, form in found if texts]
        return [text for texts, _ in found for text in texts], forms[0] if forms else AS_IT_IS
    text = text_of(cell, key=key)
    if (opened := _opened(text)) is not None:
        return references_of(opened[0], key=key)[0], opened[1]
    if marked := _MARKED_LINE.search(text):
        return [marked[1]], AFTER_MARKS
    if boxes := _boxes(text):
        start, _, content = boxes[-1]
        if (
            len(boxes) > 1
            and boxes[-2][2] != content
            and "\n" not in (between := text[boxes[-2][1] : start])
        ):
            if len(between) < _BESIDE:
                raise DataError(
                    f"the answer ({key}) has two boxes side by side, and which of them counts is not said"
                )
        return [content], LAST_BOX
    if stated := _STATED.search(text):
        return [stated[1]], AFTER_WORDS
    return ([text], AS_IT_IS) if text.strip() else ([], AS_IT_IS)


def as_meant(text: str) -> str:
    """Remove from a reference what a program put around it: tags and entities of HTML, types
    that Python prints, a note in brackets after a number, digits beyond those of a float32."""
    for _ in range(8):  # tags in tags
        text = _TAGS.sub(
            lambda found: (
                _OF_TAG.get((found["tag"] or "").lower(), "%s") % (found["text"] or " ")
            ),
            text,
        )
    text = _ENTITY.sub(lambda found: html.unescape(found[0]), text)
    text = _TYPED.sub(lambda found: found["text"].strip("'\""), _FRACTION.sub(r"\1/\2", text))
    text = _LONG_DECIMAL.sub(lambda found: _without_float32(found[0]), text)
    if marked_up := _MARKED_UP.fullmatch(text.strip()):
        text = marked_up[2]
    note = _NOTE.fullmatch(text.strip())
    return note[1] + note["unit"] if note else text


def _without_float32(text: str) -> str:
    """0.10000000149011612 is the float32 next to 0.1, whose digits end after the seventh."""
    is_short = len(text.partition("e")[0].strip("-0.").replace(".", "")) <= FLOAT32_DIGITS + 2
    if is_short or repr(float(text)) != text or np.float32(text) != np.float64(text):
        return text
    return format(Decimal(f"{float(text):.{FLOAT32_DIGITS}g}"), "f")


def cells_of(cell: object, *, key: str) -> list[str]:
    """Return the accepted answers of a cell as written, for a user's grader. DataError as above."""
    items = cell if isinstance(cell, list) else [cell]
    texts = [
        json.dumps(item, ensure_ascii=False)
        if isinstance(item, dict)
        else text_of(item, key=key)
        for item in items
    ]
    return [text for text in texts if text.strip()]


def without_float_tails(columns: Sequence[list[str]]) -> bool:
    """Undo that every answer of a file became a float (pandas does that if one is missing). Two
    rows at least: a single 2.0 may be what somebody wrote."""
    texts = [text for texts in columns for text in texts]
    return len(texts) > 1 and all(map(_WHOLE_FLOAT.fullmatch, texts))


def text_of(cell: object, *, key: str, what: str = "answer") -> str:
    """Return a text or a number as it is written, of a column also a list of them; "" for None
    and NaN. DataError: neither of them."""
    if _is_empty(cell):
        return ""
    if isinstance(cell, list) and what == "column":
        return ", ".join(text_of(one, key=key, what=what) for one in cell)
    if not isinstance(cell, str | int | float | Decimal | date):
        raise DataError(
            f"the {what} ({key}) is neither a text nor a number, nor a list of them"
        )
    return format(cell, "f") if isinstance(cell, Decimal) else str(cell)


def _is_empty(cell: object) -> bool:
    return cell is None or cell != cell  # a NaN is not equal to itself


def _opened(text: str) -> tuple[Any, str] | None:
    """Return the object of a JSON text, or its list of texts, and its form; [1, 2] stays a text."""
    stripped = text.strip()
    if not (stripped[:1] in ("{", "[") and ('"' in stripped or "'" in stripped)):
        return None
    form = OF_JSON
    try:
        value = parse_json(stripped)
    except ValueError:
        if len(stripped) > MOST_OF_PYTHON:
            return None
        try:
            value, form = ast.literal_eval(stripped), OF_PYTHON
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None
    is_answers = (
        isinstance(value, list) and value and all(isinstance(item, str) for item in value)
    )
    is_answers = is_answers and not any(isinstance(item, Numeral) for item in value)
    return (value, form) if is_answers or (isinstance(value, dict) and value) else None


def _boxes(text: str) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    # a box, or None for any other brace
    opened: list[re.Match[str] | None] = []
    open_boxes = 0
    for token in _BRACES.finditer(text):
        if token[0].startswith("\\") and token["box"] is None:
            continue
        if token[0] != "}":
            opened.append(token if token["box"] else None)
            open_boxes += token["box"] is not None
        elif opened and (box := opened.pop()) is not None:
            open_boxes -= 1
            if open_boxes:
                continue
            content = text[box.end() : token.start()].strip()
            if content:
                found.append((box.start(), token.end(), content))
    return found
