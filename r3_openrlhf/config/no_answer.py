"""Texts with which public data sets say, in the column of the answers, that there is none."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_name("no_answer.toml").read_text(encoding="utf-8"))
_SAYS_SO = re.compile("|".join(_TABLE["says_so"]))
# not ">": the end of "<NA>"
_FRAMES = re.compile(r"\\(?:text|mathrm|textbf|mbox|boxed)\s*\{([^{}]*)\}|[\s$\"'*\[\]()<{}!]+")


def says_no_answer(reference: str) -> bool:
    r"""Tell whether this is a note that there is no answer, such as "proof" or "\text{see solution}"."""
    text = reference if len(reference) <= 80 else ""
    while (inside := _FRAMES.sub(r"\1", text)) != text:
        text = inside
    text = text.casefold()
    return (
        _SAYS_SO.fullmatch(text) is not None
        or _SAYS_SO.fullmatch(text.removesuffix(".")) is not None
    )
