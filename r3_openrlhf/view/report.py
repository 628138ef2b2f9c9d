"""`r3 report`: runs in one page for mail, without scripts, other files or another host."""

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from r3_openrlhf.comparison.table import FIRST, table_rows
from r3_openrlhf.config.loading import config_to_yaml
from r3_openrlhf.method.errors import R3Error, without_secrets
from r3_openrlhf.runs.effect import effect_of
from r3_openrlhf.view.curves import curves_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.overview import comparison_of, notes_of, summary
from r3_openrlhf.view.rendering import STATIC, render

MAX_POINTS = 160  # of a curve; a longer one is shown as means of equal parts
MAX_VALUES = 60_000  # points of all curves
_DARK = re.compile(r':root\[data-theme="dark"\][^{]*\{[^}]*\}')


def report(library: Library) -> str:
    """Render the page: what changed, the curves and the settings of all open runs.

    R3Error: no run is open.
    """
    runs = list(library.runs.values())
    if not runs:
        raise R3Error(
            "r3 report needs a run directory; an evaluation alone is shown by r3 view"
        )
    curves = curves_of(runs, counted=True)
    compared, _ = comparison_of(runs) if len(runs) > 1 else (None, None)
    css = (STATIC / "view.css").read_text(encoding="utf-8")
    return render(
        "report.html",
        link=lambda *_: None,  # there is no other page
        css=Markup(css),
        dark=Markup("".join(_DARK.findall(css)).replace(':root[data-theme="dark"]', ":root")),
        runs=[summary(run) for run in runs],
        notes=notes_of(runs),
        comparison=compared,
        rows=table_rows(compared) if compared else [],
        first=FIRST,
        effects={run.name: effect_of(run.directory) if run.steps() else None for run in runs},
        sections=[
            (
                section["title"],
                [(chart, drawing(chart, curves["runs"])) for chart in section["charts"]],
            )
            for section in curves["sections"]
        ],
        settings={
            run.name: without_secrets(config_to_yaml(run.config))
            for run in runs
            if run.config is not None
        },
    )


# ── charts ──


def drawing(chart: dict[str, Any], runs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Lay out a chart of `curves_of` for report.html: a line per run and series, and the axes' ends."""
    lines: list[dict[str, Any]] = [
        {
            "name": f"{run['name']} {series['label']}",
            "colour": number if len(runs) > 1 else series["colour"],
            "points": points,
        }
        for number, run in enumerate(runs)
        for series in chart["series"]
        if series["key"] in run["series"] and (points := _points(run, series["key"], len(runs)))
    ]
    if not lines:
        return None
    steps, values = zip(*(point for line in lines for point in line["points"]), strict=True)
    first, flat = min(steps), max(0.0, min(values))
    return {
        "lines": lines,
        "low": min(0.0, min(values)),  # what is never negative starts at 0
        "high": max(values)
        if max(values) > flat
        else flat + 1,  # a flat curve has a height, too
        "first": first,
        "last": max(*steps, first + 1),
    }


def _points(run: dict[str, Any], key: str, num_runs: int) -> list[tuple[float, float]]:
    steps = run["held_out"]["steps"] if key.startswith("held_out:") else run["steps"]
    points = [
        (step, value)
        for step, value in zip(steps, run["series"][key], strict=True)
        if value is not None
    ]
    most = max(12, min(MAX_POINTS, MAX_VALUES // (60 * num_runs)))
    size = -(-len(points) // most) or 1
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [(part[len(part) // 2][0], fmean(value for _, value in part)) for part in parts]
