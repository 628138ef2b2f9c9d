"""Yes or no, true or false: "Yes, it is", "The statement is true."."""

from __future__ import annotations

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.plain import plain

_YES = frozenset(("yes", "true", "correct", "yeah"))
_SAID = re.compile(
    r"(?i)(?:(?:so|therefore|thus|hence|then),? )*"
    r"(?:(?:the|this|that|it|its|answer|statement|claim|proposition|sentence|conjecture|result|assertion|argument|hypothesis) ?){0,4}"
    r"(?:(?:is|are|must be|was|:) ?)?(?P<negated>not |n't )?(?P<word>yes|no|true|false|correct|incorrect|yeah|nope)\b(?P<more>.*)"
)
_UNSURE = re.compile(
    r"(?i)\b(?:or|maybe|perhaps|sometimes|depends|unsure|not sure|and no|and yes|but|yes|no|true|false|neither|partly)\b"
)


def _read(text: str, problem: str) -> bool | None:
    said = _SAID.fullmatch(plain(text))
    if said is None or _UNSURE.search(said["more"]) or said["more"][:1].isalpha():
        return None
    more = said["more"].strip()
    if more and (said["word"].lower() == "no" and more[0] not in ",.;:!-(" or len(more) > 200):
        return None  # "no solution"
    return (said["word"].lower() in _YES) != bool(said["negated"])


def _find(sentence: str, problem: str) -> list[str]:
    last = re.split(r"(?<=[.!?])\s+|\n", plain(sentence))[-1]
    return [last.removeprefix("Answer: ")]


KIND = Kind(
    name="yes or no",
    rank=30,
    recognise=lambda reference, problem: plain(reference).lower() in ("yes", "no", "true", "false"),
    read=_read,
    find=_find,
)
