"""Numbers in words: "twenty-one", "twelfth", "two thirds", "half a dozen", "minus seven", "三分之二"."""

import re
import unicodedata
from fractions import Fraction

MAX_WORDS = 12
_UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, 2)
}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_CHINESE = re.compile("[零〇一二两三四五六七八九十百千]{1,20}")
_IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
# ordinal -> cardinal
_ORDINALS = {
    _IRREGULAR.get(word) or (f"{word[:-1]}ieth" if word.endswith("y") else f"{word}th"): word
    for word in (*_SMALL, *_SCALES)
}
_BELOW_100 = [
    *_UNITS,
    *(f"{tens} {unit}".removesuffix(" zero") for tens in _TENS for unit in _UNITS[:10]),
]
# "fifteen hundred seven" -> 1507
_BELOW_2000 = {name: value for value, name in enumerate(_BELOW_100)} | {
    f"{_UNITS[hundreds]} hundred {name}".removesuffix(" zero"): 100 * hundreds + value
    for hundreds in range(1, 20)
    for value, name in enumerate(_BELOW_100)
}
_WORD = re.compile(r"[a-z]+")
_NOT_IN_WORDS = re.compile(r"[^a-zA-Z\s-]")
_AND_A_HALF = " and a half"
_PARTS = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}


def value_in_words(text: str) -> Fraction | None:
    """Return the number that the words say, also an ordinal; None when they say anything else."""
    if not text.isascii():
        return _chinese(text.strip())
    if text.lower().endswith(_AND_A_HALF):
        whole = value_in_words(text[: -len(_AND_A_HALF)])
        if whole is None or whole < 0:
            return None
        return whole + Fraction(1, 2)
    words = [word for word in _WORD.findall(text.lower()) if word != "and"]
    sign = 1
    if words and words[0] in ("minus", "negative"):
        sign = -1
        words = words[1:]
    if not words or len(words) > MAX_WORDS or _NOT_IN_WORDS.search(text):
        return None
    value = _positive(words)
    return None if value is None else sign * value


def _positive(words: list[str]) -> Fraction | None:
    """Return the value of at least one word without a sign: "half a dozen", "a dozen", "twelfth"."""
    if words[:2] == ["half", "a"] and len(words) > 2 and words[2] in _SCALES:
        return Fraction(_SCALES[words[2]], 2) if len(words) == 3 else None
    if words[0] == "a" and len(words) > 1 and words[1] in _SCALES:
        words = words[1:]
    if words[0] in _SCALES:
        words = ["one", *words]
    fraction = _fraction(words)
    if fraction:
        return fraction
    last_as_cardinal = _ORDINALS.get(words[-1], words[-1])
    whole = _whole([*words[:-1], last_as_cardinal])
    return None if whole is None else Fraction(whole)


def is_number_word(word: str) -> bool:
    """Tell whether a word says a number or part: "twelve", "sevenths"; not "seconds", "quarters"."""
    if word.removesuffix("s") in ("second", "quarter"):
        return False
    stems = (word, word.removesuffix("s"), word.removesuffix("es"))
    return word in ("half", "halves") or any(
        stem in {*_SMALL, *_SCALES, *_ORDINALS} for stem in stems
    )


def _fraction(words: list[str]) -> Fraction | None:
    """ "half", "two thirds", "three quarters", "one half"; not "third", which is an ordinal."""
    if words == ["half"]:
        return Fraction(1, 2)
    if len(words) < 2:
        return None
    top = 1 if words[:-1] in (["a"], ["an"]) else _whole(words[:-1])
    bottom = _PARTS.get(words[-1]) or _whole([_ORDINALS.get(words[-1].removesuffix("s"), "")])
    is_plural = words[-1].endswith("s")
    if not top or bottom is None or bottom < 2 or (top == 1) == is_plural:
        return None
    return Fraction(top, bottom) if top < 20 or is_plural else None  # "twenty first" is 21st


def _chinese(text: str) -> Fraction | None:
    """Read 三百二十 as 320, 三分之二 as 2/3; None for anything else."""
    bottom, is_part, top = text.partition("分之")
    if is_part:
        parts = _chinese(top), _chinese(bottom)
        return parts[0] / parts[1] if parts[0] and parts[1] else None
    if not _CHINESE.fullmatch(text):
        return None
    total = digit = 0
    for sign in text:
        value = 2 if sign == "两" else int(unicodedata.numeric(sign))
        if value < 10:
            digit = value
        else:
            total += (digit or 1) * value
            digit = 0
    return Fraction(total + digit)


def _whole(words: list[str]) -> int | None:
    """Return the value of cardinal words."""
    for name in ("billion", "million", "thousand", "dozen"):
        if name in words:
            position = words.index(name)
            above = words[:position]
            below = words[position + 1 :]
            many = _whole(above or ["one"])
            few = _whole(below) if below else 0
            if not many or few is None or few >= _SCALES[name]:
                return None
            return many * _SCALES[name] + few
    return _BELOW_2000.get(" ".join(words) if words != ["hundred"] else "one hundred")
