"""`r3 report`: runs in one page that opens by mail, without scripts, other files or another host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup

from r3_openrlhf.comparison.table import table_rows
from r3_openrlhf.config.loading import config_to_yaml
from r3_openrlhf.method.errors import R3Error, without_secrets
from r3_openrlhf.runs.effect import Effect, effect_of
from r3_openrlhf.view.compare_page import comparison_of
from r3_openrlhf.view.curves import counts_of, curves_of
from r3_openrlhf.view.indexing import Indexing
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.links import FileLinks
from r3_openrlhf.view.overview_page import summary
from r3_openrlhf.view.rendering import short
from r3_openrlhf.view.responses import Opened, Shown, by_advantage, open_group
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.site import Site, groups_in
from r3_openrlhf.view.step_groups import StepGroup

MAX_BYTES = 3_000_000
MAX_GROUPS = 12
MAX_RESPONSES = 4  # of a group: the best, the worst, a recalled and a ranked one
TEXT_START, TEXT_END = 2400, 600  # characters that are shown of a longer text
MAX_POINTS = 160  # of a curve; a longer one is shown as means of equal parts
MAX_VALUES = 60_000  # points of all curves
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 320, 150, 46, 6, 18  # pixels of a chart and of its edges
_DARK = re.compile(r':root\[data-theme="dark"\][^{]*\{[^}]*\}')

# Why a group is in the report -> does it show that? Each reason is taken in turn, the newest groups first.
REASONS = {
    "repaired by replay": lambda group: group.fate == "recalled",
    "asked again with a stored error": lambda group: group.context == "reflection",
    "only ranked": lambda group: group.fate == "ranked",
    "collapsed, and nothing was found for it": lambda group: group.fate not in (None, "recalled", "ranked"),
    "right and wrong responses": lambda group: group.state == "mixed",
    "with an ungraded response": lambda group: group.num_ungraded > 0,
}


@dataclass(frozen=True, slots=True)
class Example:
    """A group of the report, with some of its responses."""

    why: str
    opened: Opened
    shown: list[Shown]


def report(library: Library, *, cache: Path | None = None) -> str:
    """The page: what changed, the curves, a dozen groups and the settings of all open runs.

    Raises:
        R3Error: no run is open, or the page would have more than MAX_BYTES.
    """
    runs = list(library.runs.values())
    if not runs:
        raise R3Error("r3 report needs a run directory; an evaluation alone is shown by r3 view")
    site = Site(library, Indexing(library, cache=cache), is_export=True)
    counted = {run.name: {step: counts_of(run.rows(step), step=step) for step in run.steps()} for run in runs}
    curves = curves_of(runs, counted)
    compared, _ = comparison_of(runs) if len(runs) > 1 else (None, None)
    css = (Path(__file__).parent / "static" / "view.css").read_text(encoding="utf-8")
    page = site.render(
        "report.html",
        FileLinks((), ()),
        css=Markup(css),
        dark=Markup("".join(_DARK.findall(css)).replace(':root[data-theme="dark"]', ":root")),
        runs=[summary(run) for run in runs],
        found=compared,
        rows=table_rows(compared) if compared else [],
        effects={run.name: _effect(run) for run in runs},
        sections=[
            (section["title"], [(chart, drawing(chart, curves["runs"])) for chart in section["charts"]])
            for section in curves["sections"]
        ],
        examples=examples(site, runs),
        settings={
            run.name: without_secrets(config_to_yaml(run.config)) for run in runs if run.config is not None
        },
    )  # fmt: skip
    size = len(page.encode())
    if size > MAX_BYTES:
        raise R3Error(f"the report of {len(runs)} runs would have {size / 1e6:.1f} MB; name fewer runs")
    return page


def _effect(run: RunReader) -> Effect | None:
    return effect_of(run.directory) if run.steps() else None


# ── groups ──


def examples(site: Site, runs: Sequence[RunReader]) -> list[Example]:
    """MAX_GROUPS groups, as many of each run: the newest of each of REASONS in turn."""
    found: list[Example] = []
    for number, run in enumerate(runs):
        share = (MAX_GROUPS - len(found)) // (len(runs) - number)
        for why, step, group in _chosen(run, share):
            opened = open_group(site, run.name, step, group.context.value, group.uid)
            found.append(Example(why, opened, _responses(opened)))
    return found


def _chosen(run: RunReader, count: int) -> list[tuple[str, int, StepGroup]]:
    waiting: dict[str, list[tuple[str, int, StepGroup]]] = {why: [] for why in REASONS}
    taken: set[str] = set()  # a problem is shown once
    for step in reversed(run.steps()):
        if min(map(len, waiting.values())) * len(REASONS) >= count:
            break
        for group in groups_in(run, step):
            why = next((why for why, holds in REASONS.items() if holds(group)), None)
            if why is not None and group.uid not in taken and len(waiting[why]) < count:
                taken.add(group.uid)
                waiting[why].append((why, step, group))
    in_turn = chain.from_iterable(
        (found[place] for found in waiting.values() if place < len(found)) for place in range(count)
    )
    return list(in_turn)[:count]


def _responses(opened: Opened) -> list[Shown]:
    ordered = sorted((opened.shown(place) for place in range(len(opened.rows))), key=by_advantage)
    wanted = [
        *ordered[:1],
        *[one for one in ordered if one.age is not None][:1],
        *[one for one in ordered if one.row["ranked"]][:1],
        *ordered[-1:],
    ]
    places = {one.place for one in wanted[:MAX_RESPONSES]}
    return [
        replace(one, row={**one.row, "text": shortened(one.row["text"])}) for one in ordered if one.place in places
    ]


def shortened(text: str | None) -> str | None:
    """The beginning and the end of a long text."""
    left_out = len(text or "") - TEXT_START - TEXT_END
    if not text or left_out <= 0:
        return text
    return f"{text[:TEXT_START]}\n[… {left_out:,} characters …]\n{text[-TEXT_END:]}"


# ── charts ──


def drawing(chart: dict[str, Any], runs: Sequence[dict[str, Any]]) -> Markup:
    """A chart of `curves_of` as SVG: steps to the right, one line for each run and series."""
    found = [
        (run["name"], series, number if len(runs) > 1 else series["colour"], _points(run, series["key"], len(runs)))
        for number, run in enumerate(runs)
        for series in chart["series"]
        if series["key"] in run["series"]
    ]
    values = [value for *_, points in found for _, value in points]
    steps = [step for *_, points in found for step, _ in points]
    if not values:
        return Markup("")
    low, high = min(values), max(values)
    # A curve that hardly moves is not blown up to the whole height, and what is never negative starts at 0.
    low, high = (0.0 if low >= 0 else low), (high if high > max(low, 0) else max(low, 0) + 1)
    first, last = min(steps), max(max(steps), min(steps) + 1)

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 6) * (step - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low), 1)

    lines = [
        f'<polyline class="ink-{colour % 12}" points="{" ".join(f"{x(step)},{y(value)}" for step, value in points)}"/>'
        for *_, colour, points in found
        if points
    ]
    said = "; ".join(
        f"{name} {series['label']} from {short(points[0][1])} to {short(points[-1][1])}"
        for name, series, _, points in found
        if points
    )
    return Markup(
        f'<svg class="drawing" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart["title"])}: {escape(said)}">'
        f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 6}"/>'
        f'<text x="{LEFT - 5}" y="{TOP + 8}" text-anchor="end">{short(high)}</text>'
        f'<text x="{LEFT - 5}" y="{HEIGHT - BOTTOM}" text-anchor="end">{short(low)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">{first}</text>'
        f'<text x="{WIDTH - 6}" y="{HEIGHT - 4}" text-anchor="end">{last}</text>{"".join(lines)}</svg>'
    )


def _points(run: dict[str, Any], key: str, num_runs: int) -> list[tuple[float, float]]:
    steps = run["held_out"]["steps"] if key.startswith("held_out:") else run["steps"]
    points = [(step, value) for step, value in zip(steps, run["series"][key], strict=True) if value is not None]
    most = max(12, min(MAX_POINTS, MAX_VALUES // (60 * num_runs)))
    size = -(-len(points) // most) or 1
    return [_mean(points[at : at + size]) for at in range(0, len(points), size)]


def _mean(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    steps, values = zip(*points, strict=True)
    return steps[len(steps) // 2], sum(values) / len(values)
