"""Answers that are letters of options: "(D)", "D. inner wall", "The answer is D", "A and C"."""

from __future__ import annotations

import re

TEXT_COMMAND = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|textnormal|mathrm|mathbf)\s*\{([^{}]*)\}")
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
_ONE = re.compile(r"\(?([A-J])\)?")
_LETTERS = re.compile(r"[A-J]{2,}")


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


def compare_choices(left: str, right: str) -> bool | None:
    """Whether two texts without spaces choose the same; None: reference or answer is no choice."""
    choice = _CHOICE.fullmatch(right)
    if choice is not None and (chosen := _CHOICE.match(left)):
        rest = left[chosen.end() :]
        others = {letter for found in _OTHER.findall(rest) for letter in found if letter.isalpha()}
        if _LABELS.fullmatch(left) or chosen[0][-1] == "." and _NEXT_LABEL.search(rest):
            others.add("")
        return chosen[1] == choice[1] and others <= {choice[1]}
    choices = _listed(left), _listed(right)
    if choices[1] and "," in right and (all(choices) or _LETTERS.fullmatch(left)):  # "A and C"
        return (choices[0] or set(left)) == choices[1]
    return None


def _listed(normalised: str) -> set[str]:
    """The letters of "(A),(C)"; none when it is anything else."""
    parts = normalised.split(",")
    found = [match[1] for part in parts if (match := _ONE.fullmatch(part))]
    return set(found) if len(found) == len(parts) else set()
