"""Which numbers of a run are drawn, in which picture; and their values as a page needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.view.run_reader import Row, RunReader, stamp_of
from r3_openrlhf.view.step_groups import groups_of

HELD_OUT = "held_out:"  # keys of evaluations.jsonl
AGES = {"1 to 5": 5, "6 to 20": 20, "21 to 50": 50, "older": 10**9}  # name -> the oldest that belongs to it
FROM_ZERO = ("share", "groups", "rows", "problems", "count")  # units whose axis begins at 0
DIGITS = 6  # significant ones in a page; `r3 show --json` has all


class Chart(msgspec.Struct, frozen=True):
    """One picture."""

    title: str
    unit: str
    series: dict[str, str]  # key -> what it is called beside others
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


PICTURES = msgspec.yaml.decode(Path(__file__).with_name("curves.yaml").read_bytes(), type=Pictures)


def counts_of(rows: Sequence[Row], *, step: int) -> dict[str, int]:
    """Of a step's rollouts: "fate:..." -> how many of its collapsed groups, "age:..." -> how many recalled rows."""
    fates = (f"fate:{group.fate}" for group in groups_of(rows, step=step) if group.fate is not None)
    lags = (step - row["recalled_from"] for row in rows if row["recalled_from"] is not None)
    ages = (next(name for name, oldest in AGES.items() if lag <= oldest) for lag in lags)
    return dict(Counter(fates) + Counter(f"age:{age}" for age in ages))


def curves_of(
    runs: Sequence[RunReader], counted: Mapping[str, Mapping[int, Mapping[str, int]]] | None = None
) -> dict[str, Any]:
    """Everything that the overview draws, as plain JSON: the pictures of which some run has values, and each run's columns.

    `counted`: name of a run -> step -> "fate:..." and "age:..." -> how many, as far as they were counted.
    """
    found = [_columns(run, (counted or {}).get(run.name, {})) for run in runs]
    present = {key for run in found for key in run["series"]}
    sections = []
    for section in PICTURES.sections:
        charts = [chart for chart in section.charts if present & chart.series.keys()]
        if len(runs) > 1:
            charts = [part for chart in charts for part in _parts(chart, present)]
        if charts:
            sections.append({"title": section.title, "charts": [_plain(chart, present) for chart in charts]})
    total = sum(len((counted or {}).get(run.name, ())) for run in runs)
    return {"runs": found, "sections": sections, "counted": total}


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
        {"key": key, "label": label, "colour": PICTURES.colours.get(key, place)}
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


def _columns(run: RunReader, counted: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    """steps, tokens, and series: key -> a value for each of them; those of evaluations have steps of their own."""
    files = run.directory.metrics, run.directory.evaluations
    stamp = (*map(stamp_of, files), len(counted), bool(run.steps()))
    return run.fresh("columns", stamp, lambda: _read_columns(run, counted))


def _read_columns(run: RunReader, counted: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
    lines, evaluations = run.metrics(), run.evaluations()
    steps = [line["step"] for line in lines]
    series = {}
    for key in {key for section in PICTURES.sections for chart in section.charts for key in chart.series}:
        if key.startswith(HELD_OUT):
            values = [_short(line.get(key.removeprefix(HELD_OUT))) for line in evaluations]
        elif key.startswith(("fate:", "age:")):
            values = [counted[step].get(key, 0) if step in counted else None for step in steps]
        else:
            values = [_short(line.get(key)) for line in lines]
        if any(values) or (
            any(value is not None for value in values) and key not in PICTURES.colours and ":" not in key
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
