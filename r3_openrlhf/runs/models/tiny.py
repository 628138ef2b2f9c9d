"""A Qwen2 of 0.1M parameters that adds badly enough to be interesting in a minute or two.

Trained in seconds by supervised learning on problems worded as reasoning-gym's basic_arithmetic
("Calculate 3 + 4 + 9.") and on solutions of two kinds, four in five of the second:

    3+4=7 7+9=16 \\boxed{16}
    Step by step: 3+4=7 then 7+9=16 so the answer is \\boxed{16}

One addition in ten has a slip. So at temperature 1 and 24 new tokens, sums of two are mostly right;
of three only the terse form fits, and most are truncated. Groups are all correct, mixed and none
correct, and there is something to learn: no slips, and few words.
"""

from __future__ import annotations

import random

from r3_openrlhf.runs.models.pretraining import Task

SLIP_RATE, TERSE_RATE = 0.1, 0.2


def draw_sum(rng: random.Random) -> str:
    """Two or three numbers from 0 to 10, as basic_arithmetic has them: "3 + 4 + 9"."""
    return " + ".join(str(rng.randint(0, 10)) for _ in range(rng.choice((2, 3))))


def word_problem(sum_: str) -> str:
    """Word the sum as basic_arithmetic does in its simple style."""
    return f"Calculate {sum_}."


def word_solution(sum_: str, rng: random.Random) -> str:
    """Solve the sum term by term, tersely or in words; a slip now and then is carried on."""
    first, *others = map(int, sum_.split(" + "))
    total, steps = first, []
    for number in others:
        slip = rng.choice((1, -1)) if rng.random() < SLIP_RATE else 0
        steps.append(f"{total}+{number}={total + number + slip}")
        total += number + slip
    if rng.random() < TERSE_RATE:
        return f"{' '.join(steps)} \\boxed{{{total}}}"
    return f"Step by step: {' then '.join(steps)} so the answer is \\boxed{{{total}}}"


TASK = Task(draw_sum, lambda sum_, rng: (word_problem(sum_), word_solution(sum_, rng)))
build = TASK.build
