"""A Qwen2 of 0.1M parameters that writes functions of one line, some wrong, for short runs of task
`code`; and its problems, each with tests.

Trained in seconds by supervised learning on problems such as "f adds 3, then multiplies by 2." and
solutions of two kinds, four in five of the second where a problem has two parts:

    def f(x): return (x+3)*2
    def f(x):
        y = x+3
        y = y*2
        return y

One part in ten has a slip. So at temperature 1 and 30 new tokens, functions of one part are mostly
right; of two parts the long form is truncated. Groups are all correct, mixed and none correct.
"""

from __future__ import annotations

import random
from typing import Any

from r3_openrlhf.runs.models.pretraining import Task

SLIP_RATE, TERSE_RATE = 0.1, 0.2
WORDS = {"+": "adds", "-": "subtracts", "*": "multiplies by"}
ARGUMENTS = (0, 2, 7)  # of the tests of a function

Parts = list[tuple[str, int]]  # sign and number, in order


def problems(size: int = 32, seed: int = 0) -> list[dict[str, Any]]:
    """`size` different problems with their tests (config/code_tests.py), for data.path."""
    rng = random.Random(seed)
    found: dict[str, Parts] = {}
    while len(found) < size:
        parts = draw_parts(rng)
        found[word_problem(parts)] = parts
    outputs = {
        problem: [value_of(parts, x) for x in ARGUMENTS] for problem, parts in found.items()
    }
    tests = {"inputs": [[x] for x in ARGUMENTS], "fn_name": "f"}
    return [
        {"problem": problem, "tests": tests | {"outputs": values}}
        for problem, values in outputs.items()
    ]


def draw_parts(rng: random.Random) -> Parts:
    """One or two parts with numbers from 2 to 9."""
    return [(rng.choice("+-*"), rng.randint(2, 9)) for _ in range(rng.choice((1, 2)))]


def value_of(parts: Parts, x: int) -> int:
    """Return the function's value for x."""
    for sign, number in parts:
        x = x + number if sign == "+" else x - number if sign == "-" else x * number
    return x


def word_problem(parts: Parts) -> str:
    """Put the parts into a sentence."""
    return f"f {', then '.join(f'{WORDS[sign]} {number}' for sign, number in parts)}."


def word_solution(parts: Parts, rng: random.Random) -> str:
    """Write a fenced function, tersely or line by line, now and then with a slip."""
    lines = []
    for sign, number in parts:
        slip = rng.choice((1, -1)) if rng.random() < SLIP_RATE else 0
        lines.append(f"{sign}{number + slip}")
    if len(lines) == 1 or rng.random() < TERSE_RATE:
        body = f"x{lines[0]}" if len(lines) == 1 else f"(x{lines[0]}){lines[1]}"
        return f"```python\ndef f(x): return {body}\n```"
    return f"```python\ndef f(x):\n    y = x{lines[0]}\n    y = y{lines[1]}\n    return y\n```"


TASK = Task(draw_parts, lambda parts, rng: (word_problem(parts), word_solution(parts, rng)))
build = TASK.build
