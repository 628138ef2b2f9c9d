"""One step: a strip per group."""

from __future__ import annotations

from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render


def step_page(library: Library, name: str, step: int) -> str:
    """The groups of a step, in a table that sorts and filters."""
    run = library.run(name)
    groups = run.groups(step)
    steps = run.steps()
    place = steps.index(step)
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
    )
