"""Letters of options: "(D)", "D. inner wall", "The answer is D", "A and C", or an option's text."""

from __future__ import annotations

import re
from functools import lru_cache

from r3_openrlhf.rewards.answers.kinds import Kind, last_sentence
from r3_openrlhf.rewards.answers.plain import TEXT_COMMAND, normal_words, plain

_SENTENCE = re.compile(
    r"(?i:(?:the )?(?:(?:correct|right|final|best) )*(?:answer|option|choice)?\s*(?:is|:)?\s*(?:option |choice |letter )?)"
    r"\(?(?P<letter>[A-J])(?P<mark>\s*[).:,]|\s*[-–—(]|(?![a-zA-Z]))\s*(?P<rest>.*)",
    re.DOTALL,
)
_REASON = re.compile(r",?\s*(?:because|since)\b")
_ANOTHER = re.compile(r"(?<![a-zA-Z])(?:[B-J](?![a-zA-Z])|A(?=[).:,;]|$))|^(?:or|and|not)\b")
_PROSE = re.compile(r"[a-zA-Z]{2}|[-+\\$]?\d[\d.,]*\s*(?:[a-zA-Z]*)$")

_CHOICE = re.compile(r"\(?([A-J])(?:\)|[.:]|$)")
_OTHER = re.compile(
    r"(?<![a-zA-Z0-9])\(?[A-J]\)|^[,;/.]{1,3}\(?[A-J](?![a-zA-Z])|(?<![a-zA-Z])[A-J][.:](?![a-zA-Z0-9])"
)
_LABELS = re.compile(r"(?:[A-J]\.){1,9}[A-J]\.?")  # "A.B.C."
_NEXT_LABEL = re.compile(r"(?<=[^a-zA-Z.])[A-J]\.(?!\d*$)|(?<=\d)[A-J]\.")  # "5B.7" after "A."
_JOINED = re.compile(r"\s*(?:,|;|&|/|\band\b|\bor\b)\s*")
_LETTER = re.compile(r"\(?([A-J])[).]?")
_IS_REFERENCE = re.compile(
    r"\(?[A-J]\)?\.?|\(?[A-J](?:\)|[.:])\s+\S.*|\([A-J]\)\s*\S.*|(?:option|choice) [A-J]|\(?[A-J]\)?(?:(?:, ?|,? and )\(?[A-J]\)?)+",
    re.DOTALL,
)
_OPTION = re.compile(
    r"(?:^|(?<=\s)|(?<=\$))\(?([A-J])[).:]\s*(.*?)(?=\s*(?:(?<=[\s$])\(?[A-J][).:]\s|\([A-J]\)|$))", re.DOTALL
)
_CONFIRMED = re.compile(r"\)?\**\s+is\s+(?:the\s+)?(?:correct|right|best|answer|only)\b")
_IS_ANSWER = re.compile(
    r"(?<![a-zA-Z])([A-J])\)?\**\s+is\s+(?:the\s+)?(?:(?:correct|right|best)\s+)?(?:answer|option|choice|correct|right)\b"
)
_SAID = re.compile(
    r"(?:\b(?:answer|choice|option|letter|select|choose|pick|selection)\b[^.\n]{0,40}?[\s:*_(\"“]|选)\(?([A-J])(?![a-zA-Z0-9'’])(?=([^\n]{0,200}))"
)


@lru_cache(maxsize=1024)
def options_of(problem: str) -> dict[str, str]:
    """The options that a problem lists, by letter: "(A) 3 (B) 4", one a line or in a row."""
    options: dict[str, str] = {}
    for letter, text in _OPTION.findall(TEXT_COMMAND.sub(r"\1", problem)):
        if letter == "ABCDEFGHIJ"[len(options)]:
            options[letter] = normal_words(text)
    return options if len(options) > 1 else {}


def stated_choice(text: str) -> str | None:
    """The letter of a text that names an option and what it is, or why: "D - inner wall"."""
    found = _SENTENCE.fullmatch(TEXT_COMMAND.sub(r"\1", text).strip(" $."))
    if found is None:
        return None
    rest = found["rest"].strip(" $.)")
    if not rest or _REASON.match(rest):
        return found["letter"]
    says_what = found["mark"] and _PROSE.match(rest) and not _ANOTHER.search(rest)
    return found["letter"] if says_what else None


def _read(text: str, problem: str) -> frozenset[str] | None:
    words = plain(text)
    if words.lower() in "abcdefghij" and len(words) == 1:
        return frozenset(words.upper())
    if letter := stated_choice(text) or _first_letter(words):
        return frozenset(letter)
    parts = _JOINED.split(words)
    letters = [match[1] for part in parts if (match := _LETTER.fullmatch(part))]
    if len(letters) == len(parts) > 0:
        return frozenset(letters) | ({"or"} if re.search(r"\bor\b|/", words) and len(set(letters)) > 1 else set())
    if re.fullmatch("[A-J]{2,5}", words) and len(set(words)) == len(words):
        return frozenset(words)
    same = [letter for letter, option in options_of(problem).items() if option and option == normal_words(text)]
    return frozenset(same) if len(same) == 1 else None


def _first_letter(words: str) -> str | None:
    """The letter at the beginning, where what follows it names no other one."""
    words = words.replace(" ", "")
    chosen = _CHOICE.match(words)
    if chosen is None:
        return None
    rest = words[chosen.end() :]
    others = {letter for found in _OTHER.findall(rest) for letter in found if letter.isalpha()}
    if _LABELS.fullmatch(words) or chosen[0][-1] == "." and _NEXT_LABEL.search(rest) or re.match(r"or|and|not", rest):
        return None
    return chosen[1] if others <= {chosen[1]} else None


def _find(sentence: str, problem: str) -> list[str]:
    said = [
        letter + ("" if _CONFIRMED.match(rest) else rest.partition(". ")[0])
        for letter, rest in _SAID.findall(sentence)
    ]
    said += _IS_ANSWER.findall(sentence)
    if said:
        return said[-1:]
    (last,) = last_sentence(sentence)
    return [last, *re.findall(r"\b(?:is|be|:) (\S.*)$", last)] if options_of(problem) else [last]


KIND = Kind(
    name="choice",
    rank=35,
    recognise=lambda reference, problem: _IS_REFERENCE.fullmatch(plain(reference)) is not None,
    read=_read,
    find=_find,
    describe=lambda letters: ", ".join(sorted(letters)),
)
