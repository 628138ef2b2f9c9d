"""Lists whose order the problem asks for: "from least to greatest", "respectively", "sort"."""

import re

from r3_openrlhf.rewards.answers.kinds import DENIES, Kind, subject_left_out
from r3_openrlhf.rewards.answers.text.parts import split_parts, without_head
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import TEXT_COMMAND, plain

_ORDER = phrases("order")
_CHAIN = re.compile(r"\s*(?:<|>|\\(?:lt|gt|le|ge|leq|geq)(?![a-zA-Z])|≤|≥)\s*")
_NUMBERED = re.compile(r"\s*(\d{1,2})[.)]\s+(.+)")
_RESPECTIVELY = re.compile(r",?\s*(?:respectively|in (?:this|that) order)\.?$")
_NAMED = re.compile(r"\s*([a-z])\s*=")
_SET_OF_ONE = re.compile(r"^\s*\\?\{\s*(\([^(){}]*\))\s*\\?\}\s*$")
_SEPARATOR = re.compile(
    r"\s*;\s*|\s*\\q?quad(?![a-zA-Z])\s*|\s*,?\s*(?:\\text\s*\{\s*(?:and|then)\s*\}|(?<![a-zA-Z\\])(?:and|then)(?![a-zA-Z]))\s*,?\s*|\s*(?:\\to|→|->|\\rightarrow)\s*"
)


def _read(text: str, problem: str) -> list[str] | None:
    text = without_head(TEXT_COMMAND.sub(r"\1", text.strip().strip("$`").rstrip(".")))
    text = _SET_OF_ONE.sub(r"\1", text)
    if DENIES.search(text):
        return None
    if (links := _CHAIN.split(text))[1:]:
        falls = re.search(r">|\\g|≥", text) is not None
        return links if falls == (_ORDER["down"].search(problem) is not None) else links[::-1]
    parts = split_parts(_SEPARATOR.sub(",", text))
    if parts is None or parts[0] not in ("", "()", "{}", "[]"):
        return None
    values = parts[1]
    named = [_NAMED.match(value) for value in values]
    if len({name[1] for name in named if name}) == len(values):  # "y=2, x=-1" as (x,y)
        values = [value.partition("=")[2].strip() for value in sorted(values)]
    if len(values) == 1 and re.fullmatch(r"[A-Z]{2,10}|[a-z]{2,10}", plain(text)):
        return list(plain(text))
    return values if len(values) > 1 else None


def _recognise(reference: str, problem: str) -> bool:
    if (
        not _ORDER["asked"].search(problem)
        or _ORDER["not_asked"].search(problem)
        or re.search(r"\\(?:cup|cap|in|begin)(?![a-zA-Z])", reference)
    ):
        return False
    if _CHAIN.search(reference):
        return re.search(r"(?i)order|sort|arrange|rank", problem) is not None
    parts = split_parts(_SEPARATOR.sub(",", reference.strip().strip("$")))
    return parts is not None and len(parts[1]) > 1


def _same(said: list[str], wanted: list[str]) -> bool:
    # math-verify, which no reader needs
    from r3_openrlhf.rewards.answers.formulas.algebra import (
        equal_texts,
    )

    return len(said) == len(wanted) and all(map(equal_texts, said, wanted))


def _find(sentence: str, problem: str) -> list[str]:
    """Return the numbered lines at the end of a text, or what its last sentence says of several names."""
    lines = [_NUMBERED.fullmatch(line) for line in sentence.strip().splitlines()]
    numbered = [line for line in lines if line]
    first = max((i for i, line in enumerate(numbered) if line[1] == "1"), default=None)
    if first is not None and lines[-1] and len(numbered) > first + 1:
        return [", ".join(line[2].strip(" *.") for line in numbered[first:])]
    return [_RESPECTIVELY.sub("", text) for text in subject_left_out(sentence)]


KIND = Kind(
    name="ordered list",
    recognise=_recognise,
    read=_read,
    same=_same,
    find=_find,
    describe=lambda values: f"{len(values)} values, order counts",
)
