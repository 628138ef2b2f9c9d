"""The numbers of a run that are drawn, the picture of each, and their values on a page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.comparison.intervals import UNBOUNDED, estimate
from r3_openrlhf.comparison.runs import arm_of
from r3_openrlhf.method.core.batch_metrics import OLDER_NAMES
from r3_openrlhf.view.health import CHECKS
from r3_openrlhf.view.rendering import meanings
from r3_openrlhf.view.run_reader import RunReader, stamp_of

HELD_OUT = "held_out:"  # keys of evaluations.jsonl
FROM_ZERO = ("share", "groups", "rows", "problems", "count")  # units whose axis begins at 0
DIGITS = 6  # significant ones in a page; `r3 show --json` has all


class Chart(msgspec.Struct, frozen=True):
    """One picture."""

    title: str
    unit: str
    series: dict[str, str]  # key -> its name among others
    stacked: bool = False
    note: str = ""


class Section(msgspec.Struct, frozen=True):
    """Pictures that answer one question."""

    title: str
    charts: list[Chart]


class Pictures(msgspec.Struct, frozen=True):
    """curves.yaml."""

    colours: dict[str, int]
    bounds: dict[str, tuple[float, float]]
    sections: list[Section]


OTHERS = "Every other key"
PICTURES = msgspec.yaml.decode(
    Path(__file__).with_name("curves.yaml").read_bytes(), type=Pictures
)

_DRAWN = {
    key for section in PICTURES.sections for chart in section.charts for key in chart.series
}
_DRAWN |= OLDER_NAMES.keys()
_BOUNDS = {
    key: PICTURES.bounds[chart.unit.split()[0]]
    for section in PICTURES.sections
    for chart in section.charts
    for key in chart.series
    if chart.unit.split()[0] in PICTURES.bounds
}


def curves_of(
    runs: Sequence[RunReader], *, every: bool = False, counted: bool = False
) -> dict[str, Any]:
    """Return what the overview draws, as plain JSON: the pictures of which some run has values, and
    each run's columns.

    `every`: also a picture for each other key of metrics.jsonl. `counted`: what is counted from
    the rollouts, too."""
    columns = [_columns(run, every, counted) for run in runs]
    present = {key for run in columns for key in run["series"]}
    sections = []
    for section in PICTURES.sections:
        charts = [chart for chart in section.charts if present & chart.series.keys()]
        if len(runs) > 1:
            charts = [part for chart in charts for part in _parts(chart, present)]
        if charts:
            sections.append(
                {"title": section.title, "charts": [_plain(chart, present) for chart in charts]}
            )
    if others := sorted(present - _DRAWN):
        alone = [
            _plain(Chart(title=key, unit="", series={key: key}), present) for key in others
        ]
        sections.append({"title": OTHERS, "charts": alone})
    # A run whose settings cannot be read is an arm of its own.
    names = {
        run.name: arm_of(run.config) if run.config is not None else run.name for run in runs
    }
    arms = arms_of(names, columns) if len(runs) > 1 else []
    return {"runs": columns, "arms": arms, "sections": sections, "counted": counted}


def arms_of(
    names: Mapping[str, str], runs: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the columns of each arm: means over its runs, and the ends of Student's interval where
    three or more have a value; None at a step without them.

    Args:
        names: name of a run -> its arm.
        runs: columns of runs, as `curves_of` gives them."""
    members: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        members.setdefault(names[run["name"]], []).append(run)
    return [_arm(name, of_arm) for name, of_arm in members.items()]


def _arm(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = [run["name"] for run in runs]
    arm: dict[str, Any] = {
        "name": name,
        "runs": names,
        "has_rollouts": False,
        "series": {},
        "low": {},
        "high": {},
    }
    for is_held_out in (False, True):
        axes = [run["held_out"] if is_held_out else run for run in runs]
        steps = sorted({step for axis in axes for step in axis["steps"]})
        own = arm.setdefault("held_out", {}) if is_held_out else arm
        own["steps"], own["tokens"] = (
            steps,
            _ends(steps, [(axis["steps"], axis["tokens"]) for axis in axes])["series"],
        )
        for key in sorted(
            {
                key
                for run in runs
                for key in run["series"]
                if key.startswith(HELD_OUT) is is_held_out
            }
        ):
            columns = [
                (axis["steps"], run["series"][key])
                for axis, run in zip(axes, runs, strict=True)
                if key in run["series"]
            ]
            for end, values in _ends(steps, columns, _BOUNDS.get(key, UNBOUNDED)).items():
                if end == "series" or any(value is not None for value in values):
                    arm[end][key] = values
    return arm


def _ends(
    steps: Sequence[int],
    columns: Sequence[tuple[Sequence[int], Sequence[Any]]],
    bounds: tuple[float, float] | None = None,
) -> dict[str, list[float | None]]:
    """Return "series" (the mean), "low" and "high" at each step, from steps and values of each run."""
    of_runs = [dict(zip(*of_run, strict=True)) for of_run in columns]
    at_steps = ([run[step] for run in of_runs if run.get(step) is not None] for step in steps)
    found = [estimate(values, bounds=bounds) for values in at_steps]
    ends = {"series": "mean", "low": "low", "high": "high"}
    return {
        name: [None if one is None else _short(getattr(one, end)) for one in found]
        for name, end in ends.items()
    }


def _parts(chart: Chart, present: set[str]) -> list[Chart]:
    """Split a chart into one for each series: in one of several runs, the colours are the runs'."""
    return [
        msgspec.structs.replace(
            chart,
            title=chart.title if len(chart.series) == 1 else f"{chart.title}: {label}",
            series={key: label},
        )
        for key, label in chart.series.items()
        if key in present
    ]


def _plain(chart: Chart, present: set[str]) -> dict[str, Any]:
    series = [
        {
            "key": key,
            "label": label,
            "about": meanings().get(key.removeprefix(HELD_OUT), ""),
            "colour": PICTURES.colours.get(key, place),
        }
        for place, (key, label) in enumerate(chart.series.items())
        if key in present
    ]
    return {
        "title": chart.title,
        "unit": chart.unit,
        "series": series,
        "stacked": chart.stacked,
        "from_zero": chart.unit.startswith(FROM_ZERO),
        "note": chart.note,
        "limits": [
            end
            for check in CHECKS
            if check.of == "mean" and check.key in chart.series and not check.per
            for end in check.green
            if math.isfinite(check.green[1])
        ],
    }


def _columns(run: RunReader, every: bool, counted: bool) -> dict[str, Any]:
    """Return steps, tokens, and series: key -> values; evaluations have steps of their own."""
    stamp = (
        stamp_of(run.directory.metrics),
        stamp_of(run.directory.evaluations),
        run.steps()[-1:],
    )
    counts = run.counts if counted else dict
    return run.fresh(
        f"columns {every} {counted}", stamp, lambda: _read_columns(run, counts(), every)
    )


def _read_columns(
    run: RunReader, counted: Mapping[int, Mapping[str, int]], every: bool
) -> dict[str, Any]:
    lines, evaluations = run.metrics(), run.evaluations()
    steps = [line["step"] for line in lines]
    numbers = (
        key
        for line in lines
        if every
        for key, value in line.items()
        if type(value) in (int, float)
    )
    series = {}
    for key in _DRAWN | ({*numbers} - {"step"}):
        if key.startswith(HELD_OUT):
            values = [_short(line.get(key.removeprefix(HELD_OUT))) for line in evaluations]
        elif key.startswith("fate:"):
            values = [counted[step].get(key, 0) if step in counted else None for step in steps]
        else:
            values = [_short(line.get(key)) for line in lines]
        if any(values) or (
            any(value is not None for value in values)
            and key not in PICTURES.colours
            and (":" not in key or every)
        ):
            series[key] = values
    return {
        "name": run.name,
        "steps": steps,
        "tokens": [line.get("generated_tokens_total") for line in lines],
        "held_out": {
            "steps": [line["step"] for line in evaluations],
            "tokens": [line.get("generated_tokens") for line in evaluations],
        },
        "series": series,
        "has_rollouts": bool(run.steps()),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
