"""Find the columns of problem and answer, values at dotted keys, and messages -> turns."""

import re
import string
from collections.abc import Sequence
from typing import Any

from r3_openrlhf.method.errors import DataError, quoted
from r3_openrlhf.problems.table import Numeral, listed, parse_json

# The names that public data sets have (docs/works-with.md). The first group of which a file has one
# decides; a file with two of a group must be told.
PROBLEM_COLUMNS = (("problem",), ("question", "prompt"), ("messages",))
ANSWER_COLUMNS = (
    ("answer",),
    ("reward_model.ground_truth", "ground_truth", "final_answer", "expected_answer"),
    ("solution",),
)
# ShareGPT's names of the roles, and its keys
_ROLES = {"human": "user", "gpt": "assistant"}
_PRINTED_MESSAGES = re.compile(r"\s*\[\{'(?:role|content|from|value)': ")
A_TEXT = "as it is"
LAST_TURN = "last user turn of messages"
ANSWERED = "last user turn of messages, without the turns after it"


def chosen_column(
    columns: Sequence[str],
    *,
    key: str | None,
    groups: Sequence[Sequence[str]],
    option: str,
    path: str,
) -> str:
    """`key`, or for None the one column of a usual name. DataError lists the columns."""
    names = f"its columns are {listed(columns)}"
    if key is not None:
        if root_of(key, columns) not in columns:
            raise DataError(
                f"data.path {path} has no column {quoted(key)} (data.{option}); {names}"
            )
        return key
    for group in groups:
        there = [name for name in group if root_of(name, columns) in columns]
        if len(there) == 1:
            return there[0]
        if there:
            raise DataError(
                f"data.path {path} has the columns {' and '.join(there)}; say which one with data.{option}=COLUMN"
            )
    what = option.removesuffix("_key")
    raise DataError(
        f"data.path {path} has no column that is known to hold the {what}; {names}; name it with data.{option}=COLUMN"
    )


def root_of(key: str, columns: Sequence[str] = ()) -> str:
    """Return the column of a dotted key."""
    return key if key in columns else key.partition(".")[0]


def value_at(row: dict[str, Any], key: str) -> Any:
    """Return the value at "column.key.0": structures, lists, JSON texts. DataError: no such key."""
    if key in row:
        return row[key]
    root, *parts = key.split(".")
    value = row.get(root)
    for part in parts:
        if value is None:
            return None
        if isinstance(value, str):
            value = _parsed(value)
        if isinstance(value, list) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            there = (
                f"only {', '.join(map(str, list(value)[:10]))}"
                if isinstance(value, dict)
                else "and is no structure"
            )
            raise DataError(f"{root} has no {quoted(part)} for {key}, {there}")
    return value


def lettered(cell: object) -> str:
    """Return options as lines "(A) ...": a list, {label: [], text: []}, {A: text}, [{key: A, value: text}], or a JSON
    text of one. "": they are none, or have letters."""
    options = _parsed(cell) if isinstance(cell, str) else cell
    labels, texts = _labels_and_texts(options)
    if not isinstance(texts, list) or not labels:
        return ""
    if not all(isinstance(text, str) for text in texts):
        return ""
    lines = list(zip(labels, texts, strict=False))
    if all(re.match(rf"\(?{label}\s*[).:]", text) for label, text in lines):
        return "\n".join(texts)
    return "\n".join(f"({label}) {text}" for label, text in lines)


def _labels_and_texts(options: Any) -> tuple[Any, Any]:
    """Return (labels, texts) of options as they are written; neither is checked."""
    if _are_pairs(options):
        # the shorter of two texts is the label
        options = dict(sorted(map(str, pair.values()), key=len) for pair in options)
    if not isinstance(options, dict):
        return string.ascii_uppercase, options
    if {type(text) for text in options.values()} <= {str, Numeral}:
        return list(options), list(options.values())
    return options.get("label"), options.get("text")


def _are_pairs(options: object) -> bool:
    """Return if these are a list of objects with two cells each: a label and a text."""
    if not isinstance(options, list) or not options:
        return False
    return all(isinstance(option, dict) and len(option) == 2 for option in options)


def turns_of(cell: object, *, key: str) -> tuple[list[dict[str, str]], str, str]:
    """Return (turns before it, the last user turn, its form) of the problem column.

    Raises DataError: no text, no messages of text, or none of the user.
    """
    if isinstance(cell, str) and not isinstance(cell, Numeral):
        messages = _messages_in(cell, key)
        if messages is None and cell.strip():
            return [], cell, A_TEXT
        cell = messages
    if not isinstance(cell, list) or not cell:
        raise DataError(f"the problem ({key}) is empty or not a text")
    turns = [_turn(message, key) for message in cell]
    of_user = [place for place, turn in enumerate(turns) if turn["role"] == "user"]
    if not of_user or not turns[of_user[-1]]["content"].strip():
        raise DataError(f"the problem ({key}) has no turn of the user")
    last = of_user[-1]
    form = LAST_TURN if last == len(turns) - 1 else ANSWERED
    return turns[:last], turns[last]["content"], form


def _messages_in(text: str, key: str) -> list[Any] | None:
    """Return the list that a JSON text holds; None: it is another text.

    DataError: it is what Python prints of messages."""
    messages = _parsed(text) if text.lstrip().startswith("[{") else None
    if messages is None and _PRINTED_MESSAGES.match(text):
        raise DataError(
            f"the problem ({key}) is what Python prints of messages; write them as JSON (json.dumps)"
        )
    return messages if isinstance(messages, list) else None


def _turn(message: object, key: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(
            f"the problem ({key}) is a list, but not one of messages with role and content"
        )
    role, content = message.get("role", message.get("from")), content_of(message)
    if content is None and isinstance(message.get("content", message.get("value")), list):
        raise DataError(f"the problem ({key}) has a message that is not only text")
    if not isinstance(role, str) or not isinstance(content, str):
        raise DataError(f"the problem ({key}) has a message without role and content")
    return {"role": _ROLES.get(role, role), "content": content}


def content_of(message: dict[str, Any]) -> str | None:
    """Return the text of a message, of all parts where it is a list of them; None: it is not only text."""
    content = message.get("content", message.get("value"))
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in content
    ]
    if not all(isinstance(text, str) for text in texts):
        return None
    return "".join(map(str, texts))


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None
