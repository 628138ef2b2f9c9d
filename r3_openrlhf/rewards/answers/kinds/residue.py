r"""Residue classes: "x \equiv 3 \pmod{10}", "x = 10k + 3" for a free integer k, "3 mod 10"."""

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.text.arithmetic import exact_value
from r3_openrlhf.rewards.answers.text.patterns import phrases
from r3_openrlhf.rewards.answers.text.plain import plain

# the name of the number, if it is said, modulus, classes
Residue = tuple[str, int, frozenset[int]]

_MODULUS = r"\(?,?\s*\\?[pb]?mod(?:ulo)?\s*\{?\s*(\d+)\s*\}?\s*\)?"
_CLASS = re.compile(
    rf"(?:([a-z])\s*(?:\\equiv|≡|=)\s*)?((?:-?\d+(?:\s*(?:,|\\text|or|and|\\pm)\s*)*)+?)\s*{_MODULUS}"
)
_SAYS = phrases("residue")


def _read(text: str, problem: str) -> Residue | None:
    text = _SAYS["domain"].sub("", plain(text.replace("≡", r"\equiv").replace("∈", r"\in")))
    if len(text) > 120:
        return None
    if said := _CLASS.fullmatch(text):
        modulus = int(said[3])
        if not 0 < modulus < 10**12:
            return None
        return (
            said[1] or "",
            modulus,
            frozenset(int(number) % modulus for number in re.findall(r"-?\d+", said[2])),
        )
    name, _, formula = text.rpartition("=")
    letter = re.search("[jklmnt]", formula)
    if letter is None or not re.fullmatch("[a-z]?", name.strip()):
        return None
    values = [exact_value(formula.replace(letter[0], f"({i})")) for i in range(3)]
    whole = [int(value) for value in values if value is not None and value.denominator == 1]
    if (
        len(whole) < 3
        or whole[2] - whole[1] != whole[1] - whole[0]
        or not 0 < abs(whole[1] - whole[0]) < 10**12
    ):
        return None  # not linear
    modulus = abs(whole[1] - whole[0])
    return name.strip(), modulus, frozenset([whole[0] % modulus])


def _recognise(reference: str, problem: str) -> bool:
    if re.search(r"\\?[pb]?mod(?![a-z])", reference):
        return True
    name, _, formula = _SAYS["domain"].sub("", plain(reference)).rpartition("=")
    letter = re.search("[jklmnt]", formula)
    if (
        letter is None
        or letter[0] == name.strip()
        or not (name or _SAYS["all_asked"].search(problem))
    ):
        return False
    return re.search(rf"(?<![a-zA-Z\\]){letter[0]}(?![a-zA-Z])", problem) is None


def _same(said: Residue, wanted: Residue) -> bool:
    return said[1:] == wanted[1:] and (said[0] == wanted[0] or "" in (said[0], wanted[0]))


KIND = Kind(name="residue class", recognise=_recognise, read=_read, same=_same)
