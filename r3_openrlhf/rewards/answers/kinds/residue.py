r"""Residue classes: "x \equiv 3 \pmod{10}", "x = 10k + 3" for a free integer k, "3 mod 10"."""

from __future__ import annotations

import re

from r3_openrlhf.rewards.answers.kinds import Kind
from r3_openrlhf.rewards.answers.patterns import phrases
from r3_openrlhf.rewards.answers.plain import plain

Residue = tuple[str, int, frozenset[int]]  # the name of the number, if it is said, modulus, classes

_MODULUS = r"\(?,?\s*\\?[pb]?mod(?:ulo)?\s*\{?\s*(\d+)\s*\}?\s*\)?"
_CLASS = re.compile(rf"(?:([a-z])\s*(?:\\equiv|≡|=)\s*)?((?:-?\d+(?:\s*(?:,|\\text|or|and|\\pm)\s*)*)+?)\s*{_MODULUS}")
_LINEAR = re.compile(r"(?:([a-z])\s*=\s*)?(?:(-?\d*)([jklmnt])\s*([+-]\s*\d+)?|(-?\d+)\s*([+-]\s*\d*)([jklmnt]))")
_SAYS = phrases("residue")


def _read(text: str, problem: str) -> Residue | None:
    text = _SAYS["domain"].sub("", plain(text.replace("≡", r"\equiv").replace("∈", r"\in")))
    if len(text) > 120:
        return None
    if said := _CLASS.fullmatch(text):
        modulus = int(said[3])
        if not 0 < modulus < 10**12:
            return None
        return said[1] or "", modulus, frozenset(int(number) % modulus for number in re.findall(r"-?\d+", said[2]))
    if said := _LINEAR.fullmatch(text.replace(r"\cdot", "")):
        factor = (said[2] if said[3] else (said[6] or "").replace(" ", "")) or "1"
        factor = factor + "1" if factor in ("+", "-", "") else factor
        shift = (said[4] or "0") if said[3] else said[5]
        modulus = abs(int(factor))
        return (
            (said[1] or "", modulus, frozenset([int(shift.replace(" ", "")) % modulus]))
            if 0 < modulus < 10**12
            else None
        )
    return None


def _recognise(reference: str, problem: str) -> bool:
    if re.search(r"\\?[pb]?mod(?![a-z])", reference):
        return True
    said = _LINEAR.fullmatch(_SAYS["domain"].sub("", plain(reference)))
    letter = (said[3] or said[7]) if said else None
    if said is None or letter is None or letter == said[1] or not (said[1] or _SAYS["all_asked"].search(problem)):
        return False
    return re.search(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])", problem) is None


def _same(said: Residue, wanted: Residue) -> bool:
    return said[1:] == wanted[1:] and (said[0] == wanted[0] or "" in (said[0], wanted[0]))


KIND = Kind(name="residue class", rank=25, recognise=_recognise, read=_read, same=_same)
