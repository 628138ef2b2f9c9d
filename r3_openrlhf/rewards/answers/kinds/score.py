"""Scores of a match: "3-1", "3:1", "3 to 1"; sets as "6-4, 6-3"."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import plain

_PAIR = r"\d{1,3} ?(?:-|:|to) ?\d{1,3}"
_SCORE = re.compile(
    rf"(?i)(?:the (?:final )?score (?:is|was) )?{_PAIR}(?:[,;]? (?:and )?{_PAIR}){{0,6}}"
)
_REFERENCE = re.compile(r"\d{1,3} ?[-:] ?\d{1,3}(?:[,;] ?\d{1,3} ?[-:] ?\d{1,3})*")
_SCORES = phrases("score")


def _read(text: str, problem: str) -> list[int] | None:
    text = plain(text)
    return (
        [int(number) for number in re.findall(r"\d+", text)] if _SCORE.fullmatch(text) else None
    )


KIND = Kind(
    name="score",
    recognise=lambda reference, problem: bool(
        _SCORES["asked"].search(problem) and _REFERENCE.fullmatch(plain(reference))
    ),
    read=_read,
    find=lambda sentence, problem: re.findall(_PAIR, plain(sentence)),
)
