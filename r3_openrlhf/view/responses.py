"""The rows of a group as its pages show them: with their texts, their answers, and rewards taken apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.problem_files import Problem
from r3_openrlhf.view.run_reader import Row, RunReader
from r3_openrlhf.view.site import NotThere, Site, find_group
from r3_openrlhf.view.step_groups import StepGroup, reward_parts
from r3_openrlhf.view.token_values import stored_rollouts

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
        """Its parts as templates call them."""
        return {"run": self.run, "step": self.step, "group": self.group, "problem": self.problem}

    def shown(self, place: int) -> Shown:
        """One of its rows."""
        row, config = self.rows[place], self.run.config
        return Shown(
            place=place,
            at=self.group.rows[place]["at"],
            row=row,
            verdict=_NAMES[Verdict(row["verdict"])],
            answer=_answer_in(row, self.run),
            parts=reward_parts(row, returned=bool(config is not None and config.reward.all_functions)),
            extras=_extras_in(row),
            age=None if row["recalled_from"] is None else self.step - row["recalled_from"],
        )

    def check(self, place: int) -> None:
        """Raises NotThere where the group has no such row."""
        if not 0 <= place < len(self.rows):
            raise NotThere(f"this group has responses 0 to {len(self.rows) - 1}, and no {place}")


def open_group(site: Site, name: str, step: int, context: str, uid: str) -> Opened:
    """A group of a step. A recalled row is written without its text, which the history knows. Raises NotThere."""
    run = site.run(name)
    group = find_group(run, step, context, uid)
    rows = of_group(run, step, group, run.rows_with_text(step, uid))
    texts = None
    for row in rows:
        if not row["text"] and row["recalled_from"] is not None:
            texts = texts or site.texts_of(run)
            (stored,) = stored_rollouts(run, [row], step=step, texts=texts).found
            if stored is not None and texts is not None:
                row["text"] = texts.text(stored.rollout.response_ids.tolist())
    return Opened(run, step, group, rows, run.problem(uid))


def of_group(run: RunReader, step: int, group: StepGroup, values: Sequence[Value]) -> list[Value]:
    """The part of a list for all rows of a problem in a step, in the order of the file, that belongs to the group."""
    wanted = {row["at"] for row in group.rows}
    places = [row["at"] for row in run.rows(step) if row["uid"] == group.uid]
    if len(places) != len(values):
        raise R3Error(f"step {step} of {run.path} has changed while it was read; load the page again")
    return [value for place, value in zip(places, values, strict=True) if place in wanted]


def _extras_in(row: Row) -> dict[str, float | str]:
    """Nothing where the file of a stranger holds something else."""
    try:
        found = json.loads(row.get("extras") or "{}")
    except (ValueError, RecursionError):
        return {}
    plain = found if isinstance(found, dict) else {}
    return {name: value for name, value in plain.items() if isinstance(value, float | int | str)}


def _answer_in(row: Row, run: RunReader) -> str | None:
    """The one that the grader found; of a recalled row it is in the file of the step that sampled it."""
    if row["recalled_from"] is None or not row["text"]:
        return row.get("answer")
    try:
        sampled = run.rows_with_text(row["recalled_from"], row["uid"])
    except R3Error:
        return None
    wanted = row["text"].split()  # tokenizers differ in spaces
    return next((one["answer"] for one in sampled if one["answer"] and (one["text"] or "").split() == wanted), None)


def by_advantage(one: Shown) -> tuple[bool, float, int]:
    """The highest first, those without one last."""
    return one.row["advantage"] is None, -(one.row["advantage"] or 0.0), one.place


def extremes_of(responses: Sequence[Shown]) -> tuple[int, int] | None:
    """Places of the best and of the worst response that has a text."""
    found = [one.place for one in sorted(responses, key=by_advantage) if one.row["text"]]
    return (found[0], found[-1]) if len(found) > 1 else None
