"""A Qwen2 of 0.1M parameters that lets Python add (agents.tools), for short runs of tools_smoke.

Trained in seconds by supervised learning on sums of two and three numbers, as tiny.py's, and on
solutions of two kinds, two in three of the first. It copies the sum with a slip now and then:

    ```python
    print(3+4+9)
    ```
    ```output
    16
    ```
    \\boxed{16}                                       or at once, and mostly wrong: \\boxed{12}"""

import random
from pathlib import Path

from r3_openrlhf.runs.models import pretraining
from r3_openrlhf.runs.models.pretraining import Example, Recipe
from r3_openrlhf.runs.models.tiny import draw_sum, word_problem

SLIP_RATE, CALL_RATE = 0.1, 0.67
NUM_STEPS, BATCH_SIZE = 700, 32
RECIPE = Recipe()


def build(directory: Path) -> None:
    """Train the model and write it with its tokenizer into `directory` (bfloat16, 0.3 MB)."""
    rng = random.Random(RECIPE.seed)
    corpus = pretraining.with_reflection([draw_example(rng) for _ in range(400)])
    tokenizer = pretraining.train_tokenizer(corpus, vocab_size=RECIPE.vocab_size)
    pretraining.write(
        directory, tokenizer, RECIPE, lambda rng: [draw_example(rng) for _ in range(BATCH_SIZE)], num_steps=NUM_STEPS
    )


def draw_example(rng: random.Random) -> Example:
    """Draw a sum and a solution."""
    terms = draw_sum(rng)
    numbers = [int(term) for term in terms.split(" + ")]
    if rng.random() > CALL_RATE:
        return word_problem(terms), f"\\boxed{{{sum(numbers) + rng.choice((-2, -1, 0, 1, 2))}}}"
    copied = [number + (rng.random() < SLIP_RATE) for number in numbers]
    code = "+".join(map(str, copied))
    answer = f"```output\n{sum(copied)}\n```\n\\boxed{{{sum(copied)}}}"
    return word_problem(terms), f"```python\nprint({code})\n```\n{answer}"
