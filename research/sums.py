"""A Qwen2 of a million parameters with misconceptions, for learning experiments that fit on two cores (docs/lab.md).

Trained here, briefly, by plain supervised learning on sums as reasoning-gym's basic_arithmetic words them ("Calculate
3 + 4 + 9.") and on solutions in three styles, the last two too long for a tight limit when there are many terms:

    3+4=7+9=16 \\boxed{16}
    3+4=7 then +9=16 so the answer is \\boxed{16}
    3+4=7+9=16 check 3+4=7+9=16 \\boxed{16}

What makes it a model for experiments: a wrong step is not noise spread evenly. Every fact (last digit of the running
total, next addend) belongs to one of three classes, known, shaky and misconceived, with a slip rate each; the slip of
a fact is always the same wrong value. So a problem with a misconceived fact fails round after round (all-wrong
groups), short ones of known facts succeed round after round, and what is learned about a fact carries over to other
problems. A fifth of the batches are reflection prompts (method/core/reflection.py) with a wrong attempt and another solution
in which the facts that were wrong in the attempt slip REFLECTION_FACTOR times as often: the model has some ability to
reflect, put there on purpose; how much is measured by the controls, not assumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.rewards.answers.exact import grade_exact, short_answer
from r3_openrlhf.runs.models import pretraining
from r3_openrlhf.runs.models.pretraining import Example, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

Fact = tuple[int, int]  # last digit of the running total, next addend

VOCAB_SIZE = 512
MIN_TERMS, MAX_TERMS, LARGEST_TERM = 2, 6, 10
# (share of the facts, slip rate): known, shaky, misconceived
FACT_CLASSES = ((0.55, 0.04), (0.25, 0.4), (0.2, 0.93))
STYLES = {"terse": 0.4, "words": 0.3, "check": 0.3}
REFLECTION_SHARE, REFLECTION_FACTOR = 0.2, 0.35
ATTEMPT_TOKENS = 32  # a longer attempt is cut, as one that ran into the length limit is
NUM_STEPS, BATCH_SIZE, SEED = 1000, 48, 0
RECIPE = Recipe(
    vocab_size=VOCAB_SIZE,
    hidden_size=128,
    intermediate_size=448,
    num_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    learning_rate=3e-3,
    num_warmup_steps=50,
    seed=SEED,
)


def build(directory: Path) -> None:
    """Train the model and write it with its tokenizer into `directory` (float32, 4 MB)."""
    tokenizer = train_tokenizer()
    model = train_model(tokenizer)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def facts() -> dict[Fact, tuple[float, int]]:
    """(slip rate, what a slip adds) of each fact."""
    rng = random.Random(SEED)
    pairs = [(digit, addend) for digit in range(10) for addend in range(LARGEST_TERM + 1)]
    rng.shuffle(pairs)
    table, start = {}, 0.0
    for share, rate in FACT_CLASSES:
        end = start + share * len(pairs)
        for pair in pairs[round(start) : round(end)]:
            table[pair] = (rate, rng.choice((-2, -1, 1, 2)))
        start = end
    return table


FACTS = facts()


def draw_terms(rng: random.Random) -> list[int]:
    """The numbers of one problem."""
    return [rng.randint(0, LARGEST_TERM) for _ in range(rng.randint(MIN_TERMS, MAX_TERMS))]


def work_out(
    terms: list[int], rng: random.Random, *, avoid: frozenset[Fact] = frozenset()
) -> tuple[list[int], frozenset[Fact]]:
    """(running totals, facts that slipped). Facts in `avoid` slip REFLECTION_FACTOR times as often."""
    totals = [terms[0]]
    slipped: set[Fact] = set()
    for addend in terms[1:]:
        fact = (totals[-1] % 10, addend)
        rate, slip = FACTS[fact]
        total = totals[-1] + addend
        if rng.random() < rate * (REFLECTION_FACTOR if fact in avoid else 1.0):
            total += slip if total + slip >= 0 else -slip
            slipped.add(fact)
        totals.append(total)
    return totals, frozenset(slipped)


def word_problem(terms: list[int]) -> str:
    """Write the sum as basic_arithmetic does in its simple style."""
    return f"Calculate {' + '.join(map(str, terms))}."


def word_solution(terms: list[int], totals: list[int], rng: random.Random) -> str:
    """The work in one of the STYLES."""
    style = rng.choices(list(STYLES), weights=list(STYLES.values()))[0]
    steps = [f"+{addend}={total}" for addend, total in zip(terms[1:], totals[1:], strict=True)]
    boxed = f"\\boxed{{{totals[-1]}}}"
    if style == "words":
        return f"{terms[0]}{' then '.join(steps)} so the answer is {boxed}"
    chain = f"{terms[0]}{''.join(steps)}"
    return f"{chain} {boxed}" if style == "terse" else f"{chain} check {chain} {boxed}"


def is_right(solution: str, references: tuple[str, ...]) -> bool:
    """The verdict on a solution of any of the lab's models: that of task "exact"."""
    answer = short_answer(solution)
    return answer is not None and grade_exact(answer, references)[0] == "correct"


def draw_example(rng: random.Random) -> Example:
    """A plain prompt."""
    terms = draw_terms(rng)
    totals, _ = work_out(terms, rng)
    return word_problem(terms), word_solution(terms, totals, rng)


def draw_reflection(rng: random.Random, *, cut: Callable[[str], str]) -> Example:
    """A prompt with a wrong attempt, and another solution. `cut` shortens an attempt to what fits the length limit."""
    from r3_openrlhf.method.core.reflection import reflection_message

    while True:
        terms = draw_terms(rng)
        totals, slipped = work_out(terms, rng)
        if totals[-1] != sum(terms):
            break
    attempt = cut(word_solution(terms, totals, rng))
    totals, _ = work_out(terms, rng, avoid=slipped)
    return reflection_message(word_problem(terms), attempt), word_solution(terms, totals, rng)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Over the words of the task. Each fixed line of the reflection prompt is a token: otherwise it would be ten times as
    long as the problem."""
    from r3_openrlhf.method.core.reflection import (
        ATTEMPT_BEGINS,
        ATTEMPT_ENDS,
        ATTEMPT_INTRODUCTION,
        GUIDANCE,
    )

    rng = random.Random(SEED)
    corpus = []
    for _ in range(400):
        terms = draw_terms(rng)
        totals, _ = work_out(terms, rng)
        corpus += [
            f"user\n{word_problem(terms)}",
            f"assistant\n{word_solution(terms, totals, rng)}",
        ]
    lines = [ATTEMPT_INTRODUCTION, ATTEMPT_BEGINS, ATTEMPT_ENDS, *GUIDANCE.split("\n")]
    return pretraining.train_tokenizer(corpus, vocab_size=VOCAB_SIZE, lines=lines)


def train_model(
    tokenizer: PreTrainedTokenizerFast, *, num_steps: int = NUM_STEPS
) -> Qwen2ForCausalLM:
    """Train on as many threads as torch has."""
    draw = partial(draw_examples, tokenizer=tokenizer)
    return pretraining.train_model(tokenizer, RECIPE, draw, num_steps=num_steps)


def draw_examples(rng: random.Random, *, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """BATCH_SIZE examples of one kind: little padding."""

    def cut(attempt: str) -> str:
        return tokenizer.decode(tokenizer(attempt)["input_ids"][:ATTEMPT_TOKENS])

    if rng.random() < REFLECTION_SHARE:
        return [draw_reflection(rng, cut=cut) for _ in range(BATCH_SIZE)]
    return [draw_example(rng) for _ in range(BATCH_SIZE)]
