"""The numbers of a run that are drawn, the picture of each, and their values on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from r3_openrlhf.comparison.intervals import t_quantile
from r3_openrlhf.comparison.runs import arm_of
from r3_openrlhf.method.core.batch_metrics import OLDER_NAMES
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
    sections: list[Section]


OTHERS = "Every other key"
PICTURES = msgspec.yaml.decode(Path(__file__).with_name("curves.yaml").read_bytes(), type=Pictures)

_DRAWN = {key for section in PICTURES.sections for chart in section.charts for key in chart.series}
_DRAWN |= OLDER_NAMES.keys()


def curves_of(runs: Sequence[RunReader], *, every: bool = False) -> dict[str, Any]:
    """Return what the overview draws, as plain JSON: the pictures of which some run has values, and
    each run's columns.

    `every`: also a picture for each other key of metrics.jsonl."""
    columns = [_columns(run, every) for run in runs]
    present = {key for run in columns for key in run["series"]}
    sections = []
    for section in PICTURES.sections:
        charts = [chart for chart in section.charts if present & chart.series.keys()]
        if len(runs) > 1:
            charts = [part for chart in charts for part in _parts(chart, present)]
        if charts:
            sections.append({"title": section.title, "charts": [_plain(chart, present) for chart in charts]})
    if others := sorted(present - _DRAWN):
        alone = [_plain(Chart(title=key, unit="", series={key: key}), present) for key in others]
        sections.append({"title": OTHERS, "charts": alone})
    total = sum(len(run.counts()) for run in runs)
    # A run whose settings cannot be read is an arm of its own.
    names = {run.name: arm_of(run.config) if run.config is not None else run.name for run in runs}
    arms = arms_of(names, columns) if len(runs) > 1 else []
    return {"runs": columns, "arms": arms, "sections": sections, "counted": total}


def arms_of(names: Mapping[str, str], runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The columns of each arm: means over its runs, and the ends of Student's interval where two or
    more have a value.

    Args:
        names: name of a run -> its arm.
        runs: columns of runs, as `curves_of` gives them."""
    members: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        members.setdefault(names[run["name"]], []).append(run)
    return [_arm(name, of_arm) for name, of_arm in members.items()]


def _arm(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    arm: dict[str, Any] = {"name": name, "num": len(runs), "has_rollouts": False, "series": {}, "low": {}, "high": {}}
    places: dict[bool, dict[int, int]] = {}
    for is_held_out in (False, True):
        axes = [run["held_out"] if is_held_out else run for run in runs]
        steps = sorted({step for axis in axes for step in axis["steps"]})
        places[is_held_out] = {step: place for place, step in enumerate(steps)}
        tokens, _, _ = _interval(_aligned([(axis["steps"], axis["tokens"]) for axis in axes], places[is_held_out]))
        (arm.setdefault("held_out", {}) if is_held_out else arm).update(steps=steps, tokens=tokens)
    for key in sorted({key for run in runs for key in run["series"]}):
        is_held_out = key.startswith(HELD_OUT)
        having = [run for run in runs if key in run["series"]]
        columns = [((run["held_out"] if is_held_out else run)["steps"], run["series"][key]) for run in having]
        arm["series"][key], low, high = _interval(_aligned(columns, places[is_held_out]))
        if any(value is not None for value in low):
            arm["low"][key], arm["high"][key] = low, high
    return arm


def _aligned(columns: Sequence[tuple[Sequence[int], Sequence[float | None]]], places: Mapping[int, int]) -> np.ndarray:
    """float64 [N, S]: each run's values at the steps of the arm; NaN where it has none."""
    table_NS = np.full((len(columns), len(places)), np.nan)
    for row, (steps, values) in enumerate(columns):
        for step, value in zip(steps, values, strict=True):
            table_NS[row, places[step]] = np.nan if value is None else value
    return table_NS


def _interval(table_NS: np.ndarray) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Mean, low and high of each column: `estimate` of its values that are not NaN."""
    known_NS = ~np.isnan(table_NS)
    num_S = known_NS.sum(0)
    mean_S = np.where(known_NS, table_NS, 0.0).sum(0) / np.maximum(num_S, 1)
    squares_S = np.where(known_NS, (table_NS - mean_S) ** 2, 0.0).sum(0)
    t_N = np.array([0.0, 0.0, *(t_quantile(num - 1) for num in range(2, len(table_NS) + 1))])
    half_S = t_N[num_S] * np.sqrt(squares_S / np.maximum(num_S - 1, 1) / np.maximum(num_S, 1))

    def plain(values_S: np.ndarray, least: int) -> list[float | None]:
        return [_short(value) if num >= least else None for value, num in zip(values_S.tolist(), num_S, strict=True)]

    return plain(mean_S, 1), plain(mean_S - half_S, 2), plain(mean_S + half_S, 2)


def _parts(chart: Chart, present: set[str]) -> list[Chart]:
    """A picture for each series: in one of several runs, the colours are the runs'."""
    return [
        msgspec.structs.replace(
            chart, title=chart.title if len(chart.series) == 1 else f"{chart.title}: {label}", series={key: label}
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
    }


def _columns(run: RunReader, every: bool) -> dict[str, Any]:
    """steps, tokens, and series: key -> values; evaluations have steps of their own."""
    counted = run.counts()
    stamp = (stamp_of(run.directory.metrics), stamp_of(run.directory.evaluations), len(counted), bool(run.steps()))
    return run.fresh(f"columns {every}", stamp, lambda: _read_columns(run, counted, every))


def _read_columns(run: RunReader, counted: Mapping[int, Mapping[str, int]], every: bool) -> dict[str, Any]:
    lines, evaluations = run.metrics(), run.evaluations()
    steps = [line["step"] for line in lines]
    series = {}
    for key in _DRAWN | (_numbers_in(lines) if every else set()):
        if key.startswith(HELD_OUT):
            values = [_short(line.get(key.removeprefix(HELD_OUT))) for line in evaluations]
        elif key.startswith(("fate:", "age:")):
            values = [counted[step].get(key, 0) if step in counted else None for step in steps]
        else:
            values = [_short(line.get(key)) for line in lines]
        if any(values) or (
            any(value is not None for value in values) and key not in PICTURES.colours and (":" not in key or every)
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


def _numbers_in(lines: Sequence[Mapping[str, Any]]) -> set[str]:
    values = ((key, value) for line in lines for key, value in line.items())
    return {key for key, value in values if isinstance(value, int | float) and not isinstance(value, bool)} - {"step"}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
