"""Ranges of an amount: "10-15", "10 to 15 years", "between 20% and 30%", "[10, 15]", "10 ≤ x ≤ 15"."""

import re
from dataclasses import replace

from r3_openrlhf.rewards.answers.amounts.comparison import Number, number, numbers_agree
from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import plain

_AMOUNT = r"(?:\\?[$€£¥] ?)?\d[\d.,]{0,30}(?:/\d{1,9})?(?: ?\\?%)?(?: ?[^\W\d_]{1,15})?"
_LINK = r" ?(?:-{1,3}|–|—|~|～|\bto\b|至|到) ?"
_REFERENCE = re.compile(rf"({_AMOUNT}){_LINK}({_AMOUNT})")
_SPELLINGS = [
    re.compile(rf"(?:from |从)?({_AMOUNT}){_LINK}({_AMOUNT})"),
    re.compile(rf"between ({_AMOUNT}) and ({_AMOUNT})"),
    re.compile(rf"\[ ?({_AMOUNT}) ?, ?({_AMOUNT}) ?\]"),
    re.compile(rf"({_AMOUNT}) ?(?:<=|\\leq?) ?[a-zA-Z] ?(?:<=|\\leq?) ?({_AMOUNT})"),
]
_CLOCK = phrases("clock")


def _read(text: str, problem: str) -> tuple[Number, Number] | None:
    """Return both ends; a unit or percent sign after the second is the first one's, too."""
    text = plain(text).replace("≤", "\\le ")
    found = next(filter(None, (spelling.fullmatch(text) for spelling in _SPELLINGS)), None)
    low, high = map(number, found.groups()) if found else (None, None)
    if low is None or high is None:
        return None
    if low.unit is None and not low.percent:
        low = replace(low, unit=high.unit, percent=high.percent)
    return (low, high) if low.value < high.value else None


KIND = Kind(
    name="range",
    recognise=lambda reference, problem: (
        _REFERENCE.fullmatch(plain(reference)) is not None
        and _CLOCK["ratio_asked"].search(problem) is None
    ),
    read=_read,
    same=lambda said, wanted: all(map(numbers_agree, said, wanted)),
    find=lambda sentence, problem: [
        found[0].strip() for found in _SPELLINGS[0].finditer(plain(sentence))
    ][-1:],
)
