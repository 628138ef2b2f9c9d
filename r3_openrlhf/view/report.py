"""`r3 report`: runs in one page for mail, without scripts, other files or another host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from statistics import fmean
from typing import Any

from markupsafe import Markup

from r3_openrlhf.comparison.table import FIRST, table_rows
from r3_openrlhf.config.loading import config_to_yaml
from r3_openrlhf.method.errors import R3Error, without_secrets
from r3_openrlhf.runs.effect import effect_of
from r3_openrlhf.runs.step_groups import StepGroup
from r3_openrlhf.view.curves import curves_of
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.overview import comparison_of, summary
from r3_openrlhf.view.rendering import STATIC, render
from r3_openrlhf.view.responses import Opened, Shown, by_advantage, open_group
from r3_openrlhf.view.run_reader import RunReader

MAX_BYTES = 3_000_000
MAX_GROUPS, NEWEST = 12, 20  # groups of all runs; steps in which they are looked for
TEXT_START, TEXT_END = 2400, 600  # characters that are shown of a longer text
MAX_POINTS = 160  # of a curve; a longer one is shown as means of equal parts
MAX_VALUES = 60_000  # points of all curves
_DARK = re.compile(r':root\[data-theme="dark"\][^{]*\{[^}]*\}')

# Reason for a group in the report -> test.
REASONS = {
    "repaired by replay": lambda group: group.fate == "recalled",
    "asked again with a stored error": lambda group: group.context == "reflection",
    "only ranked": lambda group: group.fate == "ranked",
    "collapsed, and nothing was found for it": lambda group: group.fate not in (None, "recalled", "ranked"),
    "right and wrong responses": lambda group: group.state == "mixed",
    "with an ungraded response": lambda group: group.num_ungraded > 0,
}


def report(library: Library) -> str:
    """The page: what changed, the curves, some groups and the settings of all open runs.

    Raises:
        R3Error: no run is open, or the page would have more than MAX_BYTES.
    """
    runs = list(library.runs.values())
    if not runs:
        raise R3Error("r3 report needs a run directory; an evaluation alone is shown by r3 view")
    curves = curves_of(runs, counted=True)
    compared, _ = comparison_of(runs) if len(runs) > 1 else (None, None)
    css = (STATIC / "view.css").read_text(encoding="utf-8")
    page = render(
        "report.html",
        link=lambda *_: None,  # there is no other page
        css=Markup(css),
        dark=Markup("".join(_DARK.findall(css)).replace(':root[data-theme="dark"]', ":root")),
        runs=[summary(run) for run in runs],
        comparison=compared,
        rows=table_rows(compared) if compared else [],
        first=FIRST,
        effects={run.name: effect_of(run.directory) if run.steps() else None for run in runs},
        sections=[
            (section["title"], [(chart, drawing(chart, curves["runs"])) for chart in section["charts"]])
            for section in curves["sections"]
        ],
        examples=examples(library, runs),
        settings={
            run.name: without_secrets(config_to_yaml(run.config)) for run in runs if run.config is not None
        },
    )  # fmt: skip
    size = len(page.encode())
    if size > MAX_BYTES:
        raise R3Error(f"the report of {len(runs)} runs would have {size / 1e6:.1f} MB; name fewer runs")
    return page


# ── groups ──


def examples(library: Library, runs: Sequence[RunReader]) -> list[tuple[str, Opened, list[Shown]]]:
    """(why, group, some of its responses): of each run the newest of each of REASONS in turn."""
    found = []
    for run in runs:
        waiting: dict[str, list[tuple[str, int, StepGroup]]] = {why: [] for why in REASONS}
        for step in run.steps()[: -NEWEST - 1 : -1]:
            for group in run.groups(step):
                if why := next((why for why, holds in REASONS.items() if holds(group)), None):
                    waiting[why].append((why, step, group))
        in_turn = filter(None, chain.from_iterable(zip_longest(*waiting.values())))
        for why, step, group in islice(in_turn, max(1, MAX_GROUPS // len(runs))):
            opened = open_group(library, run.name, step, group.context.value, group.uid)
            found.append((why, opened, _responses(opened)))
    return found


def _responses(opened: Opened) -> list[Shown]:
    """The best and the worst response, and the best that was recalled, and ranked."""
    ordered = sorted(map(opened.shown, range(len(opened.rows))), key=by_advantage)
    recalled = [response for response in ordered if response.age is not None]
    ranked = [response for response in ordered if response.row["ranked"]]
    wanted = {response.place for some in (ordered, recalled, ranked, ordered[::-1]) for response in some[:1]}
    return [
        replace(response, row={**response.row, "text": shortened(response.row["text"])})
        for response in ordered
        if response.place in wanted
    ]


def shortened(text: str | None) -> str | None:
    """The beginning and the end of a long text."""
    left_out = len(text or "") - TEXT_START - TEXT_END
    if not text or left_out <= 0:
        return text
    return f"{text[:TEXT_START]}\n[… {left_out:,} characters …]\n{text[-TEXT_END:]}"


# ── charts ──


def drawing(chart: dict[str, Any], runs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """A chart of `curves_of` for report.html: a line per run and series, and the axes' ends."""
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
        "high": max(values) if max(values) > flat else flat + 1,  # a flat curve has a height, too
        "first": first,
        "last": max(*steps, first + 1),
    }


def _points(run: dict[str, Any], key: str, num_runs: int) -> list[tuple[float, float]]:
    steps = run["held_out"]["steps"] if key.startswith("held_out:") else run["steps"]
    points = [(step, value) for step, value in zip(steps, run["series"][key], strict=True) if value is not None]
    most = max(12, min(MAX_POINTS, MAX_VALUES // (60 * num_runs)))
    size = -(-len(points) // most) or 1
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [(part[len(part) // 2][0], fmean(value for _, value in part)) for part in parts]
