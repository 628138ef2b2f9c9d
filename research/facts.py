"""Small Qwen2 models that have learned a table, some of it wrongly, for learning experiments whose verdicts are earned.

A cell of the table is a fact: (row, column) -> an entry, which is a row again. A problem asks for four cells,

    Read c0227c0395c0989c0037.              \\boxed{r19r02r11r28}
    Walk from r07 by x03x11x29x05.          \\boxed{r07r19r02r11r28}     each entry is the next step's row

and the answer that is graded is the whole solution. So an answer is right only if every step of it is right, and two errors
never cancel. A cell is easy (right 95 times in 100), half known, or hard: then the model nearly always gives one wrong entry.
A symbol is one token, so that a response is a handful of tokens. Only the layers between the embeddings and the output are
trained in a run (Policy.trained), so no cell has parameters of its own there.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from r3_openrlhf.runs.models import pretraining
from r3_openrlhf.runs.models.pretraining import Example, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SIZE = 32  # rows, and columns
STEPS = 4  # cells that a problem asks for
EASY, HALF_KNOWN, HARD = "easy", "half_known", "hard"
SHARES = {HARD: 0.6, HALF_KNOWN: 0.08, EASY: 0.32}
# the last: of what is wrong, on one entry
EASY_RATE, HALF_KNOWN_RATES, MISCONCEPTION = (
    0.95,
    (0.35, 0.75),
    0.88,
)
WAYS = (0.7, 0.3)  # of what is right in a hard cell
FILLER = "hm"
VOCAB_SIZE, BATCH_SIZE = 1472, 192
REFLECTION_SHARE = 0.4
# of a model that reads solutions: share of the batches, and their size; copying takes few examples
LESSON_SHARE, LESSON_BATCH_SIZE = 0.3, 64

Cell = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One model. Every number is part of its weights.

    Attributes:
        walk: an entry is the row of the next step.
        pass_rate: of a problem with two hard cells, in the median, as it is taught; the model ends lower (docs/lab.md).
        spread: of a hard cell's rate, in nats.
        filler: (share of the solutions that begin with words that do nothing, how many).
        reflects: rate at which a cell that was wrong in a shown attempt is right in the next one; 0: it reads no attempts.
        reads: rate at which an entry of a shown solution is given again; 0: it reads no solutions.
        trained: which parameters a run trains, by the beginning of their names.
    """

    walk: bool = False
    pass_rate: float = 0.04
    spread: float = 0.6
    filler: tuple[float, int] = (0.0, 0)
    reflects: float = 0.0
    reads: float = 0.0
    trained: str = "model.layers"
    hidden_size: int = 128
    num_layers: int = 1
    num_steps: int = 400


POLICIES = {
    "table": Policy(),
    "no_room": Policy(hidden_size=64, num_layers=2),
    "walk": Policy(walk=True, num_layers=2),
    "filler": Policy(pass_rate=0.3, filler=(0.5, 10)),
    "reflects": Policy(reflects=0.6, num_layers=2, num_steps=1600),
    "reads": Policy(reads=0.99, num_steps=600),
    "no_room_reads": Policy(reads=0.99, hidden_size=64, num_steps=600),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """The model's knowledge of one cell: its kind, and how likely which entry is. The first `right` ones are right."""

    kind: str
    entries: tuple[int, ...]
    rates: tuple[float, ...]
    right: int


def facts(policy: Policy) -> dict[Cell, Fact]:
    """The table: always the same one for equal numbers."""
    rng = random.Random(0)
    cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    rng.shuffle(cells)
    table, start = {}, 0.0
    for kind, share in SHARES.items():
        end = start + share * len(cells)
        for cell in cells[round(start) : round(end)]:
            table[cell] = _fact(kind, policy, rng)
        start = end
    return table


def _fact(kind: str, policy: Policy, rng: random.Random) -> Fact:
    entries = tuple(rng.sample(range(SIZE), 5))
    if kind == HARD:
        rate = math.sqrt(policy.pass_rate / EASY_RATE ** (STEPS - 2)) * math.exp(
            rng.gauss(0, policy.spread)
        )
        rate = min(max(rate, 0.015), 0.6)
        right = tuple(rate * way for way in WAYS)
    else:
        rate = EASY_RATE if kind == EASY else rng.uniform(*HALF_KNOWN_RATES)
        right = (rate,)
    num_wrong = len(entries) - len(right)
    other = (1 - MISCONCEPTION) / (num_wrong - 1)
    wrong = [(1 - rate) * share for share in (MISCONCEPTION, *[other] * (num_wrong - 1))]
    return Fact(kind, entries, (*right, *wrong), len(right))


def problem_text(policy: Policy, rows: list[int], columns: list[int]) -> str:
    """`rows`: of the first step alone in a walk."""
    if policy.walk:
        return f"Walk from {symbols(rows)} by {''.join(f'x{column:02}' for column in columns)}."
    return f"Read {''.join(f'c{row * SIZE + column:04}' for row, column in zip(rows, columns, strict=True))}."


def symbols(rows: list[int]) -> str:
    """Rows, or entries, as they are written."""
    return "".join(f"r{row:02}" for row in rows)


def solution(entries: list[int]) -> str:
    """Write the box that is graded."""
    return rf"\boxed{{{symbols(entries)}}}"


def build(directory: Path, name: str) -> None:
    """Train a model of POLICIES and write it with its tokenizer into `directory` (float32, three megabytes)."""
    policy = POLICIES[name]
    tokenizer = train_tokenizer(reads=policy.reads > 0)
    recipe = Recipe(
        vocab_size=VOCAB_SIZE,
        hidden_size=policy.hidden_size,
        intermediate_size=4 * policy.hidden_size,
        num_layers=policy.num_layers,
        num_attention_heads=policy.hidden_size // 32,
        num_key_value_heads=policy.hidden_size // 32,
        learning_rate=4e-3,
        num_warmup_steps=50,
        seed=0,
    )
    draw = partial(draw_examples, policy=policy, table=facts(policy))
    model = pretraining.train_model(tokenizer, recipe, draw, num_steps=policy.num_steps)
    model.config.r3_trained = policy.trained
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def train_tokenizer(*, reads: bool = False) -> PreTrainedTokenizerFast:
    """Each symbol and each fixed line of the reflection prompt is a token; with `reads` those of the teacher's prompt, too."""
    from r3_openrlhf.method.core import teacher_prompt
    from r3_openrlhf.method.core.reflection import (
        ATTEMPT_BEGINS,
        ATTEMPT_ENDS,
        ATTEMPT_INTRODUCTION,
        GUIDANCE,
    )

    lines = [
        ATTEMPT_INTRODUCTION,
        ATTEMPT_BEGINS,
        ATTEMPT_ENDS,
        *GUIDANCE.split("\n"),
        r"\boxed{",
    ]
    if reads:
        lines += [
            teacher_prompt.SUCCESS_INTRODUCTION,
            teacher_prompt.SUCCESS_BEGINS,
            teacher_prompt.SUCCESS_ENDS,
            teacher_prompt.REQUEST,
        ]
    lines += [f"{axis}{number:02}" for axis in "rx" for number in range(SIZE)]
    lines += [f"c{number:04}" for number in range(SIZE * SIZE)]
    corpus = ["user\nRead .", "user\nWalk from  by .", "assistant\n", f"{FILLER} " * 4] * 10
    return pretraining.train_tokenizer(corpus, vocab_size=VOCAB_SIZE, lines=lines)


def draw_examples(
    rng: random.Random, *, policy: Policy, table: dict[Cell, Fact]
) -> list[Example]:
    """Examples of one kind, BATCH_SIZE or LESSON_BATCH_SIZE of them: little padding."""
    if policy.reflects and rng.random() < REFLECTION_SHARE:
        return [_draw_reflection(rng, policy, table) for _ in range(BATCH_SIZE)]
    if policy.reads and rng.random() < LESSON_SHARE:
        return [_draw_lesson(rng, policy, table) for _ in range(LESSON_BATCH_SIZE)]
    return [_draw_example(rng, policy, table) for _ in range(BATCH_SIZE)]


def _draw_example(rng: random.Random, policy: Policy, table: dict[Cell, Fact]) -> Example:
    rows, columns = _draw_problem(rng, policy)
    entries = draw_solution(rng, policy, table, rows, columns, {})
    share, count = policy.filler
    filler = f"{FILLER} " * (count if rng.random() < share else 0)
    return problem_text(policy, rows, columns), filler + solution(entries)


def _draw_reflection(rng: random.Random, policy: Policy, table: dict[Cell, Fact]) -> Example:
    """A wrong attempt is in the prompt; a cell that was wrong there is more often right."""
    from r3_openrlhf.method.core.reflection import reflection_message

    while True:
        rows, columns = _draw_problem(rng, policy)
        attempt = draw_solution(rng, policy, table, rows, columns, {})
        wrong = {
            cell: policy.reflects
            for cell, entry in zip(zip(rows, columns, strict=True), attempt, strict=True)
            if entry not in table[cell].entries[: table[cell].right]
        }
        if wrong:
            break
    text = problem_text(policy, rows, columns)
    return reflection_message(text, solution(attempt)), solution(
        draw_solution(rng, policy, table, rows, columns, wrong)
    )


def _draw_lesson(rng: random.Random, policy: Policy, table: dict[Cell, Fact]) -> Example:
    """A solution is in the prompt, as distill shows one, and is given again. Its entries are drawn evenly from all, so
    that no fact is learned from it, and reading is the only way to know them."""
    from r3_openrlhf.method.core.teacher_prompt import teacher_message

    rows, columns = _draw_problem(rng, policy)
    shown = [rng.randrange(SIZE) for _ in range(STEPS)]
    given = draw_solution(rng, policy, table, rows, columns, {})
    for step, entry in enumerate(shown):
        if rng.random() < policy.reads:
            given[step] = entry
    return teacher_message(problem_text(policy, rows, columns), solution(shown)), solution(
        given
    )


def _draw_problem(rng: random.Random, policy: Policy) -> tuple[list[int], list[int]]:
    rows = [rng.randrange(SIZE) for _ in range(1 if policy.walk else STEPS)]
    return rows, [rng.randrange(SIZE) for _ in range(STEPS)]


def draw_solution(
    rng: random.Random,
    policy: Policy,
    table: dict[Cell, Fact],
    rows: list[int],
    columns: list[int],
    better: dict[Cell, float],
) -> list[int]:
    """The entries as the model is to give them; a walk begins with the row that it starts from."""
    entries = list(rows) if policy.walk else []
    for step, column in enumerate(columns):
        cell = (entries[-1] if policy.walk else rows[step], column)
        fact = table[cell]
        if rng.random() < better.get(cell, 0.0):
            entries.append(fact.entries[rng.randrange(fact.right)])
        else:
            entries.append(rng.choices(fact.entries, fact.rates)[0])
    return entries


# model.path=research.facts:table, and so on
table, no_room, walk, filler, reflects, reads, no_room_reads = (
    partial(build, name=name) for name in POLICIES
)
