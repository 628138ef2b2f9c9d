"""Texts with which public data sets say, in the column of the answers, that there is none."""

from __future__ import annotations

import re

# NuminaMath: "proof", "notfound"; pandas: "nan", "<NA>"; people: "N/A", "see solution", "not available". Words that may be an
# answer ("none", "undefined", "unknown", "NA") are not among them.
_SAYS_SO = re.compile(
    r"proof|prove it|omitted|null|nan|n/a|<na>|tbd|todo|no (?:answer|solution given)|answer (?:omitted|missing)|missing"
    r"|not? ?(?:found|available|applicable|provided|given)"
    r"|see (?:the |my |full |attached )?(?:solution|proof|text|above|below|explanation|answer|figure|video|image|link)s?",
    re.IGNORECASE,
)
_FRAME = re.compile(r"\\(?:text|mathrm|mbox|boxed)\s*\{([^{}]*)\}")


def says_no_answer(reference: str) -> bool:
    r"""Is this a note that there is no answer, such as "proof" or "\text{see solution}", and no answer?"""
    text = reference if len(reference) <= 80 else ""
    while (inside := _FRAME.sub(r"\1", text)) != text:
        text = inside
    return _SAYS_SO.fullmatch(text.strip(" \t\r\n$.!()[]*\"'")) is not None
