"""Yes or no, true or false: "Yes, it is", "The statement is true."."""

from __future__ import annotations

import random
import re

from r3_openrlhf.rewards.answers.kinds import Kind, Siblings
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


def _siblings(rng: random.Random) -> Siblings:
    right = rng.choice([True, False])
    words = [["No", "False"], ["Yes", "True"]][right]
    others = [["No", "False"], ["Yes", "True"]][not right]
    equal = [
        form % word
        for word in words
        for form in ("%s", r"\text{%s}", r"\textbf{%s}", r"\text{%s.}", r"\text{%s, it is}")
    ]
    equal[4], equal[9] = rf"\text{{{words[0]}, of course}}", rf"\text{{The statement is {words[1].lower()}}}"
    unequal = [rf"\text{{{word}}}" for word in others] + [
        r"\text{Yes or no}",
        "1",
        r"\text{maybe}",
        rf"\text{{not {words[1].lower()}}}",
    ]
    return Siblings("Is it so?", rng.choice(words), equal, unequal)


KIND = Kind(
    name="yes or no",
    rank=30,
    recognise=lambda reference, problem: plain(reference).lower() in ("yes", "no", "true", "false"),
    read=_read,
    find=_find,
    siblings=_siblings,
)
