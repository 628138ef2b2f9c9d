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

from r3_openrlhf.runs.models.pretraining import Example, Task
from r3_openrlhf.runs.models.tiny import draw_sum, word_problem

SLIP_RATE, CALL_RATE = 0.1, 0.67


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


TASK = Task(draw_example, lambda example, _: example, num_steps=700)
build = TASK.build
