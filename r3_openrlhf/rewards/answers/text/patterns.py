"""Patterns that are kept in tables (.toml), in verbose form and with pieces that have names.

A pattern of many words is slow, and most texts have none of them. So each pattern knows the literal texts of which
every match holds one: where a text has none of them, the pattern is not tried. They are computed from the pattern,
as in RE2's prefilter (https://swtch.com/~rsc/regexp/regexp4.html), and change no match."""

import re
import tomllib
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import product
from re import _parser as tree  # type: ignore[attr-defined]  # the parsed pattern; the library has no public door to it
from typing import Any

_PIECE = re.compile(r"<([A-Z_]+)>")
MAX_LITERALS = 64  # more of them cost as much as the pattern
_REPEATS = (tree.MAX_REPEAT, tree.MIN_REPEAT, tree.POSSESSIVE_REPEAT)
_OF_NO_WIDTH = (tree.AT, tree.ASSERT, tree.ASSERT_NOT)


TABLES = "r3_openrlhf.rewards.answers"  # the package that holds them


def table(name: str) -> dict:
    """Read a table of this room."""
    return tomllib.loads(files(TABLES).joinpath(name).read_text(encoding="utf-8"))


class Phrase:
    """A compiled pattern whose searches first ask if the text has one of its `literals` (empty: always search)."""

    __slots__ = ("_is_cased", "fullmatch", "literals", "match", "pattern", "split")

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self.match, self.fullmatch, self.split = pattern.match, pattern.fullmatch, pattern.split
        self._is_cased = not pattern.flags & re.IGNORECASE
        self.literals = literals_of(pattern)

    def may_match(self, text: str, start: int = 0) -> bool:
        """Tell whether the text has what every match has."""
        if not self.literals:
            return True
        part = text[start:] if start else text
        if not self._is_cased:
            part = part.lower()
        for literal in self.literals:
            if literal in part:
                return True
        return False

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        """Return the first match at or after `start`."""
        return self.pattern.search(text, start) if self.may_match(text, start) else None

    def finditer(self, text: str, start: int = 0) -> Iterator[re.Match[str]]:
        """Return the matches at or after `start`, one after another."""
        return self.pattern.finditer(text, start) if self.may_match(text, start) else iter(())

    def findall(self, text: str) -> list[Any]:
        """Return what the groups of every match hold."""
        return self.pattern.findall(text) if self.may_match(text) else []

    def sub(self, new: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Replace every match."""
        return self.pattern.sub(new, text) if self.may_match(text) else text


def literals_of(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return texts of which every match holds one, in small letters if case does not count; (): none are known."""
    parsed = tree.parse(pattern.pattern, pattern.flags & (re.VERBOSE | re.IGNORECASE))
    found = _held(parsed)
    if not pattern.flags & re.IGNORECASE:
        return tuple(sorted(found))
    return tuple(sorted({literal.lower() for literal in found}))


def _held(sequence: Any) -> set[str]:
    """Return the best set of texts of which every match of a sequence holds one; empty: there is none."""
    candidates: list[set[str]] = []
    running = {""}  # what the last operations spell out
    for operation, argument in sequence:
        spelled = _spelled(operation, argument)
        if spelled is not None and len(spelled) * len(running) <= MAX_LITERALS:
            running = {before + here for before, here in product(running, spelled)}
            continue
        candidates += [running, _held_inside(operation, argument)]
        running = {""}
    candidates.append(running)
    usable = [_shortest(texts) for texts in candidates if texts and "" not in texts]
    return max(usable, key=lambda texts: (min(map(len, texts)), -len(texts)), default=set())


def _shortest(texts: set[str]) -> set[str]:
    """Leave out what holds another one of them."""
    return {
        text for text in texts if not any(other in text for other in texts if other != text)
    }


def _held_inside(operation: Any, argument: Any) -> set[str]:
    """Return what every match of one operation holds."""
    if operation is tree.SUBPATTERN:
        return _held(argument[3])
    if operation is tree.ATOMIC_GROUP:
        return _held(argument)
    if operation in _REPEATS and argument[0] > 0:
        return _held(argument[2])
    if operation is not tree.BRANCH:
        return set()
    branches = [_held(branch) for branch in argument[1]]
    every = set().union(*branches)
    return every if all(branches) and len(every) <= MAX_LITERALS else set()


def _spelled(operation: Any, argument: Any) -> set[str] | None:
    """Return every text that an operation matches; None: too many to list."""
    if operation is tree.LITERAL:
        return {chr(argument)}
    if operation in _OF_NO_WIDTH:
        return {""}
    if operation is tree.IN:
        return _signs_of_class(argument)
    if operation is tree.BRANCH:
        return _spelled_by_branches(argument[1])
    if operation is tree.SUBPATTERN:
        return _spelled_by(argument[3])
    if operation is tree.ATOMIC_GROUP:
        return _spelled_by(argument)
    if operation in _REPEATS:
        return _spelled_once(*argument)
    return None


def _signs_of_class(members: Any) -> set[str] | None:
    """Return the signs of a class that lists them; None: it has ranges, or is what they are not."""
    if any(kind is not tree.LITERAL for kind, _ in members):
        return None
    return {chr(value) for _, value in members}


def _spelled_by_branches(branches: Any) -> set[str] | None:
    spelled: set[str] = set()
    for branch in branches:
        texts = _spelled_by(branch)
        if texts is None:
            return None
        spelled |= texts
    return spelled


def _spelled_once(least: int, most: int, sequence: Any) -> set[str] | None:
    """Return what stands once or, if `least` is 0, not at all; None: it may come again."""
    inside = _spelled_by(sequence) if most == 1 else None
    if inside is None or least > 0:
        return inside
    return inside | {""}


def _spelled_by(sequence: Any) -> set[str] | None:
    texts = {""}
    for operation, argument in sequence:
        spelled = _spelled(operation, argument)
        if spelled is None or len(spelled) * len(texts) > MAX_LITERALS:
            return None
        texts = {before + here for before, here in product(texts, spelled)}
    return texts


def compiled(pattern: str, pieces: dict[str, str], flags: int = 0) -> Phrase:
    """Compile a verbose pattern: no white space, "\\ " is a space, <NAME> is a piece, maybe of others."""
    while _PIECE.search(pattern):
        pattern = _PIECE.sub(lambda piece: pieces[piece[1]], pattern)
    return Phrase(re.compile(pattern, re.VERBOSE | flags))


_PHRASES = table("phrases.toml")


def phrases(section: str, flags: int = re.IGNORECASE) -> dict[str, Phrase]:
    """Compile the patterns of a section of phrases.toml, by name."""
    return {
        name: compiled(text, _PHRASES["pieces"], flags)
        for name, text in _PHRASES[section].items()
    }
