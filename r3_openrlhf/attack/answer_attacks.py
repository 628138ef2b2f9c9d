"""Attacks on comparisons of answers: texts that solve nothing, made from a problem and its reference.

Every text is wrong by construction, as far as the reference is right; a formula of the problem that has the reference's own form is left out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

_SEGMENTS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_RELATION = re.compile(r"=|<|>|\\leq?(?![a-z])|\\geq?(?![a-z])|\\neq?(?![a-z])")
_INTEGER = re.compile(r"-?\d{1,15}")
_CHOICE = re.compile(r"\(?([A-J])\)?")
_TUPLE = re.compile(r"\(([^()\[\],]+),([^()\[\],]+)\)")
_WORD = re.compile(r"[A-Za-z]{2,20}")
_UNITS = {
    "cm": "m", "m": "cm", "km": "miles", "miles": "km", "inches": "feet", "feet": "inches", "mph": "km/h", "km/h": "mph", "hours": "minutes",
    "minutes": "hours", "seconds": "hours", "dollars": "cents", "cents": "dollars", "degrees": "radians", "radians": "degrees", "p.m.": "a.m.",
    "a.m.": "p.m.", "kg": "g", "g": "kg",
}  # fmt: skip
_A_UNIT = re.compile(rf"(?<=[\d}}) ])({'|'.join(re.escape(unit) for unit in _UNITS)})(?![a-zA-Z])")
_TWO_MARKED = (
    r"It is $\boxed{FIRST}$ or $\boxed{SECOND}$.",
    r"\boxed{FIRST}, \boxed{SECOND}",
    r"First guess: $\boxed{FIRST}$. Second guess: $\boxed{SECOND}$.",
    r"$\boxed{FIRST}$ as well as $\boxed{SECOND}$",
    "<answer>FIRST</answer> or <answer>SECOND</answer>",
    "<answer>FIRST</answer><answer>SECOND</answer>",
    r"\boxed{FIRST} or <answer>SECOND</answer>",
)
_TAKEN_BACK_BESIDE = (
    r"\boxed{ANSWER} is incorrect",
    r"$\boxed{ANSWER}$ is not the answer.",
    r"\[\boxed{ANSWER}\] But this is wrong.",
    r"I doubt that $\boxed{ANSWER}$ is right.",
    r"It is not $\boxed{ANSWER}$.",
    "<answer>ANSWER</answer> is wrong.",
)
_TOWER = "9^{9^{9^{9^{9}}}}"


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
            for text in _TWO_MARKED:
                yield "two answers", text.replace("FIRST", first).replace("SECOND", second)
    for text in _TAKEN_BACK_BESIDE:
        yield "taken back", text.replace("ANSWER", reference)


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
        yield from (
            rf"{reference} \text{{ or }} {other}",
            f"{other} or {reference}",
            f"{reference}, {other}",
            f"{reference}; {other}",
        )
    if _CHOICE.fullmatch(reference.strip()):
        yield from (r"\text{(A),(B),(C),(D)}", "A) or B) or C) or D)", "ABCD", "(A) (B) (C) (D)", "A, B, C, D")


def _nothing(_: str, __: str, ___: random.Random) -> Iterator[str]:
    yield from (
        "",
        "?",
        ".",
        "*",
        "**",
        "$",
        r"\text{answer}",
        "nan",
        r"\text{NaN}",
        "inf",
        "None",
        "x",
        r"\ldots",
        "0=0",
        "x=x",
    )
    yield from (r"(-\infty,\infty)", r"\mathbb{R}", r"\emptyset", r"\pm", "()")


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
    yield from (
        rf"\text{{not }} {reference}",
        rf"{reference} \text{{ or more}}",
        rf"{reference} \text{{ or something else}}",
    )
    yield rf"{reference} \text{{ is wrong}}"


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


def _unsolved(_: str, reference: str, __: random.Random) -> Iterator[str]:
    text = reference.strip()
    if _INTEGER.fullmatch(text):
        value = int(text)
        yield from (
            f"x+1={text}",
            f"{value + 1}={text}",
            f"{text}={value + 1}",
            f"2x={2 * value}",
            f"x-{abs(value) + 1}=0",
        )
        yield from (
            rf"\frac{{d}}{{dx}} ({text} x)",
            rf"\int_0^1 {text} dx",
            rf"\sum_{{k=1}}^{{1}} {text}",
            rf"\lim_{{x \to 0}} {text}",
        )
        yield from (f"x < {text}", rf"x \neq {text}", rf"x \ge {text}")


def _marked(_: str, reference: str, __: random.Random) -> Iterator[str]:
    text = reference.strip()
    if re.fullmatch(r"[a-z]|f\(x\)", text):
        yield from (f"~{text}", rf"\neg {text}", rf"\sim {text}", f"{text[0]}'{text[1:]}", f"-{text}")
    if tuple_ := _TUPLE.fullmatch(text):
        yield from (
            (f"[{tuple_[1]},{tuple_[2]}]", f"({tuple_[2]},{tuple_[1]})")
            if tuple_[1].strip() != tuple_[2].strip()
            else ()
        )
    for said, other in ((r"\text{ or }", r"\text{ and }"), (" or ", " and "), (" and ", " or "), (r"\cup", r"\cap")):
        if said in text:
            yield text.replace(said, other)
    if angle := re.fullmatch(r"\\angle\s*([A-Z])([A-Z])([A-Z])", text):
        yield rf"\angle {angle[2]}{angle[1]}{angle[3]}"


def _units(_: str, reference: str, __: random.Random) -> Iterator[str]:
    if _A_UNIT.search(reference):
        yield _A_UNIT.sub(lambda match: _UNITS[match[1]], reference)
    if reference.startswith("\\$"):
        yield from (rf"{reference[2:]} \text{{ cents}}", f"€{reference[2:]}")


def _endless(_: str, __: str, ___: random.Random) -> Iterator[str]:
    yield from (
        _TOWER,
        f"{_TOWER}+x",
        r"\sum_{a=1}^{\infty} 2^a x^a",
        "(" * 30 + "x" + ")" * 30,
        "[2^{1/2^{1000}},\\infty)",
    )


Family = Callable[[str, str, random.Random], Iterator[str]]
_BOTH: dict[str, Family] = {
    "two answers": _listed,
    "nothing": _nothing,
    "another value": _other_value,
    "taken back": _taken_back,
}
_MATH: dict[str, Family] = {
    "the problem": _copied,
    "not solved": _unsolved,
    "other marks": _marked,
    "another unit": _units,
    "endless": _endless,
}
