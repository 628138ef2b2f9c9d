"""Numerals of a base: "1011_2", "(1011)_{two}", "1011 in base 2"; the base may be left out."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.number_words import value_in_words
from r3_openrlhf.rewards.answers.text.plain import plain

Numeral = tuple[str, int | None]  # digits, base

_NUMERAL = re.compile(
    r"(?i)(?P<open>[(\[]?)(?P<digits>[-+]?[0-9a-z]{1,60}(?:\.[0-9a-z]+)?)[)\]]?"
    r"(?:\s*_\s*\{?\s*(?P<base>\d{1,2}|[a-z]+)\s*\}?|,? (?:in )?base[ -](?P<said>\d{1,2}|[a-z]+)|\s*\(base (?P<also>\d{1,2})\))?"
)


def _read(text: str, problem: str) -> Numeral | None:
    text = re.sub("^0[xbo]", "", plain(text).rpartition("=")[2].strip())
    said = _NUMERAL.fullmatch(text.replace(",", "").replace("\\_", "_"))
    if said is None:
        return None
    base = said["base"] or said["said"] or said["also"]
    number = None if base is None else int(base) if base.isdecimal() else value_in_words(base)
    if base is not None and (number is None or not 2 <= number <= 36):
        return None
    digits = said["digits"].upper().lstrip("+0") or "0"
    is_numeral = number is None or all(
        int(digit, 36) < number for digit in re.sub(r"[-.]", "", digits)
    )
    return (digits, None if number is None else int(number)) if is_numeral else None


def _recognise(reference: str, problem: str) -> bool:
    said = _read(reference, problem)
    return (
        said is not None
        and said[1] is not None
        and (" base " in problem or re.search(r"\d", said[0]) is not None)
    )


def _same(said: Numeral, wanted: Numeral) -> bool:
    return said[0] == wanted[0] and said[1] in (None, wanted[1])


def _find(sentence: str, problem: str) -> list[str]:
    named = re.findall(r"\(?\b[0-9A-Za-z]+\)?_(?:\{[^{}]*\}|\w+)", sentence)[-1:]
    return (
        named
        or re.findall(r"\b(?:is|=|:)\s+(\S+)[.\s]*$", sentence)
        or [sentence.removeprefix("Answer: ")]
    )


KIND = Kind(name="base", recognise=_recognise, read=_read, same=_same, find=_find)
