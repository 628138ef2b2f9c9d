"""`r3 check-tests`: each row's tests against its own solutions, and against programs that do nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from r3_openrlhf.config import DataConfig, RewardConfig
from r3_openrlhf.config.code_tests import read_tests, statements
from r3_openrlhf.method.errors import DataError
from r3_openrlhf.problems.code_rows import parsed, problem_column, shape_of, tests_and_problem
from r3_openrlhf.problems.files import load_table
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.table import plain_row

if TYPE_CHECKING:
    from r3_openrlhf.evaluation.grading import Grading

MOST_SOLUTIONS = 3  # of a row, from the first on
SOLUTIONS = (
    "canonical_solution",
    "completion",
    "code",
    "solution",
    "solutions",
    "gold_standard_solution",
    "reference_solution",
)
PYTHON = ("python", "python3", "3")  # CodeContests' number of it, too
HOLDS_UP = "hold up"
HOLDS_WITHOUT_SOLUTION = "hold up, without a solution"
HOLDS = (HOLDS_UP, HOLDS_WITHOUT_SOLUTION)


@click.command("check-tests")
@click.argument("path", metavar="FILE")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    help="A new file for the rows that hold up, JSON Lines.",
)
@click.option("--problem-key", default=None, help="As data.problem_key.")
@click.option("--answer-key", default=None, help="As data.answer_key.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Programs at one time.",
)
def check_tests(
    path: str, into: Path | None, problem_key: str | None, answer_key: str | None, workers: int
) -> None:
    """Run each row's tests on the row's own solutions, twice, and on programs that do nothing.

    Lists the rows that do not hold up; exit code 1 if there are any and no --into.

    \b
    r3 check-tests train.jsonl --into checked.jsonl
    """
    from r3_openrlhf.evaluation.grading import Grading

    if into is not None and into.exists():
        raise DataError(f"--into is {into}, which exists; name a new file")
    table = load_table(
        DataConfig(path=path, task="code", problem_key=problem_key, answer_key=answer_key)
    )
    shape = shape_of(table.columns, path=path, answer_key=answer_key)
    key = problem_column(shape, table.columns, path=path, problem_key=problem_key)
    counts: Counter[str] = Counter()
    kept: list[str] = []
    with Grading(RewardConfig(num_workers=workers)) as grading:
        for place, row in table.rows(None):
            try:
                if isinstance(row, DataError):
                    raise row
                plain = plain_row(row)
                kind, why = judged(tests_and_problem(shape, row, key)[0], plain, grading)
            except DataError as error:
                kind, why = "left out", str(error)
            counts[kind] += 1
            if kind in HOLDS:
                kept.append(json.dumps(plain, ensure_ascii=False))
            else:
                click.echo(f"{place}: {kind} ({why})")
    click.echo("; ".join(f"{number} {kind}" for kind, number in counts.most_common()))
    if into is not None:
        into.write_text("".join(f"{line}\n" for line in kept), "utf-8")
    sys.exit(into is None and len(kept) < counts.total())


def judged(tests: str, row: dict[str, Any], grading: Grading) -> tuple[str, str]:
    """Return what a row is, by its tests, and why."""
    from r3_openrlhf.evaluation.attacks.generate import program_attacks

    solutions = solutions_of(row)
    language = read_tests(tests).language
    idle = [text for family, text in program_attacks(tests) if family == "nothing"]
    # each solution twice; with another line at its end, as one text would run once
    again = [f"{text}\n" for text in solutions]
    texts = [*solutions, *again, *idle]
    label = Label(uid="", problem="", references=[tests], task="code")
    requests = []
    for text in texts:
        response = f"```{language}\n{text}\n```"
        requests.append(grading.request(label, response, num_tokens=1, truncated=False))
    grades = grading.grade(requests)
    for grade in grades:
        if grade.verdict == "ungraded":
            return "not graded", grade.reason
    for text, grade in zip(texts, grades, strict=True):
        if text in idle and grade.score == 1:
            return "passed by a program that does nothing", repr(text)
    num_solutions = len(solutions)
    firsts = grades[:num_solutions]
    seconds = grades[num_solutions : 2 * num_solutions]
    for first, second in zip(firsts, seconds, strict=True):
        if first.verdict != second.verdict:
            return "flaky", f"{first.reason} and {second.reason}"
    if not solutions:
        return HOLDS_WITHOUT_SOLUTION, ""
    if not any(grade.verdict == "correct" for grade in firsts):
        return "failed by its own solution", grades[0].reason
    return HOLDS_UP, ""


def solutions_of(row: dict[str, Any]) -> list[str]:
    """Return the first solutions in Python that a row has; a body alone goes after its prompt."""
    prompt = row.get("prompt", "")
    solutions = []
    for text in _texts_in(_cell_of_solutions(row))[:MOST_SOLUTIONS]:
        is_whole = statements(text) is not None
        solutions.append(text if is_whole else f"{prompt}{text}")
    return solutions


def _cell_of_solutions(row: dict[str, Any]) -> object:
    """Return the first cell with solutions, a JSON text as what it holds; None: there is none."""
    for name in SOLUTIONS:
        cell = row.get(name)
        if cell:
            is_json = isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{")
            return parsed(cell) if is_json else cell
    return None


def _texts_in(cell: object) -> list[str]:
    """Return the programs in a cell: one, a list, or CodeContests's languages and texts."""
    if isinstance(cell, str):
        return [cell]
    if isinstance(cell, dict):
        pairs = zip(cell.get("language") or [], cell.get("solution") or [], strict=False)
        cell = [text for language, text in pairs if str(language).lower() in PYTHON]
    if not isinstance(cell, Iterable):
        return []
    return [text for text in cell if isinstance(text, str)]
