"""Numbers in words: "twenty-one", "twelfth", "two thirds", "half a dozen", "minus seven", "三分之二"."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MAX_WORDS = 12
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {word: 10 * value for value, word in enumerate(_TENS, 2)}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_CHINESE = re.compile("[零〇一二两三四五六七八九十百千]{1,20}")
_IRREGULAR = {
    "first": "one", "second": "two", "third": "three", "fifth": "five", "eighth": "eight", "ninth": "nine", "twelfth": "twelve",
}  # fmt: skip
_WORD = re.compile(r"[a-z]+")
_PARTS = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}


def value_in_words(text: str) -> Fraction | None:
    """Return the number that the words say, also an ordinal; None when they say anything else."""
    if not text.isascii():
        return _chinese(text.strip())
    if text.lower().endswith(" and a half"):
        value = value_in_words(text[: -len(" and a half")])
        return None if value is None or value < 0 else value + Fraction(1, 2)
    words = [word for word in _WORD.findall(text.lower()) if word != "and"]
    if not words or len(words) > MAX_WORDS or re.search(r"[^a-zA-Z\s-]", text):
        return None
    sign = -1 if words[0] in ("minus", "negative") else 1
    words = words[1:] if sign < 0 else words
    if words[:2] == ["half", "a"] and words[2:] and words[2] in _SCALES:
        return sign * Fraction(_SCALES[words[2]], 2) if not words[3:] else None
    words = words[1:] if words[0] == "a" and words[1:] and words[1] in _SCALES else words
    words = ["one", *words] if words[0] in _SCALES else words  # "a dozen"
    said = _fraction(words) or _whole(words, ordinal=True)
    return None if said is None else sign * Fraction(said)


def is_number_word(word: str) -> bool:
    """Tell whether a word says a number or part: "twelve", "sevenths"; not "seconds", "quarters"."""
    if word.removesuffix("s") in ("second", "quarter"):
        return False
    stems = (word, word.removesuffix("s"), word.removesuffix("es"))
    return any(
        stem in _SMALL or stem in _SCALES or stem.removesuffix("th") in _SCALES or _cardinal(stem) is not None
        for stem in stems
    ) or word in ("half", "halves")


def _fraction(words: list[str]) -> Fraction | None:
    """ "half", "two thirds", "three quarters", "one half"; not "third", which is an ordinal."""
    if words == ["half"]:
        return Fraction(1, 2)
    if len(words) < 2:
        return None
    top = 1 if words[:-1] in (["a"], ["an"]) else _whole(words[:-1], ordinal=False)
    bottom = _PARTS.get(words[-1]) or _SMALL.get(_cardinal(words[-1].removesuffix("s")) or "")
    if not top or bottom is None or bottom < 2 or (top == 1) == (words[-1].endswith("s") or words[-1] == "halves"):
        return None
    if top >= 20 and not words[-1].endswith("s"):
        return None  # "twenty first" is 21st
    return Fraction(top, bottom)


def _cardinal(word: str) -> str | None:
    """Return the cardinal word of an ordinal: "twelve" of "twelfth"."""
    word = _IRREGULAR.get(word, word)
    for stem in (word, word.removesuffix("th"), word.removesuffix("ieth") + "y"):
        if stem in _SMALL and (word.endswith("th") or word in _IRREGULAR.values()):
            return stem
    return None


def _chinese(text: str) -> Fraction | None:
    """Read 三百二十 as 320, 三分之二 as 2/3; None for anything else."""
    bottom, is_part, top = text.partition("分之")
    if is_part:
        parts = _chinese(top), _chinese(bottom)
        return parts[0] / parts[1] if parts[0] and parts[1] else None
    if not _CHINESE.fullmatch(text):
        return None
    total = digit = 0
    for value in (2 if sign == "两" else int(unicodedata.numeric(sign)) for sign in text):
        total, digit = (total, value) if value < 10 else (total + (digit or 1) * value, 0)
    return Fraction(total + digit)


def _whole(words: list[str], *, ordinal: bool) -> int | None:
    """Return the value of cardinal words, the last of which may be an ordinal."""
    if ordinal and words and (last := _cardinal(words[-1])) and words[-1] not in _SMALL:
        words = [*words[:-1], last]
    total = group = 0
    previous = ""
    for word in words:
        if word in _SMALL:
            value = _SMALL[word]
            if previous in _SMALL and not (_SMALL[previous] >= 20 and 0 < value < 10):
                return None  # "two three" is no number
            group += value
        elif word == "hundred" and previous in _UNITS[1:]:
            group *= 100
        elif word in _SCALES and word != "hundred" and group and (not total or total % (_SCALES[word] * 1000) == 0):
            total, group = total + group * _SCALES[word], 0
        else:
            return None
        previous = word
    return total + group if words else None
