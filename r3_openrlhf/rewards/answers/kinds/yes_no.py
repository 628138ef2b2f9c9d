"""Yes or no, true or false: "Yes, it is", "The statement is true."."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind, last_sentence
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import plain

_YES = frozenset(
    ["yes", "true", "correct", "yeah", "sí", "si", "oui", "ja", "да", "sim", "是", "对", "正确"]
)
_VERDICT = phrases("yes_no")


def _read(text: str, problem: str) -> bool | None:
    said = _VERDICT["said"].fullmatch(plain(text))
    if said is None or _VERDICT["unsure"].search(said["more"]) or said["more"][:1].isalpha():
        return None
    more = said["more"].strip()
    if more and (said["word"].lower() == "no" and more[0] not in ",.;:!-(" or len(more) > 200):
        return None  # "no solution"
    return (said["word"].lower() in _YES) != bool(said["negated"])


def _find(sentence: str, problem: str) -> list[str]:
    """Return the last sentence, or the word before all of them: "Yes. Since f(-x) = f(x), it is even"."""
    last, first = last_sentence(plain(sentence)), re.match(r"\W*(\w+)[.!\n]", sentence)
    return last if _read(last[0], problem) is not None or first is None else [first[1]]


KIND = Kind(
    name="yes or no",
    recognise=lambda reference, problem: (
        plain(reference).lower() in ("yes", "no", "true", "false")
    ),
    read=_read,
    find=_find,
)
