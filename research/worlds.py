"""Problems for the models of research/facts.py, drawn anew for every seed: a world is one record.

    data.path=research.worlds:problems   data.reasoning_gym={world: own_skills, seed: 1, part: train}

A rare problem asks for two hard cells and two easy ones, any other for a half-known cell and three easy ones. Held-out problems
ask for the same cells in other company. The answer is the whole solution, and every solution without a wrong step is
accepted, so a verdict is earned by construction; `is_earned` follows the steps to check it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import nearest
from research.facts import (
    EASY,
    HALF_KNOWN,
    HARD,
    POLICIES,
    SIZE,
    STEPS,
    Cell,
    Fact,
    Policy,
    facts,
    problem_text,
    symbols,
)

PARTS = ("train", "held_out")
MAX_TRIES = 10_000  # of one problem; a walk has to find a way through the cells that are left


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Questions to one model.

    Attributes:
        policy: one of POLICIES.
        rare: share of the problems with hard cells.
        reuse: training problems that ask for the same hard cell; 1: every rare problem has skills of its own.
        train, held_out: numbers of problems.
    """

    policy: str = "table"
    rare: float = 0.75
    reuse: int = 1
    train: int = 256
    held_out: int = 192


WORLDS = {
    "own_skills": World(),
    "shared_skills": World(reuse=4),
    "no_room": World(policy="no_room"),
    "walk": World(policy="walk"),
    "may_go_on": World(policy="filler"),
    "visible_errors": World(policy="reflects"),
}


def problems(
    *, world: str, seed: int, part: str, **of_solutions: float | str
) -> Iterator[dict[str, Any]]:
    """The rows of one world's training or held-out problems: problem, and every right answer.
    of_solutions: see research/successes.py; the problems are the same.

    Raises:
        ConfigError: no such world, part or key, a seed that is no whole number.
    """
    if world not in WORLDS:
        raise ConfigError(
            f"data.reasoning_gym.world is {quoted(world)}, which does not exist; {nearest(world, WORLDS)}"
        )
    check(seed, part, of_solutions)
    return iter(_draw(WORLDS[world], seed)[part])


def check(seed: int, part: str, of_solutions: Iterable[str]) -> None:
    """ConfigError: no such part or key, a seed that is no whole number."""
    if part not in PARTS:
        raise ConfigError(
            f"data.reasoning_gym.part is {quoted(part)}; use {' or '.join(PARTS)}"
        )
    for key in set(of_solutions) - {"solved", "style", "warm_up"}:
        raise ConfigError(
            f"data.reasoning_gym.{key} does not exist; use solved, style or warm_up (research/successes.py)"
        )
    if type(seed) is not int:
        raise ConfigError(f"data.reasoning_gym.seed is {quoted(seed)}; use a whole number")


@lru_cache(maxsize=2)  # a run asks for both parts
def _draw(world: World, seed: int) -> dict[str, list[dict[str, Any]]]:
    policy = POLICIES[world.policy]
    table, rng = facts(policy), random.Random(f"world/{seed}")
    of_kind = {
        kind: [cell for cell, fact in table.items() if fact.kind == kind]
        for kind in (HARD, HALF_KNOWN, EASY)
    }
    num_rare = round(world.rare * world.train)
    if not policy.walk:  # in a walk a cell has to lie on the way, so it may be any
        of_kind[HARD] = rng.sample(of_kind[HARD], round(2 * num_rare / world.reuse))
    uses: Counter[Cell] = Counter()
    seen: set[str] = set()
    parts: dict[str, list[dict[str, Any]]] = {}
    for part, size in zip(PARTS, (world.train, world.held_out), strict=True):
        trains = part == "train"
        known = (
            of_kind
            if trains
            else {**of_kind, HARD: [cell for cell in of_kind[HARD] if uses[cell]]}
        )
        rows = []
        for number in range(size):
            rare = number < round(world.rare * size)
            kinds = [HARD, HARD, EASY, EASY] if rare else [HALF_KNOWN, EASY, EASY, EASY]
            limit = {HARD: world.reuse} if trains else {}
            text, references = _problem(policy, table, known, kinds, rng, uses, limit, seen)
            seen.add(text)
            rows.append({"problem": text, "answer": references})
        rng.shuffle(rows)
        parts[part] = rows
    return parts


def _problem(
    policy: Policy,
    table: dict[Cell, Fact],
    known: dict[str, list[Cell]],
    kinds: list[str],
    rng: random.Random,
    uses: Counter[Cell],
    limit: dict[str, int],
    seen: set[str],
) -> tuple[str, list[str]]:
    for _ in range(MAX_TRIES):
        rng.shuffle(kinds)
        cells = _cells(policy, table, known, kinds, rng, uses, limit)
        if len(cells) < STEPS:
            continue
        rows = [row for row, _ in cells]
        columns = [column for _, column in cells]
        text = problem_text(policy, rows[:1] if policy.walk else rows, columns)
        if text in seen:
            continue
        uses.update(cell for cell, kind in zip(cells, kinds, strict=True) if kind in limit)
        solutions = right_solutions(policy, table, rows, columns)
        return text, [symbols(entries) for entries in solutions]
    raise ConfigError("the world has more problems than its cells can make; ask for fewer")


def _cells(
    policy: Policy,
    table: dict[Cell, Fact],
    known: dict[str, list[Cell]],
    kinds: list[str],
    rng: random.Random,
    uses: Counter[Cell],
    limit: dict[str, int],
) -> list[Cell]:
    """Draw a cell of each kind; fewer where no cell of a kind is free. Of a kind with a limit the
    least used come first, so all of them are used alike."""
    cells: list[Cell] = []
    for kind in kinds:
        free = [cell for cell in known[kind] if cell not in cells]
        if policy.walk and cells:
            row = table[cells[-1]].entries[0]
            free = [cell for cell in free if cell[0] == row]
        if kind in limit:
            fewest = min((uses[cell] for cell in free), default=0)
            free = [cell for cell in free if uses[cell] == fewest < limit[kind]]
        if not free:
            break
        cells.append(rng.choice(free))
    return cells


def right_solutions(
    policy: Policy, table: dict[Cell, Fact], rows: list[int], columns: list[int]
) -> list[list[int]]:
    """Every solution without a wrong step. `rows`: of the first step at least."""
    solutions = [[rows[0]] if policy.walk else []]
    for step, column in enumerate(columns):
        solutions = [
            [*entries, entry]
            for entries in solutions
            for entry in _right(table[entries[-1] if policy.walk else rows[step], column])
        ]
    return solutions


def _right(fact: Fact) -> tuple[int, ...]:
    return fact.entries[: fact.right]


def _numbers(axis: str, text: str) -> list[int]:
    return [int(number) for number in re.findall(rf"{axis}(\d+)", text)]


def is_earned(world: str) -> Callable[[str, str], bool]:
    """A function of (problem, response): is every step in the response's box right? It reads no reference answer.

    What stands behind a complete box says nothing: models forget their end token. Two boxes with something in them are not earned."""
    policy = POLICIES[WORLDS[world].policy]
    table = facts(policy)

    def earned(problem: str, response: str) -> bool:
        boxes = re.findall(r"\\boxed\{([^{}]+)\}", response)
        written = _numbers("r", boxes[0]) if len(boxes) == 1 else []
        cells = [divmod(number, SIZE) for number in _numbers("c", problem)]
        if policy.walk:
            started, written = written[:1] == _numbers("r", problem), written[1:]
            cells = list(
                zip([*_numbers("r", problem), *written], _numbers("x", problem), strict=False)
            )
            if not started:
                return False
        return len(written) == STEPS and all(
            cell in table and entry in _right(table[cell])
            for cell, entry in zip(cells, written, strict=True)
        )

    return earned
