"""Ratios: "3:2", "3 to 2", "6:4"; a fraction says the same of two."""

import re
from fractions import Fraction

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.arithmetic import exact_value
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import plain

# shares of the whole; the parts, where they may not be reduced
Ratio = tuple[list[Fraction], list[Fraction]]

_PART = r"[\d.,/]+"
_RATIO = re.compile(rf"(?:(?:the )?ratio (?:is )?)?{_PART}(?: ?: ?{_PART}| to {_PART})+")
_CLOCK = phrases("clock")
_MAY_BE_A_TIME = re.compile(r"\d{1,2}:[0-5]\d")
_NAMES = re.compile(
    r"\bratio of (?:the )?(?:number of )?([a-z]+) to (?:the )?(?:number of )?([a-z]+)"
)
_FRACTION = re.compile(r"\\[dt]?frac ?(?:\{(\d+)\}|(\d)) ?(?:\{(\d+)\}|(\d))|(\d+) ?/ ?(\d+)")


def _read(text: str, problem: str) -> Ratio | None:
    text = plain(text).rpartition("=")[2].strip()
    if fraction := _FRACTION.fullmatch(text):
        text = " : ".join(part for part in fraction.groups() if part)
    if not _RATIO.fullmatch(text):
        return None
    parts = [
        exact_value(part)
        for part in re.split(r" ?: ?| to ", text.removeprefix("the ").removeprefix("ratio "))
    ]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not sum(known):
        return None
    return [part / sum(known) for part in known], known if _MAY_BE_A_TIME.fullmatch(
        text
    ) and not _CLOCK["ratio_asked"].search(problem) else []


def _same(said: Ratio, wanted: Ratio) -> bool:
    """Equal as ratios; where the problem asks for none, as they are written: 4:30 may be a time."""
    return said[0] == wanted[0] and (said[1] == wanted[1] or not (said[1] and wanted[1]))


def _find(sentence: str, problem: str) -> list[str]:
    """Return the ratios in a sentence, turned round where it names the two the other way round than the problem."""
    found = re.findall(rf"{_PART} ?: ?{_PART}(?: ?: ?{_PART})*|\d+ to \d+", plain(sentence))
    named, asked = (_NAMES.search(text.lower()) for text in (sentence, problem))
    is_turned = named and asked and named.groups() == asked.groups()[::-1]
    return (
        [" : ".join(re.split(r" ?: ?| to ", text)[::-1]) for text in found]
        if is_turned
        else found
    )


KIND = Kind(
    name="ratio",
    recognise=lambda reference, problem: (
        re.fullmatch(rf"{_PART}(?: ?: ?{_PART})+", plain(reference)) is not None
    ),
    read=_read,
    same=_same,
    find=_find,
)
