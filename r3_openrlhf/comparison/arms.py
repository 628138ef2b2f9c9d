"""Comparable runs -> results of each arm, at equal generated tokens, with intervals."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import msgspec

from r3_openrlhf.comparison.intervals import (
    UNBOUNDED,
    Crossing,
    SeedEstimate,
    crossing_of_mean,
    estimate,
    paired_difference,
)
from r3_openrlhf.comparison.runs import (
    SAME_IN_EVALUATIONS,
    Run,
    check_comparable,
    settings_that_differ,
    values_that_differ,
)
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.runs.report import mean

DEFAULT_REFERENCE = "grpo"
GROUPS = ("r3/groups/all_correct", "r3/groups/none_correct", "r3/groups/mixed")
TARGET_SHARES = (0.5, 0.75, 1.0)  # of the reference's gain, that mean curves are asked for
# kind -> the values that there are; of a difference between two shares too
BOUNDS = {"share": (0.0, 1.0), "amount": (0.0, math.inf), "difference of shares": (-1.0, 1.0)}
Steps = Sequence[dict[str, Any]]


class Quantity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of quantities.toml, whose head says what its fields mean."""

    name: str
    label: str
    form: str
    how: str
    kind: Literal["share", "amount", "count"]
    keys: tuple[str, ...] = ()


QUANTITIES = msgspec.toml.decode(
    files(__package__).joinpath("quantities.toml").read_bytes(),
    type=dict[str, tuple[Quantity, ...]],
)["quantity"]
KINDS = {quantity.name: quantity.kind for quantity in QUANTITIES}  # the others are accuracies
TOKENS = tuple(
    key for quantity in QUANTITIES if quantity.how == "tokens" for key in quantity.keys
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The quantities of one run; None where its files do not say."""

    path: str
    seed: int
    finished: bool
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """`estimates`, and `differences` to the reference over common seeds, by quantity, or None.

    The reference has no differences."""

    name: str
    runs: list[RunResult]
    estimates: dict[str, SeedEstimate | None]
    differences: dict[str, SeedEstimate | None]
    crossings: list[Crossing | None]  # of the mean curve, one for each of Comparison.levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that the table says."""

    reference: str
    equal_tokens: float  # the smallest last evaluation of the runs
    start_tokens: float  # where all curves have begun
    limited_by: str  # the run that equal_tokens comes from
    target_accuracy: float
    target_is_given: bool  # else it is the reference's mean final accuracy
    # asked of mean curves: TARGET_SHARES of the reference's gain, or the given target alone
    levels: list[float]
    evaluation: dict[str, Any]
    arms: list[ArmResult]  # the reference first, the others by name
    settings: dict[str, dict[str, Any]]  # {key: {arm: value}} where arms differ
    notes: list[str]


def compare(
    runs: Sequence[Run], *, reference: str | None = None, target: float | None = None
) -> Comparison:
    """Compare the runs in arms by name, against `reference` (default: grpo, or the only arm).

    With T the smallest of the runs' last evaluations, in generated tokens:
        accuracy_at_equal_tokens   the curve at T, straight between two evaluations
        mean_accuracy              area under the curve up to T, divided by the tokens it spans
        final_accuracy             the last evaluation, whatever its generated tokens
        crossings                  of the arm's mean curve, see `crossing_of_mean`
        QUANTITIES                 see quantities.toml; T's step counts with its share of tokens
                                   before T
    The order of `runs` does not matter. Raises R3Error as `check_comparable` does, for an unknown
    reference, and for runs whose curves have no stretch in common.
    """
    check_comparable(runs)
    runs = sorted(runs, key=lambda run: (run.arm, run.seed))
    reference = _reference(runs, reference)
    first, last = (
        max(runs, key=lambda run: run.by_tokens.start),
        min(runs, key=lambda run: run.by_tokens.end),
    )
    start, end = first.by_tokens.start, last.by_tokens.end
    if start >= end:
        raise R3Error(
            f"there are no generated tokens at which all runs are known: the evaluations of {last.path} end at {end} "
            f"tokens and those of {first.path} begin at {start}"
        )
    finals = [run.by_tokens.ys[-1] for run in runs if run.arm == reference]
    level = statistics.fmean(finals) if target is None else target
    names = [reference, *sorted({run.arm for run in runs} - {reference})]
    curves = {
        name: {run.seed: run.by_tokens for run in runs if run.arm == name} for name in names
    }
    first_level = statistics.fmean(curve.ys[0] for curve in curves[reference].values())
    shares = TARGET_SHARES if target is None else (1.0,)
    results = {
        name: [_result(run, start=start, end=end) for run in runs if run.arm == name]
        for name in names
    }
    crossings = {
        name: [
            crossing_of_mean(curves[name], curves[reference], share=share, level=target)
            for share in shares
        ]
        for name in names
    }
    return Comparison(
        reference=reference,
        equal_tokens=end,
        start_tokens=start,
        limited_by=str(last.path),
        target_accuracy=level,
        target_is_given=target is not None,
        levels=[first_level + share * (level - first_level) for share in shares],
        evaluation={key: runs[0].evaluations[0].get(key) for key in SAME_IN_EVALUATIONS},
        arms=[_arm(name, results[name], results[reference], crossings[name]) for name in names],
        settings=settings_that_differ(runs),
        notes=_notes(runs, end=end),
    )


def _reference(runs: Sequence[Run], wanted: str | None) -> str:
    arms = sorted({run.arm for run in runs})
    name = wanted or (arms[0] if len(arms) == 1 else DEFAULT_REFERENCE)
    if name not in arms:
        raise R3Error(
            f"no run has the reference arm {name!r} (--reference); {nearest(name, arms)}"
        )
    return name


def _result(run: Run, *, start: float, end: float) -> RunResult:
    curve = run.by_tokens
    steps = [line for line in run.metrics if line["generated_tokens_total"] <= end]
    spent = [*steps, *_part_before(run, end, step=len(steps))]
    of: dict[str, Callable[[Quantity], float | None]] = {
        "effective": lambda quantity: _effective(spent, *quantity.keys),
        "tokens": lambda quantity: _share_of_tokens(spent, quantity.keys),
        "elsewhere": lambda _: (
            None if (share := _share_of_tokens(spent, TOKENS)) is None else 1 - share
        ),
        "sum": lambda quantity: _sum(spent, quantity.keys),
        "mean": lambda quantity: mean(steps, *quantity.keys),
        "late": lambda quantity: mean(steps[-max(1, len(steps) // 4) :], *quantity.keys),
        "run": lambda quantity: run.evaluations[-1][quantity.keys[0]],
    }
    accuracies: dict[str, float | None] = {
        "accuracy_at_equal_tokens": curve.at(end),
        "final_accuracy": curve.ys[-1],
        "mean_accuracy": curve.mean_height(start, end),
    }
    values = accuracies | {quantity.name: of[quantity.how](quantity) for quantity in QUANTITIES}
    return RunResult(path=str(run.path), seed=run.seed, finished=run.finished, values=values)


def _part_before(run: Run, end: float, *, step: int) -> list[dict[str, Any]]:
    """Return the line that contains T, its numbers in proportion to its tokens before T, as the
    curve is taken straight there. A line of evidence is a stretch of many steps: without its part a
    run that generated a little more than the others would seem to have trained less."""
    if step == len(run.metrics):
        return []
    before = run.metrics[step - 1]["generated_tokens_total"] if step else 0.0
    line = run.metrics[step]
    share = (end - before) / (line["generated_tokens_total"] - before)
    numbers = {
        key: value
        for key, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return [{key: share * value for key, value in numbers.items()}] if share > 0 else []


def _effective(steps: Steps, collapsed: str) -> float | None:
    """Share of the groups of these steps that are not collapsed. None: no step counts them.

    A step's r3/groups are left by dynamic sampling; what it dropped is counted apart.
    """
    counted = [line for line in steps if _has(line, *GROUPS, collapsed)]
    left = sum(line[key] for line in counted for key in GROUPS)
    sampled = left + sum(line.get("r3/filter/dropped_groups") or 0 for line in counted)
    return (left - sum(line[collapsed] for line in counted)) / sampled if sampled else None


def _has(line: dict[str, Any], *keys: str) -> bool:
    return all(line.get(key) is not None for key in keys)


def _share_of_tokens(steps: Steps, keys: Sequence[str]) -> float | None:
    """Share of the generated tokens of the steps that say where all of theirs are. None: no step."""
    counted = [line for line in steps if _has(line, "generated_tokens", *TOKENS)]
    total = sum(line["generated_tokens"] for line in counted)
    return sum(line[key] for line in counted for key in keys) / total if total else None


def _sum(steps: Steps, keys: tuple[str, ...]) -> float | None:
    """Sum over all steps the first of these keys that each step has. None: a step has none."""
    values = [next((line[key] for key in keys if _has(line, key)), None) for line in steps]
    return (
        sum(value for value in values if value is not None)
        if values and None not in values
        else None
    )


def _arm(
    name: str,
    runs: list[RunResult],
    reference: list[RunResult],
    crossings: list[Crossing | None],
) -> ArmResult:
    by_seed = {quantity: _by_seed(runs, quantity) for quantity in runs[0].values}
    estimates, differences = {}, {}
    for quantity, values in by_seed.items():
        kind = KINDS.get(quantity, "share")
        estimates[quantity] = estimate(list(values.values()), bounds=BOUNDS.get(kind))
        if runs is not reference:
            bounds = BOUNDS["difference of shares"] if kind == "share" else UNBOUNDED
            differences[quantity] = paired_difference(
                values, _by_seed(reference, quantity), bounds=bounds
            )
    return ArmResult(
        name=name, runs=runs, estimates=estimates, differences=differences, crossings=crossings
    )


def _by_seed(runs: list[RunResult], quantity: str) -> dict[int, float]:
    return {run.seed: value for run in runs if (value := run.values[quantity]) is not None}


def _notes(runs: Sequence[Run], *, end: float) -> list[str]:
    """Return notes that a reader needs about these runs, one sentence each."""
    notes = [
        _note_on_seeds(runs),
        _note_on_unfinished(runs),
        _note_on_longer(runs, end=end),
        _note_on_ungraded(runs),
        _note_on_problems(runs),
        _note_on_code(runs),
        *_notes_on_commits(runs),
    ]
    return [note for note in notes if note is not None]


def _note_on_seeds(runs: Sequence[Run]) -> str | None:
    """Say that the arms have different seeds, if they have."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        seeds.setdefault(run.arm, []).append(run.seed)
    if len({tuple(of_arm) for of_arm in seeds.values()}) < 2:
        return None
    return "The arms do not have the same seeds; differences are taken over the seeds that two arms share."


def _note_on_unfinished(runs: Sequence[Run]) -> str | None:
    """Name the unfinished runs, if any."""
    paths = [str(run.path) for run in runs if not run.finished]
    if not paths:
        return None
    return f"Unfinished, taken as far as they are: {', '.join(paths)}."


def _note_on_longer(runs: Sequence[Run], *, end: float) -> str | None:
    """Name the longest run, if it generated more than 1.1 times the tokens of the shortest."""
    longest = max(runs, key=lambda run: run.by_tokens.end)
    if longest.by_tokens.end <= 1.1 * end:
        return None
    return (
        f"The runs did not generate equally many tokens: {longest.path} continued to {longest.by_tokens.end:,.0f}. Final accuracy "
        "and tokens to the target favour the longer runs."
    )


def _note_on_ungraded(runs: Sequence[Run]) -> str | None:
    """Count the held-out responses without a grade, if there are any."""
    num_ungraded = 0
    for run in runs:
        num_ungraded += sum(line.get("num_ungraded") or 0 for line in run.evaluations)
    if not num_ungraded:
        return None
    return f"Responses to held-out problems that could not be graded, all runs together: {num_ungraded}."


def _note_on_problems(runs: Sequence[Run]) -> str | None:
    """Name the runs that do not hold their training problems, if any."""
    paths = [str(run.path) for run in runs if run.training_problems is None]
    if not paths:
        return None
    return (
        f"Without data/problems.jsonl, so that only their settings say which problems they were trained on: "
        f"{', '.join(paths)}."
    )


def _note_on_code(runs: Sequence[Run]) -> str | None:
    """Say that the runs were made by different code, if they were."""
    states = {run.code_state for run in runs}
    if len(states) < 2:
        return None
    return f"The runs were made by {len(states)} different states of the code (code_state.txt)."


def _notes_on_commits(runs: Sequence[Run]) -> list[str]:
    """Name the commits of each model and data set of which the runs had different ones."""
    notes = []
    differing = values_that_differ({str(run.path): run.commits for run in runs})
    for name, commits in differing.items():
        shown = ", ".join(
            f"{commit or 'unknown'} in {path}" for path, commit in commits.items()
        )
        notes.append(f"The runs had different commits of the {name}: {shown}.")
    return notes
