r"""Letters of any name: integers of a family ("x=\frac{\pi}{6}+k\pi"), constants, exponents."""

import re
from collections.abc import Iterator
from itertools import permutations

MAX_PARAMETERS = 3
# A, e and x of "Ae^{2x}"; commands are passed over
_LETTER = re.compile(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z ]{3,}\})?|([a-zA-Z](?:_(?:\{\d\}|\d))?)")
_INTEGERS = frozenset("jklmn")  # integers by custom; t, s are real parameters
_ANGLE = re.compile(r"\\(?:pi|circ)(?![a-zA-Z])")
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_EXPONENT = re.compile(r"\^\s*(?:\{[^{}]*\}|\w)")


def renamed(answer: str, gold: str, problem: str) -> Iterator[str]:
    """Yield the answer with its free letters named as in the reference; nothing where a letter is
    not free.

    Free are letters that only one side has, in equal number, and that the problem does not know:
    capitals and C_1 in a sum, k, m, n of "x = ...", and exponents where there are several."""
    if ("=" in answer) != ("=" in gold):
        answer, gold = answer.rpartition("=")[2], gold.rpartition("=")[2]
    mine, theirs = _letters(answer), _letters(gold)
    own, wanted = sorted(mine - theirs), sorted(theirs - mine)
    if (
        not own
        or len(own) != len(wanted)
        or len(own) > MAX_PARAMETERS
        or set(own + wanted) & _letters(_WORDS.sub(" ", problem))
    ):
        return
    if not (_are_free(answer, own) and _are_free(gold, wanted)):
        return
    for names in permutations(wanted):
        to = dict(zip(own, names, strict=True))
        yield _LETTER.sub(lambda match, to=to: to.get(match[0], match[0]), answer)  # type: ignore[misc]


def _are_free(text: str, letters: list[str]) -> bool:
    if all(letter[0].isupper() or len(letter) > 1 for letter in letters):
        return "+" in text or "e^" in text
    if all(letter in _INTEGERS for letter in letters):
        return (
            _ANGLE.search(text) is not None
            if "=" not in text
            else not {text.partition("=")[0].strip()} & set(letters)
        )
    return len(letters) > 1 and not set(letters) & _letters(_EXPONENT.sub(" ", text))


def _letters(text: str) -> set[str]:
    return set(_LETTER.findall(text)) - {"", "e", "d"}
