"""The summary of a run, as tables for people, from metrics.jsonl and its rollouts alone."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.display import PHASES
from r3_openrlhf.runs.files import DataCounts, read_json
from r3_openrlhf.runs.state import planned_steps, state_of

STEP_S, ADDED_S = "timing/step_total", "r3/time/added_s"
_TABLE = tomllib.loads(Path(__file__).with_name("report.toml").read_text(encoding="utf-8"))
MECHANISMS = tuple((name, *keys) for name, keys in _TABLE["mechanisms"].items())
# (name, key, format); shown as the mean of the first and of the last quarter of the steps
TOKENS: dict[str, str] = _TABLE["tokens"]
LEVELS = tuple((name, *values) for name, values in _TABLE["levels"].items())


def summary(run: RunDirectory) -> dict[str, Any]:
    """Summarise a run for machines: sums of counts, means over the first and the last quarter of
    the steps, mean seconds per step, the first and the last evaluation. A number that the run does not
    have is left out.

    Raises R3Error when the run has no finished step."""
    metrics = run.read_metrics()
    found = state_of(run)
    if not metrics and found.is_bad:
        sentence = found.sentence(step=None, num_steps=None)
        raise R3Error(f"{run.path} {sentence}; its log is {run.log}")
    if not metrics:
        raise R3Error(f"{run.path} has no finished step yet; its log is {run.log}")
    evaluations = [line for line in run.read_evaluations() if line.get("pass_at_1") is not None]
    numbers = {
        "run_dir": str(run.path),
        "state": str(found.state),
        "why": found.why,
        "finished": run.finished.is_file(),
        "steps": len(metrics),
        "totals": {key: total(metrics, key) for _, *keys in MECHANISMS for key in keys},
        "data": read_json(run.data_counts, DataCounts) if run.data_counts.is_file() else None,
        "begun_with": _begun_with(run),
        **{key: metrics[-1].get(key) for key in TOKENS},
        "steps_per_mean": _quarter(metrics),
        "first": {key: quarter_means(metrics, key)[0] for _, key, _ in LEVELS},
        "last": {key: quarter_means(metrics, key)[1] for _, key, _ in LEVELS},
        "first_evaluation": evaluations[0] if evaluations else None,
        "last_evaluation": evaluations[-1] if evaluations else None,
        "seconds_per_step": {
            key: mean(metrics, key) for key in (*PHASES.values(), STEP_S, ADDED_S)
        },
    }
    return _without_absent(numbers)


def summary_table(run: RunDirectory) -> Group:
    """`summary` for people, 80 columns wide. Raises R3Error when the run has no finished step."""
    numbers = summary(run)
    totals, first, last = numbers["totals"], numbers["first"], numbers["last"]

    table = Table(
        title=f"{run.path.name}: {numbers['steps']} steps, {numbers['state']}",
        title_justify="left",
        show_header=False,
    )
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, *keys in MECHANISMS:
        if all(key in totals for key in keys):
            table.add_row(
                name,
                (" -> " if "->" in name else " / ").join(f"{totals[key]:.0f}" for key in keys),
            )
    if "data" in numbers:
        counts = numbers["data"]
        table.add_row("problems", str(counts["num_problems"]))
        left_out = (
            counts[key] for key in ("num_dropped_overlong", "num_duplicates", "num_unusable")
        )
        table.add_row(
            "rows left out: too long / repeated / unusable", " / ".join(map(str, left_out))
        )
    for key in filter(numbers.__contains__, TOKENS):
        table.add_row(TOKENS[key], f"{numbers[key]:,.0f}")
    table.add_section()
    quarter = numbers["steps_per_mean"]
    table.add_row(
        "mean of" + (" a step" if quarter == 1 else f" {quarter} steps"), "first -> last"
    )
    for name, key, form in LEVELS:
        if key in first and key in last:
            table.add_row(f"  {name}", f"{first[key]:{form}} -> {last[key]:{form}}")
    if "first_evaluation" in numbers:
        for row in _evaluation_rows(numbers["first_evaluation"], numbers["last_evaluation"]):
            table.add_row(*row)
    table.add_section()
    seconds = numbers["seconds_per_step"]
    for name, key in PHASES.items():
        if key in seconds:
            table.add_row(f"seconds per step: {name}", f"{seconds[key]:.2f}")
    added, whole = seconds.get(ADDED_S), seconds.get(STEP_S)
    if added is not None and whole:
        table.add_row(
            "seconds per step: added by R³", f"{added:.3f} ({added / whole:.1%} of {whole:.2f})"
        )
    # a path is to be copied: it is never broken, however wide it is
    begun = map(Text, numbers.get("begun_with", []))
    return Group(
        *_bad_end(run), table, *begun, Text(f"In {run.path}", no_wrap=True, overflow="ignore")
    )


def _bad_end(run: RunDirectory) -> list[Text]:
    """Say that a run failed or died, and why; nothing of any other run."""
    found = state_of(run)
    if not found.is_bad:
        return []
    last = run.read_metrics()[-1]["step"]
    sentence = found.sentence(step=last, num_steps=planned_steps(run))
    return [Text(f"State: {sentence}")]


def _begun_with(run: RunDirectory) -> list[str] | None:
    """Return what the first page says of successes from elsewhere, without their texts. None: nothing."""
    said = read_json(run.first_page, dict).get("imported") if run.first_page.is_file() else None
    return [line for line in said if not line.startswith("correct: ")] if said else None


def _evaluation_rows(
    before: dict[str, Any], after: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Rows of the numbers that both lines of evaluations.jsonl have."""
    samples, span = before.get("n_samples", "n"), f"step {before['step']} -> {after['step']}"
    for name, key in (
        (f"held-out accuracy, {samples} responses", "pass_at_1"),
        (f"held-out pass@{samples}", "pass_at_n"),
    ):
        if before.get(key) is not None and after.get(key) is not None:
            yield f"{name}, {span}", f"{before[key]:.3f} -> {after[key]:.3f}"


def _without_absent(numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_absent(value) if isinstance(value, dict) else value
        for key, value in numbers.items()
        if value is not None
    }


def _quarter(metrics: Sequence[dict[str, Any]]) -> int:
    return max(1, len(metrics) // 4)


def quarter_means(
    metrics: Sequence[dict[str, Any]], key: str
) -> tuple[float | None, float | None]:
    """Means over the first and the last quarter of the steps; None: no values."""
    quarter = _quarter(metrics)
    return mean(metrics[:quarter], key), mean(metrics[-quarter:], key)


def total(metrics: Iterable[dict[str, Any]], key: str) -> float | None:
    """Sum a value over the steps that have it; None: none has."""
    values = _values(metrics, key)
    return sum(values) if values else None


def _values(metrics: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [line[key] for line in metrics if line.get(key) is not None]


def mean(metrics: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Average a value over the steps that have it; None: none has."""
    values = _values(metrics, key)
    return fmean(values) if values else None
