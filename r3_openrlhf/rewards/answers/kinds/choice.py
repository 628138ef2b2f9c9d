"""Letters of options: "(D)", "D. inner wall", "The answer is D", "It is A, not B", "A and C", or an option's text."""

import re
from functools import lru_cache

from r3_openrlhf.rewards.answers.kinds import DENIES, Kind
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import TEXT_COMMAND, normal_words, plain

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
_OR_A_NUMBER = re.compile(r"\d\s*\bor\b\s*\$?[-+]?\d")
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
    if _is_only_letters(words):
        return frozenset(words.upper())
    letter = letter_of(text, problem)
    if letter:
        return frozenset(letter)
    words = _SAYS["denied"].sub(" ", words)
    words = _SAYS["small"].sub(lambda match: match[0].upper(), words)
    words = _SAYS["article"].sub(lambda match: match[0].lower(), words)
    first = _first_letter(words)
    if first is None or not _may_precede(words[: first.start()]):
        return None
    after = words[first.end() :]
    letters = _letters_named(first.re, words)
    other = letter_of(after.lstrip(".): "), problem)
    if len(letters) == 1 and other and other not in letters:
        return None  # "(C) it decreases", where that is (A)
    if len(letters) > 1:
        is_open = _OR.search(words)
    else:
        is_open = _OR.match(after.lstrip(") ")) or _OR_A_NUMBER.search(after)
    if is_open:
        letters.add("or")
    return frozenset(letters)


def _is_only_letters(words: str) -> bool:
    """Tell whether a text is a few different letters of options: "A", "b", "ACD"; not "cd"."""
    if not words.isalpha() or len(words) > 5 or len(set(words)) < len(words):
        return False
    letters = words.upper() if len(words) == 1 else words
    return set(letters) <= set(_LETTERS)


def _first_letter(words: str) -> re.Match | None:
    """Return where the first letter of an option is, by the pattern that finds it first."""
    matches = [pattern.search(words) for pattern in (_MARKED, _BARE)]
    return min(filter(None, matches), key=re.Match.start, default=None)


def _may_precede(before: str) -> bool:
    """Tell whether a letter that follows this text is an answer: nothing, or "the answer is"."""
    if before.endswith("{"):
        return False
    return not before.strip(" (*_") or _SAYS["announced"].search(before) is not None


def _letters_named(pattern: re.Pattern, words: str) -> set[str]:
    """Return every letter that a pattern finds in a text."""
    letters: set[str] = set()
    for match in pattern.finditer(words):
        letters.update(filter(None, match.groups()))
    return letters


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
    sentences = [_REASON.sub("", text) for text in _SENTENCES.split(sentence.strip()) if text]
    for text in reversed(sentences):
        if _read(text, problem):
            return [text]
    if not sentences or DENIES.search(sentences[-1]):
        return []
    return re.findall(r"\b(?:is|be|:) (\S.*)$", sentences[-1])


KIND = Kind(
    name="choice",
    recognise=lambda reference, problem: (
        _IS_REFERENCE.fullmatch(plain(reference)) is not None
        or re.fullmatch("[A-J]{2,6}", reference) is not None
        and set(reference) <= options_of(problem).keys()
    ),
    read=_read,
    find=_find,
    describe=lambda letters: ", ".join(sorted(letters)),
)
