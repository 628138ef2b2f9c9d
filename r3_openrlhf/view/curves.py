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
    sections = _sections(present, several=len(runs) > 1)
    others = sorted(present - _DRAWN)
    if others:
        alone = [Chart(title=key, unit="", series={key: key}) for key in others]
        charts = [_plain(chart, present) for chart in alone]
        sections.append({"title": OTHERS, "charts": charts})
    arms = []
    if len(runs) > 1:
        names = {run.name: _arm_name(run) for run in runs}
        arms = arms_of(names, columns)
    return {"runs": columns, "arms": arms, "sections": sections, "counted": counted}


def _sections(present: set[str], *, several: bool) -> list[dict[str, Any]]:
    """Return the sections of curves.yaml that have values. several: of several runs, a picture has
    one series."""
    sections = []
    for section in PICTURES.sections:
        charts = [chart for chart in section.charts if present & chart.series.keys()]
        if several:
            charts = [part for chart in charts for part in _parts(chart, present)]
        if charts:
            plain = [_plain(chart, present) for chart in charts]
            sections.append({"title": section.title, "charts": plain})
    return sections


def _arm_name(run: RunReader) -> str:
    """Name the arm of a run. A run whose settings cannot be read is an arm of its own."""
    return run.name if run.config is None else arm_of(run.config)


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
    arm: dict[str, Any] = {
        "name": name,
        "runs": [run["name"] for run in runs],
        "has_rollouts": False,
        "series": {},
        "low": {},
        "high": {},
    }
    arm |= _add_curves(arm, runs, axes=runs, is_held_out=False)
    evaluations = [run["held_out"] for run in runs]
    arm["held_out"] = _add_curves(arm, runs, axes=evaluations, is_held_out=True)
    return arm


def _add_curves(
    arm: dict[str, Any],
    runs: Sequence[Mapping[str, Any]],
    *,
    axes: Sequence[Mapping[str, Any]],
    is_held_out: bool,
) -> dict[str, list[Any]]:
    """Add the curves of the training steps, or of the evaluations, to an arm. Returns their steps and
    tokens.

    axes: steps and tokens of each run."""
    steps = sorted({step for axis in axes for step in axis["steps"]})
    keys = {key for run in runs for key in run["series"]}
    for key in sorted(keys):
        if key.startswith(HELD_OUT) is not is_held_out:
            continue
        columns = [
            (axis["steps"], run["series"][key])
            for axis, run in zip(axes, runs, strict=True)
            if key in run["series"]
        ]
        ends = _ends(steps, columns, _BOUNDS.get(key, UNBOUNDED))
        for end, values in ends.items():
            has_values = any(value is not None for value in values)
            if end == "series" or has_values:
                arm[end][key] = values
    tokens = _ends(steps, [(axis["steps"], axis["tokens"]) for axis in axes])
    return {"steps": steps, "tokens": tokens["series"]}


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
    keys = set(_DRAWN)
    if every:
        keys |= _keys_of_numbers(lines)
    series = {}
    for key in keys:
        if key.startswith(HELD_OUT):
            values = [_short(line.get(key.removeprefix(HELD_OUT))) for line in evaluations]
        elif key.startswith("fate:"):
            values = [counted[step].get(key, 0) if step in counted else None for step in steps]
        else:
            values = [_short(line.get(key)) for line in lines]
        if _is_shown(key, values, every):
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


def _keys_of_numbers(lines: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys of metrics.jsonl that have a number somewhere."""
    keys = set()
    for line in lines:
        keys |= {key for key, value in line.items() if type(value) in (int, float)}
    return keys - {"step"}


def _is_shown(key: str, values: Sequence[float | None], every: bool) -> bool:
    """Tell whether a series is drawn. One of zeros alone is not where its key has a colour, and a key
    with a colon only with `every`."""
    if any(values):
        return True
    if all(value is None for value in values) or key in PICTURES.colours:
        return False
    return every or ":" not in key


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
