"""What keys and words mean: docs/metrics.md and docs/glossary.md, of which this folder has links."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_ROW = re.compile(r"^\| (?P<first>.+?) \| (?P<second>.+) \|$", re.MULTILINE)
_NAME = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


@cache
def meanings() -> dict[str, str]:
    """Key of metrics.jsonl -> what it is. A name without a "/" has the path of the one before it, as the page writes them."""
    found = {}
    for row in _rows("metrics.md"):
        path = ""
        for name in _NAME.findall(row["first"]):
            key = name if "/" in name else path + name
            path = key[: key.rfind("/") + 1]
            found[key] = _plain(row["second"])
    return found


@cache
def glossary() -> dict[str, str]:
    """Word -> what it means here."""
    return {
        word.strip(): _plain(row["second"]) for row in _rows("glossary.md") for word in _plain(row["first"]).split(",")
    }


def _rows(name: str) -> list[re.Match[str]]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [row for row in _ROW.finditer(text) if not row["first"].startswith(("---", "Key", "Word"))]


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).replace("`", "").replace("\\|", "|")
