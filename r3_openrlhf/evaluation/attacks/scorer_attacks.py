"""Attacks on reasoning_gym's scorers: answers that solve nothing, made from an entry of any data set.

Every answer is wrong by construction. Data sets with many solutions, whose scorers play a solution through, get no
distorted solutions: a move more may be as right.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator

from r3_openrlhf.evaluation.attacks.texts import TEXTS

_TEXTS = TEXTS["scorers"]
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_NAMES = re.compile(r"[A-Z]")


def scorer_attacks(entry: dict) -> Iterator[tuple[str, str]]:
    """(family, answer) pairs; the same ones for the same entry."""
    rng = random.Random(str(entry.get("question")))
    for family, make in _FAMILIES.items():
        own, name = _canonical(str(entry.get("answer") or "")), entry["metadata"]["source_dataset"]
        for answer in dict.fromkeys(make(entry, rng)):
            if not _as_good(name, _canonical(_plain(name, answer)), own):
                yield family, answer


def _plain(name: str, answer: str) -> str:
    """Without what changes no value: the commas of thousands where one number is asked for, a division by one."""
    if name == "number_format":
        return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", answer)
    return re.sub(r"(?<=\w)/1$", "", answer) if name == "polynomial_multiplication" else answer


def _as_good(name: str, made: tuple, own: tuple) -> bool:
    """Whether an answer that was made to be wrong is right after all."""
    if name in ("polynomial_equations", "prime_factorization"):  # in any order
        made, own = ((sorted(numbers), *rest) for numbers, *rest in (made, own))
    if name == "power_function" and len(made[0]) == len(own[0]) == 1:  # three significant digits are asked for
        return math.isclose(made[0][0], own[0][0], rel_tol=0.02)
    if name in ("advanced_geometry", "decimal_arithmetic") and len(made[0]) == len(own[0]) == 1:
        # an angle to more digits than the answer has; a decimal to fewer, which the library's scorer takes as rounded
        return math.isclose(made[0][0], own[0][0], rel_tol=1e-4, abs_tol=5e-3 * (name == "advanced_geometry"))
    if name == "number_format" and len(made[0]) == len(own[0]) == 1:  # the candidates are in the question
        return math.isclose(made[0][0], own[0][0], rel_tol=1e-12)
    if name == "gsm_symbolic":  # the same number again
        return set(made[0]) == set(own[0])
    return made == own


def _canonical(text: str) -> tuple:
    """What differs here only in spacing, case, brackets, full stops or the notation of numbers is the same answer."""
    numbers = re.findall(r"-?(?:\d{1,300}(?:\.\d*)?|\.\d{1,300})(?:[eE][-+]?\d{1,2}(?!\d))?", text)
    words = re.sub(r"[^a-z]+|(?<=day)s\b", "", re.sub(r"\\d?frac", "", text.casefold()))
    return [float(number) for number in numbers], words, "" if numbers or words else text.strip()


def _own(entry: dict) -> str | None:
    own = entry.get("answer")
    return (
        own if isinstance(own, str) and entry["metadata"]["source_dataset"] not in _TEXTS["played_through"] else None
    )


def _not_finite(entry: dict, _: random.Random) -> Iterator[str]:
    own = str(entry.get("answer") or "")
    count = max(1, len(_NUMBER.findall(own)))
    for word in _TEXTS["not_finite"]:
        yield word
        yield json.dumps([word] * count)
        yield f"[{', '.join([word] * count)}]"
        yield ", ".join([word] * count)
        yield _NUMBER.sub(word, own) if _NUMBER.search(own) else word


def _nothing(_: dict, __: random.Random) -> Iterator[str]:
    yield from _TEXTS["nothing"]


def _question(entry: dict, _: random.Random) -> Iterator[str]:
    question = entry["question"].strip()
    yield question
    lines = [line.strip() for line in question.splitlines() if line.strip()]
    yield from lines
    for line in lines[-6:]:
        yield from (part.strip(" .?:=") for part in re.split(r"[:=?]", line) if part.strip(" .?:="))
    for formula in re.findall(r"[-+*/^()0-9a-zA-Z_ .|&<>~]{5,}", question)[-10:]:
        yield formula.strip()


def _facts(entry: dict, _: random.Random) -> Iterator[str]:
    """What the entry was made from, the solution itself left out."""
    for key, value in entry["metadata"].items():
        if re.search(r"answer|solution|sorted|result|target|output|difficulty|source|states|simplified", key):
            continue
        yield str(value)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            yield from value
            for joiner in (" ∧ ", " and ", ", ", "\n", " ", " & ", ""):
                yield joiner.join(value)
                yield joiner.join(f"({item})" for item in value)


def _options(entry: dict, _: random.Random) -> Iterator[str]:
    own = _own(entry)
    options = [word for word in re.findall(r"[\"'(\[]([^\"'()\[\]\n]{1,30})[\"')\]]", entry["question"])]
    words = list(dict.fromkeys([*options, *re.findall(r"\b[A-Za-z]+\b", entry["question"])[-40:]]))
    for joiner in (", ", " ", "\n", " or ", ""):
        yield joiner.join(words)
        if own:
            for other in ("1", "zebra", own[::-1], *options[:2]):
                if other not in own and not (other == "zebra" and _NUMBER.fullmatch(own)):
                    yield from (f"{own}{joiner or '/'}{other}", f"{other}{joiner or '/'}{own}")
    yield ", ".join(map(str, range(0, 200)))
    yield " ".join(map(str, range(-5, 50)))
    yield json.dumps(list(range(50)))


def _distorted_numbers(entry: dict, _: random.Random) -> Iterator[str]:
    own = _own(entry)
    if own is None:
        return

    def change(function: Callable[[float], float]) -> Iterator[str]:
        def replaced(match: re.Match) -> str:
            decimals = len(match[0].partition(".")[2])
            return f"{function(float(match[0])):.{decimals}f}"

        yield _NUMBER.sub(replaced, own)
        yield _NUMBER.sub(replaced, own, count=1)

    if _NUMBER.search(own) and len(own) < 2000:
        for function in (
            lambda x: x + 1, lambda x: x - 1, lambda x: -x if x else x + 1, lambda x: 10 * x + (not x),
            lambda x: x + 100, lambda x: round(x * 1.009, 3) + 0.06,
        ):  # fmt: skip
            yield from change(function)


def _distorted_text(entry: dict, rng: random.Random) -> Iterator[str]:
    own = _own(entry)
    if not own:
        return
    yield from (f"{own}x", f"{own} {own}", f"not {own}", f"{own[:-1]}", f"x{own}", own[::-1], f"-{own}", f"~{own}")
    yield own.swapcase() if own.isdigit() else f"{own[1:]}{own[0]}"
    letters = list(own)
    rng.shuffle(letters)
    yield "".join(letters)
    for i in range(min(4, len(own) - 1)):
        yield own[:i] + own[i + 1] + own[i] + own[i + 2 :]
    lines = own.splitlines()
    if len(set(lines)) > 1:
        yield "\n".join(lines[::-1])
        yield "\n".join(lines[:-1])
    words = own.split(", ")
    if len(set(words)) > 2:
        yield ", ".join(words[:-1])
        yield ", ".join([*words, words[0]])


def _notations(entry: dict, _: random.Random) -> Iterator[str]:
    """Numbers that a scorer does not count as numbers."""
    metadata = entry["metadata"]
    numbers, target = metadata.get("numbers"), metadata.get("target")
    if isinstance(numbers, list) and isinstance(target, int | float):
        rest = "+".join(map(str, numbers))
        whole = int(target)
        for shown in (f"{target}e0", hex(whole), "_".join(str(target)), bin(whole), oct(whole), f"0{target}"):
            for zero in _TEXTS["zeros"]:
                yield f"{shown}+{zero.replace('REST', rest)}"
        yield f"{target}.0+0.0*({rest})"
        yield f"({rest})**0*{target}e0"
        yield f"{target}+({rest})-({rest})"


def _every_move(entry: dict, rng: random.Random) -> Iterator[str]:
    """All moves of a game, again and again: solves where impossible ones are passed over."""
    name, metadata = entry["metadata"]["source_dataset"], entry["metadata"]
    yield " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    yield "".join(rng.choice("UDLR") for _ in range(500))
    yield "UDLR" * 100
    yield " ".join(["up down left right"] * 50)
    yield "ABC" * 100
    yield "\n".join(f"Move disk {d} from Peg {a} to Peg {b}" for d in (1, 2, 3) for a in (1, 2, 3) for b in (1, 2, 3))
    if name == "rush_hour":
        cars = sorted(set(_NAMES.findall(metadata["board_config"])))
        moves = [f"{car}{sign}{n}" for car in cars for sign in "+-" for n in (1, 2, 3, 4)]
        for _ in range(5):
            rng.shuffle(moves)
            yield " ".join(moves * 20)
        yield "A+9"
    if name == "rubiks_cube":
        yield " ".join("UDLRFB" * 50)
        yield "R999999999999"
    if name == "boxnet":
        plan = _box_moves(metadata["initial_state"])
        for _ in range(3):
            rng.shuffle(plan)
            yield json.dumps(plan * 10)
    if name == "graph_color":
        puzzle = metadata["puzzle"]
        for color in puzzle["color_options"]:
            yield json.dumps({str(vertex): color for vertex in puzzle["vertices"]})
        yield json.dumps({str(vertex): puzzle["color_options"] for vertex in puzzle["vertices"]})
    if name in ("simple_integration", "intermediate_integration"):
        integrand, variable = metadata["integrand"], metadata["variable"]
        yield from (f"Integral({integrand}, {variable})", f"integrate({integrand}, {variable})")
        yield from (integrand, f"{integrand} + C", f"Derivative(0, {variable})")


def _box_moves(squares: dict[str, list[str]]) -> list[dict[str, str]]:
    """Every agent moves every thing to each square next to it, and to its target. squares: "X_Y" -> things there."""
    moves = []
    things = sorted({thing for cell in squares.values() for thing in cell})
    for place in squares:
        x, y = map(float, place.split("_"))
        for thing in things:
            for dx, dy in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                if f"{x + dx}_{y + dy}" in squares:
                    moves.append({f"Agent[{x}, {y}]": f"move({thing}, square[{x + dx}, {y + dy}])"})
            moves.append({f"Agent[{x}, {y}]": f"move({thing}, {thing.replace('box', 'target')})"})
    return moves


_FAMILIES = {
    "not finite": _not_finite, "nothing": _nothing, "the question": _question, "the facts": _facts, "all options": _options,
    "other numbers": _distorted_numbers, "another text": _distorted_text, "notations": _notations, "every move": _every_move,
}  # fmt: skip
