"""Prose with formulas: "odd $n$", "any integer greater than $e^{90}$". Only its own words are right."""

import re

from r3_openrlhf.rewards.answers.amounts.comparison import number
from r3_openrlhf.rewards.answers.amounts.units import unit_of
from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.reading.scanner import last_statement
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import plain

IN_MATH = re.compile(
    r"\$\$(.+?)\$\$|(?<!\\)\$([^$]+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_A_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_CONNECTIVE = re.compile(r"(?:and|or)", re.IGNORECASE)
# "The value of x is $5$": what is said before the last formula, without taking anything back
_SAYS = phrases("prose")
MAX_CHARS = 300
MAX_FREE_ORDER = 3  # words and letters of "odd n", which is "n odd"


def _recognise(reference: str, problem: str) -> bool:
    """Tell whether words between formulas say more than "and", "or", a unit, or what the last is."""
    if (
        len(reference) > MAX_CHARS
        or "$" not in reference
        and "\\(" not in reference
        or not IN_MATH.search(reference)
    ):
        return False
    if last_statement(reference) is not None:
        return False
    if all(map(_CONNECTIVE.fullmatch, _A_WORD.findall(IN_MATH.sub(" ", reference)))):
        return False
    bare = IN_MATH.sub(
        lambda match: next(group for group in match.groups() if group), reference
    )
    if number(bare) is not None or unit_of(bare) is not None:
        return False
    *_, last = IN_MATH.finditer(reference)
    before = IN_MATH.sub("x", reference[: last.start()])
    return (
        _SAYS["label"].fullmatch(before) is None
        or _A_WORD.search(reference[last.end() :]) is not None
    )


def _read(text: str, problem: str) -> list[str] | None:
    words = re.sub(
        r"(?i)\b(?:the|a|an|all)\b|\\[a-z]*(?:frac)(?=\{)",
        lambda w: "\\frac" if "frac" in w[0] else " ",
        plain(text),
    )
    return (
        re.findall(
            r"[a-z]{2,}|[^\s{}]",
            words.lower().replace("\\leq", "\\le").replace("\\geq", "\\ge"),
        )
        or None
    )


def _same(said: list[str], wanted: list[str]) -> bool:
    return said == wanted or len(wanted) <= MAX_FREE_ORDER and sorted(said) == sorted(wanted)


KIND = Kind(
    name="prose",
    recognise=_recognise,
    read=_read,
    same=_same,
)
