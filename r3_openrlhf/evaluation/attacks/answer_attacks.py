"""Attacks on comparisons of answers: texts that solve nothing, made from a problem and its reference.

Every text is wrong by construction, as far as the reference is right; a formula of the problem that has the reference's own form is left out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from r3_openrlhf.evaluation.attacks.texts import TEXTS

_SEGMENTS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_RELATION = re.compile(r"=|<|>|\\leq?(?![a-z])|\\geq?(?![a-z])|\\neq?(?![a-z])")
_INTEGER = re.compile(r"-?\d{1,15}")
_CHOICE = re.compile(r"\(?([A-J])\)?")
_TUPLE = re.compile(r"\(([^()\[\],]+),([^()\[\],]+)\)")
_WORD = re.compile(r"[A-Za-z]{2,20}")
_TEXTS = TEXTS["answers"]
_A_UNIT = re.compile(rf"(?<=[\d}}) ])({'|'.join(map(re.escape, _TEXTS['units']))})(?![a-zA-Z])")


def answer_attacks(problem: str, reference: str, task: str) -> Iterator[tuple[str, str]]:
    """(family, response) pairs for task "math" or "exact"; the same ones for the same problem."""
    rng = random.Random(problem + reference)
    families = _MATH | _BOTH if task == "math" else _BOTH
    seen = {_bare(reference)}
    for family, make in families.items():
        for answer in make(problem, reference, rng):
            if _bare(answer) not in seen:
                seen.add(_bare(answer))
                yield family, rf"\boxed{{{answer}}}"
    for other in _others(reference)[:1]:
        for first, second in ((reference, other), (other, reference)):
            for text in _filled("two_marked", ANSWER=first, OTHER=second):
                yield "two answers", text
    for text in _filled("taken_back_after", ANSWER=reference):
        yield "taken back", text


def _filled(kind: str, **values: object) -> Iterator[str]:
    """The texts of a kind with these values for its words, all put in at once."""
    for text in _TEXTS[kind]:
        yield re.sub("|".join(values), lambda match: str(values[match[0]]), text) if values else text


def _bare(text: str) -> str:
    """Texts that are equal here are the same answer."""
    text = re.sub(r"\\left|\\right|\\[dt]?frac|\\(?:text|mathrm)(?![a-z])|\\[,;:! ]|[\s{}$~]|\.$", "", text)
    return re.sub(r"\\leq", r"\\le", re.sub(r"\\geq", r"\\ge", text)).casefold()


def _others(reference: str) -> list[str]:
    """Answers of the same kind as the reference, and different from it."""
    if choice := _CHOICE.fullmatch(reference.strip()):
        return [letter for letter in "ABCD" if letter != choice[1]]
    if _INTEGER.fullmatch(reference.strip()):
        value = int(reference)
        return [str(value + 1), str(-value) if value else "7", str(10 * value + 10)]
    return ["1234567", "x+17"]


def _listed(_: str, reference: str, __: random.Random) -> Iterator[str]:
    for other in _others(reference):
        yield from _filled("listed", ANSWER=reference, OTHER=other)
    if _CHOICE.fullmatch(reference.strip()):
        yield from _filled("all_choices")


def _nothing(_: str, __: str, ___: random.Random) -> Iterator[str]:
    yield from _filled("nothing")


def _other_value(_: str, reference: str, rng: random.Random) -> Iterator[str]:
    yield from _others(reference)
    word = reference.strip()
    if _WORD.fullmatch(word) and len(word) > 2 and not word.isupper():
        letters = list(word)
        for _attempt in range(3):
            rng.shuffle(letters)
            yield "".join(letters)
        yield from (word[:-1], word + "s x", word[1:])
    for match in list(re.finditer(r"(?<![\w.^_{])\d{1,9}(?![\w.])", word))[:3]:
        yield f"{word[: match.start()]}{int(match[0]) + 1}{word[match.end() :]}"


def _taken_back(_: str, reference: str, __: random.Random) -> Iterator[str]:
    yield from _filled("taken_back", ANSWER=reference)


def _copied(problem: str, reference: str, _: random.Random) -> Iterator[str]:
    own = _bare(reference)
    for match in _SEGMENTS.finditer(problem):
        formula = next(group for group in match.groups() if group).strip().rstrip(".,;")
        sides = [side.strip() for side in _RELATION.split(formula)]
        for text in (formula, *(sides if len(sides) > 1 else ())):
            bare = _bare(text)
            solved = own in bare.split("=") or bare in own or own in bare
            if len(bare) > 2 and not re.fullmatch(r"[-\d.,/%\\a-z]+", bare) and not solved:
                yield text
                if not _RELATION.search(text):
                    yield from (f"({text})", f"{text}+0", rf"1 \cdot ({text})")


def _part(_: str, reference: str, __: random.Random) -> Iterator[str]:
    """A formula of the reference alone, where there are words next to it or other formulas."""
    for match in _SEGMENTS.finditer(reference):
        formula = next(group for group in match.groups() if group).strip()
        outside = re.sub(r"[\W_]|and|or", "", _SEGMENTS.sub("", reference))
        if outside and not re.search(rf"(?:is|are|=|:)\s*{re.escape(match[0])}\W*$", reference):
            yield formula


def _unsolved(_: str, reference: str, __: random.Random) -> Iterator[str]:
    text = reference.strip()
    if _INTEGER.fullmatch(text):
        value = int(text)
        yield from _filled("unsolved", ANSWER=text, NEXT=value + 1, DOUBLE=2 * value, ABOVE=abs(value) + 1)


def _marked(_: str, reference: str, __: random.Random) -> Iterator[str]:
    text = reference.strip()
    if re.fullmatch(r"[a-z]|f\(x\)", text):
        yield from (f"~{text}", rf"\neg {text}", rf"\sim {text}", f"{text[0]}'{text[1:]}", f"-{text}")
    if (pair := _TUPLE.fullmatch(text)) and pair[1].strip() != pair[2].strip():
        yield from (f"[{pair[1]},{pair[2]}]", f"({pair[2]},{pair[1]})")
    for said, other in ((r"\text{ or }", r"\text{ and }"), (" or ", " and "), (" and ", " or "), (r"\cup", r"\cap")):
        if said in text:
            yield text.replace(said, other)
    if angle := re.fullmatch(r"\\angle\s*([A-Z])([A-Z])([A-Z])", text):
        yield rf"\angle {angle[2]}{angle[1]}{angle[3]}"


def _units(_: str, reference: str, __: random.Random) -> Iterator[str]:
    if _A_UNIT.search(reference):
        yield _A_UNIT.sub(lambda match: _TEXTS["units"][match[1]], reference)
    if reference.startswith("\\$"):
        yield from (rf"{reference[2:]} \text{{ cents}}", f"€{reference[2:]}")


def _endless(_: str, __: str, ___: random.Random) -> Iterator[str]:
    yield from _filled("endless")


Family = Callable[[str, str, random.Random], Iterator[str]]
_BOTH: dict[str, Family] = {
    "two answers": _listed, "nothing": _nothing, "another value": _other_value, "taken back": _taken_back
}  # fmt: skip
_MATH: dict[str, Family] = {
    "the problem": _copied, "a part": _part, "not solved": _unsolved, "other marks": _marked, "another unit": _units, "endless": _endless
}  # fmt: skip
