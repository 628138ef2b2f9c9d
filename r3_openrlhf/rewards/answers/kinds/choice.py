"""Letters of options: "(D)", "D. inner wall", "The answer is D", "It is A, not B", "A and C", or an option's text."""

import re
from functools import lru_cache

from r3_openrlhf.rewards.answers.kinds import DENIES, Kind
from r3_openrlhf.rewards.answers.patterns import phrases
from r3_openrlhf.rewards.answers.plain import TEXT_COMMAND, normal_words, plain

_SAYS = phrases("choice")
_LETTERS = "ABCDEFGHIJ"
_MARKED = re.compile(
    r"(?<![a-zA-Z'’\\])(?:\(([A-J])\)|([A-J])[).:](?![a-z\d])|(?:(?<=or )|(?<=and )|(?<=[.,;:] )|(?<=\.\.))([A-J])$)"
)
_BARE = re.compile(
    r"(?<![\w'’\\^=+*/<>])(?<![=+*/^<>] )\(?([A-J])(?![a-zA-Z0-9'’])(?!\s*[=+^_*/<>\\|!])"
)
_SENTENCES = re.compile(r"(?<=[.!?])(?<![^a-zA-Z][A-J]\.)\s+|\n(?!\s*(?:or|and|but|not)\b)|。")
_REASON = re.compile(r"(?<=[\w)])(?:,|:| —| -)? (?:since|because|as|for|while|whereas) .*$")
_OR = re.compile(r"\bor\b|\boder\b|/|或")
_IS_REFERENCE = re.compile(
    r"\(?[A-J]\)?\.?|\(?[A-J](?:\)|[.:])\s+\S.*|\([A-J]\)\s*\S.*|(?i:option|choice) \(?[A-J]\)?|\(?[A-J]\)?(?:(?:, ?|,? and )\(?[A-J]\)?)+",
    re.DOTALL,
)
_OPTION = re.compile(
    r"(?:^|(?<=\s)|(?<=\$))\(?([A-J])[).:]\s*(.*?)(?=\s*(?:(?<=[\s$])\(?[A-J][).:]\s|\([A-J]\)|$))",
    re.DOTALL,
)


@lru_cache(maxsize=1024)
def options_of(problem: str) -> dict[str, str]:
    """Return the options that a problem lists, by letter: "(A) 3 (B) 4", one per line or in a row."""
    options: dict[str, str] = {}
    for letter, text in _OPTION.findall(TEXT_COMMAND.sub(r"\1", problem)):
        if letter == _LETTERS[len(options) : len(options) + 1]:
            options[letter] = normal_words(text)
    return options if len(options) > 1 else {}


def _read(text: str, problem: str) -> frozenset[str] | None:
    """Read the letters that a text names and does not deny; with "or" where it does not decide."""
    words = plain(text).strip("{}[]\\ ")
    if (
        words.isalpha()
        and len(set(words)) == len(words) < 6
        and set(words if words[1:] else words.upper()) <= set(_LETTERS)
    ):
        return frozenset(words.upper())
    if letter := letter_of(text, problem):
        return frozenset(letter)
    words = _SAYS["small"].sub(lambda said: said[0].upper(), _SAYS["denied"].sub(" ", words))
    words = _SAYS["article"].sub(lambda said: said[0].lower(), words)
    named = [match for pattern in (_MARKED, _BARE) if (match := pattern.search(words))]
    first = min(named, key=re.Match.start, default=None)
    before = words[: first.start()] if first else ""
    if (
        first is None
        or before[-1:] == "{"
        or before.strip(" (*_")
        and not _SAYS["announced"].search(before)
    ):
        return None
    letters = {
        letter for match in first.re.finditer(words) for letter in match.groups() if letter
    }
    other = letter_of(words[first.end() :].lstrip(".): "), problem)
    if len(letters) == 1 and other and other not in letters:
        return None  # "(C) it decreases", where that is (A)
    is_open = (
        _OR.search(words) if len(letters) > 1 else _OR.match(words[first.end() :].lstrip(") "))
    )
    return frozenset(letters | ({"or"} if is_open else set()))


def letter_of(text: str, problem: str) -> str | None:
    """Return the letter of the one option of a problem that a text is; None: it is none."""
    same = [
        letter
        for letter, option in options_of(problem).items()
        if option and option == normal_words(text)
    ]
    return same[0] if len(same) == 1 else None


def _find(sentence: str, problem: str) -> list[str]:
    """Return the last sentence that names a letter, or what the last one says of an option's text."""
    sentences = [text for text in _SENTENCES.split(sentence.strip()) if text]
    sentences = [_REASON.sub("", text) for text in sentences]
    if named := next((text for text in reversed(sentences) if _read(text, problem)), None):
        return [named]
    is_denied = not sentences or DENIES.search(sentences[-1])
    return [] if is_denied else re.findall(r"\b(?:is|be|:) (\S.*)$", sentences[-1])


KIND = Kind(
    name="choice",
    rank=35,
    recognise=lambda reference, problem: (
        _IS_REFERENCE.fullmatch(plain(reference)) is not None
        or re.fullmatch("[A-J]{2,6}", reference) is not None
        and set(reference) <= options_of(problem).keys()
    ),
    read=_read,
    find=_find,
    describe=lambda letters: ", ".join(sorted(letters)),
)
