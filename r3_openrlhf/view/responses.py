"""The rows of a group as its pages show them: texts, answers, and rewards taken apart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.problem_files import Problem
from r3_openrlhf.runs.step_groups import Row, StepGroup
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.run_reader import RunReader

Value = TypeVar("Value")
_NAMES = {Verdict.CORRECT: "right", Verdict.WRONG: "wrong", Verdict.UNGRADED: "ungraded"}


@dataclass(frozen=True, slots=True)
class Shown:
    """One response on a page."""

    place: int  # in the group
    at: int  # in the step's file
    row: Row
    verdict: str
    answer: str | None  # that the grader found in it
    parts: list[tuple[str, float]]
    age: int | None  # of a recalled row, in steps
    extras: dict[str, float | str]  # what a reward function returned with its reward


@dataclass(frozen=True, slots=True)
class Opened:
    """A group with everything that its pages show."""

    run: RunReader
    step: int
    group: StepGroup
    rows: list[Row]  # with their texts
    problem: Problem | None

    @property
    def names(self) -> dict[str, Any]:
        """Return the parts under the names that templates use."""
        return {
            "run": self.run,
            "step": self.step,
            "group": self.group,
            "problem": self.problem,
        }

    def shown(self, place: int) -> Shown:
        """Return a row as it is shown."""
        row, config = self.rows[place], self.run.config
        return Shown(
            place=place,
            at=self.group.rows[place]["at"],
            row=row,
            verdict=_NAMES[Verdict(row["verdict"])],
            answer=_answer_in(row, self.run),
            parts=reward_parts(
                row, returned=bool(config is not None and config.reward.all_functions)
            ),
            extras=_extras_in(row),
            age=None if row["recalled_from"] is None else self.step - row["recalled_from"],
        )


def open_group(library: Library, name: str, step: int, context: str, uid: str) -> Opened:
    """Open a group of a step. Raises NotThere."""
    run = library.run(name)
    group = run.group(step, context, uid)
    rows = of_group(run, step, group, run.rows_with_text(step, uid))
    return Opened(run, step, group, rows, run.problem(uid))


def of_group(
    run: RunReader, step: int, group: StepGroup, values: Sequence[Value]
) -> list[Value]:
    """Return the group's part of a list over all rows of a problem in a step, in file order."""
    wanted = {row["at"] for row in group.rows}
    places = [row["at"] for row in run.rows(step) if row["uid"] == group.uid]
    if len(places) != len(values):
        raise R3Error(
            f"step {step} of {run.path} has changed while it was read; load the page again"
        )
    return [value for place, value in zip(places, values, strict=True) if place in wanted]


def _extras_in(row: Row) -> dict[str, float | str]:
    """Nothing where the file of a stranger holds something else."""
    try:
        extras = json.loads(row.get("extras") or "{}")
    except (ValueError, RecursionError):
        return {}
    plain = extras.items() if isinstance(extras, dict) else ()
    return {name: value for name, value in plain if isinstance(value, float | int | str)}


def _answer_in(row: Row, run: RunReader) -> str | None:
    """Return the answer that the grader read; a recalled row's is in the file of its own step."""
    if row["recalled_from"] is None or not row["text"]:
        return row.get("answer")
    try:
        sampled = run.rows_with_text(row["recalled_from"], row["uid"])
    except R3Error:
        return None
    wanted = row["text"].split()  # tokenizers differ in spaces
    return next(
        (
            other["answer"]
            for other in sampled
            if other["answer"] and (other["text"] or "").split() == wanted
        ),
        None,
    )


def by_advantage(response: Shown) -> tuple[bool, float, int]:
    """Order of responses: the highest advantage first, those without one last."""
    advantage = response.row["advantage"]
    return advantage is None, -(advantage or 0.0), response.place


def reward_parts(row: Row, *, returned: bool = False) -> list[tuple[str, float]]:
    """Split the reward of a row into named parts; [] without one. returned: by a function.

    A correct row has 1 for the verdict, the rest for its length; a ranked one has the ranking's
    reward besides, which ranking.guard and the successes of the group may lower; what was added or
    taken besides (DAPO's penalty) comes last."""
    outcome, ranking, reward = row["outcome_reward"], row["ranking_reward"], row["reward"]
    if outcome is None or reward is None:
        return []
    verdict = 1.0 if row["verdict"] == Verdict.CORRECT else 0.0
    parts = [("returned", outcome)] if returned else [("verdict", verdict)]
    if outcome != verdict and not returned:
        parts.append(("length", outcome - verdict))
    if ranking is not None:
        parts.append(("ranking", ranking))
    paid = outcome + (ranking or 0.0)
    if reward != paid:
        parts.append(("penalty on length" if ranking is None else "centring", reward - paid))
    return parts


def ranked_points(rows: Sequence[Row]) -> dict[int, tuple[float, float, list[int]]]:
    """Ranked row -> its peak and global entropy, nats per token, and the rows that it dominates:
    higher peak and lower global entropy, strictly (method/core/ranking.py)."""
    measured = {
        place: (row["entropy_peak"], row["entropy_global"])
        for place, row in enumerate(rows)
        if row.get("ranked")
        and row["entropy_peak"] is not None
        and row["entropy_global"] is not None
    }
    return {
        place: (
            peak,
            global_,
            [other for other, (p, g) in measured.items() if peak > p and global_ < g],
        )
        for place, (peak, global_) in measured.items()
    }
