"""The groups of a step; and one of them: side by side, by token, turn by turn."""

from collections.abc import Sequence
from typing import Any

from r3_openrlhf.method.core.reflection import ATTEMPT_BEGINS, ATTEMPT_ENDS, CUT
from r3_openrlhf.method.types import Context
from r3_openrlhf.runs.step_groups import trajectories_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.rendering import render
from r3_openrlhf.view.responses import by_advantage, of_group, open_group, ranked_points
from r3_openrlhf.view.run_reader import NotThere
from r3_openrlhf.view.tokens import MISSING, texts_of, token_values


def step_page(library: Library, name: str, step: int) -> str:
    """Render the groups of a step, in a table that sorts and filters."""
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


def group_page(library: Library, name: str, step: int, context: str, uid: str) -> str:
    """Render a problem's responses side by side."""
    opened = open_group(library, name, step, context, uid)
    run, group = opened.run, opened.group
    groups = run.groups(step)
    place = groups.index(group)
    prompt = next((row["prompt"] for row in opened.rows if row["prompt"]), None)
    shown = sorted(map(opened.shown, range(len(opened.rows))), key=by_advantage)
    return render(
        "group.html",
        **opened.names,
        prompt=prompt,
        attempt=_attempt_in(prompt) if group.context is Context.REFLECTION else None,
        shown=shown,
        played={
            row["at"]: one.place for one in trajectories_of(group.rows) for row in one.rows
        },  # of a row
        points=ranked_points(opened.rows),
        shown_at={response.place: response.at for response in shown},
        previous=groups[place - 1] if place else None,
        next=groups[place + 1] if place + 1 < len(groups) else None,
        other=next(
            (
                other
                for other in groups
                if other.uid == uid and other.context is not group.context
            ),
            None,
        ),
    )


def trajectory_page(
    library: Library, name: str, step: int, place: int, context: str, uid: str
) -> str:
    """Render a trajectory, turn by turn. Raises NotThere."""
    opened = open_group(library, name, step, context, uid)
    run, played = opened.run, trajectories_of(opened.rows)
    if not 0 <= place < len(played):
        has = f"trajectories 0 to {len(played) - 1}" if played else "no trajectories"
        raise NotThere(
            f"the {context} group of {uid} in step {step} of {run.name} has {has}, and no {place}"
        )
    settings = run.config.agents if run.config is not None else None
    return render(
        "trajectory.html",
        **opened.names,
        played=played,
        this=played[place],
        settings=settings,
    )


def tokens_page(
    library: Library, name: str, step: int, context: str, uid: str, place: int
) -> str:
    """Render a response as a heat map."""
    tokens = tokens_of_group(library, name, step, context, uid, only=[place])
    opened = open_group(library, name, step, context, uid)
    return render("tokens.html", **opened.names, one=opened.shown(place), tokens=tokens)


def tokens_of_group(
    library: Library,
    name: str,
    step: int,
    context: str,
    uid: str,
    *,
    only: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Values of the tokens of a group, as plain JSON. only: places of the wanted responses."""
    opened = open_group(library, name, step, context, uid)
    run, config = opened.run, opened.run.config
    places = range(len(opened.rows)) if only is None else only
    for place in places:
        if not 0 <= place < len(opened.rows):
            raise NotThere(
                f"this group has responses 0 to {len(opened.rows) - 1}, and no {place}"
            )
    columns = of_group(run, step, opened.group, run.token_columns(step, uid))
    rows, of_rows = ([values[place] for place in places] for values in (opened.rows, columns))
    texts, why_no_texts = texts_of(run)
    values, why = token_values(run, rows, of_rows, step=step, texts=texts)
    peak_fraction = config.ranking.peak_fraction if config else None
    return {
        "responses": [
            known and known.as_json(place, peak_fraction)
            for place, known in zip(places, values, strict=True)
        ],
        "why": why_no_texts if why == MISSING else why,
        "clip": [1 - config.train.eps_clip_low, 1 + config.train.eps_clip_high]
        if config
        else None,
    }


def _attempt_in(prompt: str | None) -> tuple[str, str, str, bool] | None:
    """(before, stored attempt, after, whether it was shortened) of a reflection prompt."""
    if prompt is None or ATTEMPT_BEGINS not in prompt or ATTEMPT_ENDS not in prompt:
        return None
    before, _, shown = prompt.partition(ATTEMPT_BEGINS)
    attempt, _, behind = shown.rpartition(ATTEMPT_ENDS)
    return before, attempt.strip("\n"), behind, CUT in attempt
