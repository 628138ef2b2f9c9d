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
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.runs.models import pretraining
from r3_openrlhf.runs.models.pretraining import Example, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SLIP_RATE, TERSE_RATE = 0.1, 0.2
NUM_STEPS, BATCH_SIZE = 500, 32
RECIPE = Recipe()


def build(directory: Path) -> None:
    """Train the model and write it with its tokenizer into `directory` (bfloat16, 0.3 MB)."""
    pretraining.write(directory, train_tokenizer(), RECIPE, draw_examples, num_steps=NUM_STEPS)


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


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Over the words of the task and of the reflection prompt."""
    rng = random.Random(RECIPE.seed)
    sums = (draw_sum(rng) for _ in range(400))
    examples = [(word_problem(sum_), word_solution(sum_, rng)) for sum_ in sums]
    return pretraining.train_tokenizer(pretraining.with_reflection(examples), vocab_size=RECIPE.vocab_size)


def draw_examples(rng: random.Random) -> list[Example]:
    """BATCH_SIZE problems with a solution each."""
    sums = [draw_sum(rng) for _ in range(BATCH_SIZE)]
    return [(word_problem(sum_), word_solution(sum_, rng)) for sum_ in sums]
