"""Numbers in words: "twenty-one", "twelfth", "two thirds", "half a dozen", "minus seven", "三分之二",
"3.2万"."""

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
_CHINESE = re.compile(
    "(负?)((?:[零〇一二两三四五六七八九十百千万亿]|[0-9]{1,15}(?:\\.[0-9]{1,9})?){1,20})"
)
_CHINESE_TOKEN = re.compile("[0-9.]+|.")
# 3.2万 and 5千万 in a text, not the 5千 of 5千米; digits of which nothing is left over
_SCALED = re.compile(
    r"(?<![\d.,])(?:\d{1,15}(?:\.\d{1,9})?(?:[万亿]|百(?!分)|千(?![米克瓦卡升帕赫焦伏安]))+)++(?![\d.])"
)
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
    found = _CHINESE.fullmatch(text)
    if found is None or text.isascii():
        return None
    total = section = digit = Fraction(0)  # of the whole, below a 万, below a 十
    for sign in _CHINESE_TOKEN.findall(found[2]):
        value = Fraction(2 if sign == "两" else _numeral(sign))
        if value < 10 or sign[0].isascii():
            digit = 10 * digit + value  # 二〇二四
        elif value < 10_000:
            section += (digit or 1) * value
            digit = Fraction(0)
        else:
            above = total if value > total else Fraction(0)  # 2万亿, but 3亿2千万
            total += (above + section + digit or 1) * value - above
            section = digit = Fraction(0)
    value = total + section + digit
    return -value if found[1] else value


def _numeral(sign: str) -> Fraction:
    return Fraction(sign) if sign[0].isascii() else Fraction(int(unicodedata.numeric(sign)))


def with_scales_computed(text: str) -> str:
    """Write 32000 for 3.2万, wherever it is in a text."""

    def computed(found: re.Match) -> str:
        value = _chinese(found[0])
        return found[0] if value is None or value.denominator > 1 else str(value)

    return _SCALED.sub(computed, text)


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
