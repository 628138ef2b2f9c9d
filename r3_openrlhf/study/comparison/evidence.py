"""Evidence files (runs/evidence.py) -> a table for each regime, and the map: what each arm gained, by how many groups collapse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.comparison.arms import ArmResult, Comparison, compare
from r3_openrlhf.runs.comparison.intervals import (
    SeedEstimate,
    estimate,
)
from r3_openrlhf.runs.comparison.runs import Run
from r3_openrlhf.runs.comparison.table import HALF_WIDTH, NOTHING, crossing_text, interval_text, seeds_text
from r3_openrlhf.runs.evidence import Evidence, read_evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The runs of one directory, compared."""

    name: str
    comparison: Comparison
    collapsed: float | None  # of the reference's groups, as they were sampled
    all_wrong: float | None  # of the reference's groups
    needed: SeedEstimate | None  # of the reference's tokens: those outside its all-wrong groups


def read_regimes(directory: Path, *, reference: str | None = None) -> list[Regime]:
    """One for each directory below that holds evidence, by name. Raises R3Error as read_evidence and compare do, and where
    there is none."""
    folders = sorted({path.parent for path in directory.rglob("*.json")})
    if not folders:
        raise R3Error(
            f"there is no evidence in {directory}; `r3 lab study --evidence {directory}/NAME` puts some there"
        )
    return [read_regime(folder, reference=reference) for folder in folders]


def read_regime(folder: Path, *, reference: str | None = None) -> Regime:
    """Raises R3Error as read_evidence and compare do."""
    runs = [as_run(read_evidence(path), path) for path in sorted(folder.glob("*.json"))]
    comparison = compare(runs, reference=reference)
    theirs = [run for run in runs if run.arm == comparison.reference]
    return Regime(
        name=folder.name,
        comparison=comparison,
        collapsed=_share(theirs, "r3/groups/collapsed_before", dropped=True),
        all_wrong=_share(theirs, "r3/groups/none_correct", dropped=False),
        needed=tokens_without_all_wrong(theirs),
    )


def as_run(evidence: Evidence, path: Path) -> Run:
    """For `compare`. The lines of `metrics` are the stretches between two evaluations, not steps: sums over them are the
    run's, means over steps are not."""
    count = len(evidence.curve["step"])
    evaluations = [
        {key: values[i] for key, values in evidence.curve.items()} | evidence.evaluation for i in range(count)
    ]
    metrics = []
    for i in range(1, count):
        line: dict[str, Any] = {key: values[i] - values[i - 1] for key, values in evidence.sums.items()}
        line |= {"step": evidence.curve["step"][i], "generated_tokens_total": evidence.curve["generated_tokens"][i]}
        metrics.append(line)
    return Run(
        path=path,
        arm=evidence.arm,
        seed=evidence.seed,
        finished=True,
        settings=evidence.settings,
        evaluations=evaluations,
        metrics=metrics,
        training_problems=evidence.problems,
        code_state=evidence.commit,
    )


def tokens_without_all_wrong(runs: Sequence[Run]) -> SeedEstimate | None:
    """With which share of its tokens a run would be where it ends, if its all-wrong groups had cost nothing.

        1 - (tokens in all-wrong groups) / (generated tokens), mean over runs

    Exact for an arm without replay and ranking: the rewards of an all-wrong group are equal, so that its advantages are 0 and
    the updates stay what they are. No choice of problems saves more without other updates. None where a run does not say.
    """
    shares = []
    for run in runs:
        lines = [(line.get("r3/tokens/none_correct"), line.get("generated_tokens")) for line in run.metrics]
        if not lines or any(value is None for line in lines for value in line):
            return None
        wrong, generated = (sum(values) for values in zip(*lines, strict=True))
        shares.append(1 - wrong / generated)
    return estimate(shares)


def _share(runs: Sequence[Run], key: str, *, dropped: bool) -> float | None:
    lines = [line for run in runs for line in run.metrics]
    keys = ("r3/groups/mixed", "r3/groups/all_correct", "r3/groups/none_correct")
    groups = sum(line.get(name, 0) for line in lines for name in keys)
    gone = sum(line.get("r3/filter/dropped_groups", 0) for line in lines) if dropped else 0
    return (sum(line.get(key, 0) for line in lines) + gone) / (groups + gone) if groups else None


def regime_table(regime: Regime) -> str:
    """A heading, one line on the regime and one row for each arm, as Markdown."""
    found = regime.comparison
    how, reference = found.evaluation, found.reference
    lines = [
        f"### {regime.name}",
        "",
        f"{_percent(regime.collapsed)} of `{reference}`'s groups collapse, {_percent(regime.all_wrong)} are all wrong. Held-out "
        f"accuracy on {how['num_problems']} problems x {how['n_samples']} responses, "
        f"{_start(found)} before training; all arms at {found.equal_tokens:,.0f} generated tokens. Had its all-wrong groups cost "
        f"nothing, `{reference}` would be where it ends with {interval_text(regime.needed, '.2f')} of its tokens.",
        "",
        f"| arm | seeds | accuracy | less `{reference}`'s, paired | mean over the run, less `{reference}`'s | tokens to "
        f"`{reference}`'s final accuracy, mean curve | to 75% of its gain | tokens in collapsed groups | trained tokens | "
        f"seconds | seeds for ±{HALF_WIDTH} |",
        f"|{'---|' * 11}",
    ]
    lines += [f"| {' | '.join(_row(arm))} |" for arm in found.arms]
    return "\n".join(lines) + "\n"


def _row(arm: ArmResult) -> list[str]:
    values, differences = arm.estimates, arm.differences
    return [
        f"`{arm.name}`",
        str(len(arm.runs)),
        interval_text(values["accuracy_at_equal_tokens"], ".3f"),
        interval_text(differences.get("accuracy_at_equal_tokens"), "+.3f"),
        interval_text(differences.get("mean_accuracy"), "+.3f"),
        crossing_text(arm.crossings[-1]),
        crossing_text(arm.crossings[1]) if len(arm.crossings) > 1 else NOTHING,
        _collapsed_tokens(arm),
        _mean(values["trained_tokens"]),
        _mean(values["seconds"]),
        seeds_text(differences.get("accuracy_at_equal_tokens")),
    ]


def _collapsed_tokens(arm: ArmResult) -> str:
    parts = [arm.estimates[name] for name in ("tokens_in_all_correct", "tokens_in_none_correct", "tokens_elsewhere")]
    return NOTHING if None in parts else f"{sum(part.mean for part in parts if part is not None):.0%}"


def arms_of(regimes: Sequence[Regime]) -> list[str]:
    """Those that are compared with a reference somewhere, by name."""
    return sorted({arm.name for regime in regimes for arm in regime.comparison.arms if arm.differences})


def gain(regime: Regime, name: str) -> SeedEstimate | None:
    """Ratio of the arm's mean accuracy over the run to the reference's; None where it was not run."""
    found = [arm for arm in regime.comparison.arms if arm.name == name]
    return found[0].differences.get("mean_accuracy") if found else None


def map_table(regimes: Sequence[Regime]) -> str:
    """One row for each arm that is no reference: what it gained in each regime, those with more collapsed groups last."""
    ordered = sorted(regimes, key=lambda regime: regime.collapsed or 0.0)
    heads = [f"{regime.name}: {_percent(regime.collapsed)} collapse" for regime in ordered]
    lines = [f"| arm | {' | '.join(heads)} |", f"|{'---|' * (len(heads) + 1)}"]
    for name in arms_of(regimes):
        cells = []
        for regime in ordered:
            difference = gain(regime, name)
            count = "" if difference is None else f"{difference.num} seed{'s' if difference.num > 1 else ''}"
            cells.append(NOTHING if difference is None else f"{interval_text(difference, '+.3f')}, {count}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _start(found: Comparison) -> str:
    level = found.levels[0] * 2 - found.target_accuracy if len(found.levels) > 1 else math.nan
    return f"{level:.3f}"


def _mean(found: SeedEstimate | None) -> str:
    return NOTHING if found is None else f"{found.mean:,.0f}"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"
