"""Comparable runs -> results of each arm, at equal generated tokens, with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from r3_openrlhf.comparison.intervals import (
    Crossing,
    SeedEstimate,
    crossing_of_mean,
    estimate,
    paired_difference,
)
from r3_openrlhf.comparison.runs import SAME_IN_EVALUATIONS, Run, check_comparable, settings_that_differ
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.open_table import nearest

DEFAULT_REFERENCE = "grpo"
# name of a quantity -> key of metrics.jsonl
COUNTS = {
    "solve_all_per_step": "r3/groups/all_correct",
    "solve_none_per_step": "r3/groups/none_correct",
    "collapsed_after_per_step": "r3/groups/collapsed_after",
    "dropped_per_step": "r3/filter/dropped_groups",
}
LEVELS = {
    "entropy": "fresh/entropy",
    "response_length": "fresh/response_length",
    "truncated": "fresh/truncated",
}
GROUPS = ("r3/groups/all_correct", "r3/groups/none_correct", "r3/groups/mixed")
TOKENS = {  # name of a quantity -> key of metrics.jsonl, tokens by verdict
    "tokens_in_mixed": "r3/tokens/mixed",
    "tokens_in_all_correct": "r3/tokens/all_correct",
    "tokens_in_none_correct": "r3/tokens/none_correct",
    "tokens_in_reflection": "r3/tokens/reflection",
    "tokens_in_prefix": "r3/tokens/prefix",
}
SECONDS = ("timing/step_total", "time/step_s")  # of a step: on the whole stack, in the lab
TARGET_SHARES = (0.5, 0.75, 1.0)  # of the reference's gain, that mean curves are asked for


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


def compare(runs: Sequence[Run], *, reference: str | None = None, target: float | None = None) -> Comparison:
    """The runs in arms by name, against `reference` (default: grpo, or the only arm).

    With T the smallest of the runs' last evaluations, in generated tokens:
        accuracy_at_equal_tokens   the curve at T, straight between two evaluations
        mean_accuracy              area under the curve up to T, divided by the tokens it spans
        final_accuracy             the last evaluation, whatever its generated tokens
        effective_before, _after   share of groups not collapsed, before and after replay, up to T;
                                   groups that dynamic sampling dropped were sampled, and collapsed
        crossings                  of the arm's mean curve, see `crossing_of_mean`
        tokens_in_...              share of generated tokens in these, up to T; tokens_elsewhere:
                                   what dynamic sampling dropped, and ungraded groups
        trained_tokens, seconds    sums up to T; T's step counts with its share of tokens before T
        COUNTS                     per step, over the steps up to T
        LEVELS                     over the last quarter of the steps up to T
    The order of `runs` does not matter. Raises R3Error as `check_comparable` does, for an unknown
    reference, and for runs whose curves have no stretch in common.
    """
    check_comparable(runs)
    runs = sorted(runs, key=lambda run: (run.arm, run.seed))
    reference = _reference(runs, reference)
    first, last = max(runs, key=lambda run: run.by_tokens.start), min(runs, key=lambda run: run.by_tokens.end)
    start, end = first.by_tokens.start, last.by_tokens.end
    if start >= end:
        raise R3Error(
            f"there are no generated tokens at which all runs are known: the evaluations of {last.path} end at {end} "
            f"tokens and those of {first.path} begin at {start}"
        )
    finals = [run.by_tokens.ys[-1] for run in runs if run.arm == reference]
    level = statistics.fmean(finals) if target is None else target
    names = [reference, *sorted({run.arm for run in runs} - {reference})]
    curves = {name: {run.seed: run.by_tokens for run in runs if run.arm == name} for name in names}
    first_level = statistics.fmean(curve.ys[0] for curve in curves[reference].values())
    shares = TARGET_SHARES if target is None else (1.0,)
    results = {name: [_result(run, start=start, end=end) for run in runs if run.arm == name] for name in names}
    crossings = {
        name: [crossing_of_mean(curves[name], curves[reference], share=share, level=target) for share in shares]
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
        raise R3Error(f"no run has the reference arm {name!r} (--reference); {nearest(name, arms)}")
    return name


def _result(run: Run, *, start: float, end: float) -> RunResult:
    curve = run.by_tokens
    steps = [line for line in run.metrics if line["generated_tokens_total"] <= end]
    late = steps[-max(1, len(steps) // 4) :]
    spent = [*steps, *_part_before(run, end, step=len(steps))]
    values = {
        "accuracy_at_equal_tokens": curve.at(end),
        "final_accuracy": curve.ys[-1],
        "mean_accuracy": curve.mean_height(start, end),
        "generated_tokens": curve.end,
        "steps": run.by_steps.end,
        "effective_before": _effective(spent, "r3/groups/collapsed_before"),
        "effective_after": _effective(spent, "r3/groups/collapsed_after"),
        **_token_shares(spent),
        "trained_tokens": _sum(spent, ("trained_tokens",)),
        "seconds": _sum(spent, SECONDS),
        **{name: _mean(steps, key) for name, key in COUNTS.items()},
        **{name: _mean(late, key) for name, key in LEVELS.items()},
    }
    return RunResult(path=str(run.path), seed=run.seed, finished=run.finished, values=values)


def _part_before(run: Run, end: float, *, step: int) -> list[dict[str, Any]]:
    """The line that contains T, its numbers in proportion to its tokens before T, as the curve is
    taken straight there. A line of evidence is a stretch of many steps: without its part a run that
    generated a little more than the others would seem to have trained less."""
    if step == len(run.metrics):
        return []
    before = run.metrics[step - 1]["generated_tokens_total"] if step else 0.0
    line = run.metrics[step]
    share = (end - before) / (line["generated_tokens_total"] - before)
    numbers = {
        key: value for key, value in line.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return [{key: share * value for key, value in numbers.items()}] if share > 0 else []


def _effective(steps: list[dict[str, Any]], collapsed: str) -> float | None:
    """Share of the groups of these steps that are not collapsed. None: no step counts them.

    A step's r3/groups are left by dynamic sampling; what it dropped is counted apart.
    """
    counted = [line for line in steps if _has(line, *GROUPS, collapsed)]
    left = sum(line[key] for line in counted for key in GROUPS)
    sampled = left + sum(line.get(COUNTS["dropped_per_step"]) or 0 for line in counted)
    return (left - sum(line[collapsed] for line in counted)) / sampled if sampled else None


def _has(line: dict[str, Any], *keys: str) -> bool:
    return all(line.get(key) is not None for key in keys)


def _token_shares(steps: list[dict[str, Any]]) -> dict[str, float | None]:
    """Where the generated tokens of these steps are. None where no step says."""
    counted = [line for line in steps if _has(line, "generated_tokens", *TOKENS.values())]
    total = sum(line["generated_tokens"] for line in counted)
    if not total:
        return dict.fromkeys((*TOKENS, "tokens_elsewhere"))
    shares: dict[str, float | None] = {
        name: sum(line[key] for line in counted) / total for name, key in TOKENS.items()
    }
    elsewhere = total - sum(line[key] for line in counted for key in TOKENS.values())
    return shares | {"tokens_elsewhere": elsewhere / total}


def _sum(steps: list[dict[str, Any]], keys: tuple[str, ...]) -> float | None:
    """Over all steps, of the first of these keys that each has. None: a step has none."""
    values = [next((line[key] for key in keys if _has(line, key)), None) for line in steps]
    return sum(value for value in values if value is not None) if values and None not in values else None


def _mean(steps: list[dict[str, Any]], key: str) -> float | None:
    values = [line[key] for line in steps if _has(line, key)]
    return statistics.fmean(values) if values else None


def _arm(name: str, runs: list[RunResult], reference: list[RunResult], crossings: list[Crossing | None]) -> ArmResult:
    by_seed = {quantity: _by_seed(runs, quantity) for quantity in runs[0].values}
    return ArmResult(
        name=name,
        runs=runs,
        estimates={quantity: estimate(list(values.values())) for quantity, values in by_seed.items()},
        differences={
            quantity: paired_difference(values, _by_seed(reference, quantity))
            for quantity, values in by_seed.items()
            if runs is not reference
        },
        crossings=crossings,
    )


def _by_seed(runs: list[RunResult], quantity: str) -> dict[int, float]:
    return {run.seed: value for run in runs if (value := run.values[quantity]) is not None}


def _notes(runs: Sequence[Run], *, end: float) -> list[str]:
    """Notes that a reader needs about these runs, one sentence each."""
    notes = []
    seeds = {arm: [run.seed for run in runs if run.arm == arm] for arm in sorted({run.arm for run in runs})}
    if len(set(map(tuple, seeds.values()))) > 1:
        notes.append("The arms do not have the same seeds; differences are taken over the seeds that two arms share.")
    if unfinished := [str(run.path) for run in runs if not run.finished]:
        notes.append(f"Unfinished, taken as far as they are: {', '.join(unfinished)}.")
    longer = [run for run in runs if run.by_tokens.end > 1.1 * end]
    if longer:
        most = max(longer, key=lambda run: run.by_tokens.end)
        notes.append(
            f"The runs did not generate equally many tokens: {most.path} continued to {most.by_tokens.end:,.0f}. Final accuracy "
            "and tokens to the target favour the longer runs."
        )
    if ungraded := sum(line.get("num_ungraded") or 0 for run in runs for line in run.evaluations):
        notes.append(f"Responses to held-out problems that could not be graded, all runs together: {ungraded}.")
    if without := [str(run.path) for run in runs if run.training_problems is None]:
        notes.append(
            f"Without data/problems.jsonl, so that only their settings say which problems they were trained on: "
            f"{', '.join(without)}."
        )
    if len(states := {run.code_state for run in runs}) > 1:
        notes.append(f"The runs were made by {len(states)} different states of the code (code_state.txt).")
    return notes
