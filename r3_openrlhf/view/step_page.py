"""One step: a strip per group."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from r3_openrlhf.runs.step_groups import StepGroup
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render

SHORT_SHARE = 0.25  # a right response is very short below this share of the step's mean length


def step_page(library: Library, name: str, step: int) -> str:
    """The groups of a step, in a table that sorts and filters."""
    run = library.run(name)
    groups = run.groups(step)
    steps = run.steps()
    place = steps.index(step)
    tokens = [row["num_tokens"] for group in groups for row in group.rows if row["recalled_from"] is None]
    metrics = next((line for line in run.metrics() if line["step"] == step), {})
    return render(
        "step.html",
        run=run,
        step=step,
        groups=groups,
        problems={group.uid: run.problem(group.uid) for group in groups},
        previous=steps[place - 1] if place else None,
        next=steps[place + 1] if place + 1 < len(steps) else None,
        first=steps[0],
        last=steps[-1],
        metrics=metrics,
        largest_share=max((group.share for group in groups), default=0.0),
        short_tokens=max(1, round(SHORT_SHARE * fmean(tokens))) if tokens else 1,
        counts=_counts(groups),
    )


def _counts(groups: Sequence[StepGroup]) -> dict[str, Any]:
    return {
        "groups": len(groups),
        "rows": sum(len(group.rows) for group in groups),
        "fresh": sum(group.num_fresh for group in groups),
        "unit": "trajectories" if any(group.rows[0].get("trajectory") is not None for group in groups) else "rollouts",
        "recalled": sum(group.num_recalled for group in groups),
    }
