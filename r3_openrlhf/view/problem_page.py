"""A problem over the steps of all open runs: groups, when it was hard, recalls, reflection."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.settings import ReflectionSettings
from r3_openrlhf.method.types import Context, HardBy, Verdict
from r3_openrlhf.runs.step_groups import Row, StepGroup, groups_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render
from r3_openrlhf.view.run_reader import NotThere, RunReader
from r3_openrlhf.view.search import rollouts_of_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One group of the problem."""

    step: int
    group: StepGroup
    # mean reward, or share right (reflection.hard_by), of all plain graded before this step
    stored_mean: float | None
    is_hard: bool  # that is below reflection.threshold
    sources: list[int]  # steps that its recalled rows came from
    recalled_by: list[int]  # steps that recalled what was sampled here


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The history of a problem in one run."""

    run: RunReader
    points: list[Moment]
    threshold: float | None
    hard_by: str


def problem_page(library: Library, name: str, uid: str) -> str:
    """Show what happened to a problem over the steps of every open run."""
    opened = library.run(name)
    lives, notes = [], []
    for run in [opened, *(run for run in library.runs.values() if run is not opened)]:
        try:
            rollouts, faults = rollouts_of_problem(run, uid)
        except R3Error as error:
            rollouts, faults = [], [str(error)]
        notes += faults
        if rollouts:
            lives.append(life_of(run, rollouts))
    problem = opened.problem(uid)
    if not lives and problem is None and not notes:
        raise NotThere(f"no open run has sampled a problem {uid}")
    return render(
        "problem.html", run=opened, uid=uid, problem=problem, lives=lives, notes=notes
    )


def life_of(run: RunReader, rollouts: Sequence[Row]) -> Life:
    """Summarise all rollouts of the problem, given in the order of steps."""
    settings = run.config.reflection if run.config is not None else ReflectionSettings()
    tau = settings.threshold if run.config is not None else None
    groups = [
        (step, group)
        for step, rows in groupby(
            sorted(rollouts, key=itemgetter("step")), key=itemgetter("step")
        )
        for group in groups_of(list(rows), step=step)
    ]
    points: list[Moment] = []
    stored: list[float] = []
    for step, group in groups:
        is_plain = group.context is Context.PLAIN
        mean = fmean(stored) if stored else None
        recalls = (
            {row["step"] for row in rollouts if row["recalled_from"] == step}
            if is_plain
            else set()
        )
        points.append(
            Moment(
                step=step,
                group=group,
                stored_mean=mean,
                is_hard=is_plain and mean is not None and tau is not None and mean < tau,
                sources=sorted(
                    {row["recalled_from"] for row in group.rows if row["recalled_from"]}
                ),
                recalled_by=sorted(recalls),
            )
        )
        for row in group.rows if is_plain else ():
            if row["recalled_from"] is None and row["outcome_reward"] is not None:
                is_reward = settings.hard_by == HardBy.REWARD
                stored.append(
                    row["outcome_reward"]
                    if is_reward
                    else float(row["verdict"] == Verdict.CORRECT)
                )
    return Life(run=run, points=points, threshold=tau, hard_by=settings.hard_by)
