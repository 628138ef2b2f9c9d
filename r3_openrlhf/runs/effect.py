"""The effect of the mechanisms on the groups of a run, from its rollouts alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.step_groups import groups_of

READ = (
    *(
        "uid",
        "context",
        "group",
        "group_replay",
        "group_ranking",
        "verdict",
        "recalled_from",
        "ranked",
        "advantage",
    ),
    *("reward", "truncated", "num_tokens", "trajectory"),
)
RESAMPLES = 2000
LEAST_PROBLEMS = 3  # of an interval


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out accuracy in the first and in the last evaluation of a run.

    Attributes:
        steps, accuracies: of these two; equal where the run was evaluated once.
        problems: of which responses of both evaluations are kept.
        low, high: 95% interval of the difference by resampling problems; None below three, and if all are equal."""

    steps: tuple[int, int]
    accuracies: tuple[float, float]
    problems: int
    low: float | None
    high: float | None

    @property
    def why_no_interval(self) -> str:
        """Say why `low` and `high` are None, where they are."""
        if self.problems < LEAST_PROBLEMS:
            return (
                f"responses to {self.problems} problems are kept of both evaluations, and an interval needs "
                f"{LEAST_PROBLEMS}"
            )
        return f"all {self.problems} problems changed alike"

    def sentence(self) -> str:
        """State the change with its interval, and what it does not decide."""
        if self.steps[0] == self.steps[1]:
            return (
                f"Not decided: held-out problems were evaluated once, at step {self.steps[0]}."
            )
        change = 100 * (self.accuracies[1] - self.accuracies[0])
        both = (
            f"held-out accuracy from step {self.steps[0]} to {self.steps[1]}: {self.accuracies[0]:.3f} -> "
            f"{self.accuracies[1]:.3f}, {change:+.1f} points"
        )
        if self.low is None or self.high is None:
            return f"Not decided: {both}, without an interval ({self.why_no_interval})."
        return (
            f"H{both[1:]} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]. What replay, reflection and ranking did for it is not "
            "decided: that needs a baseline (r3 compare)."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The effect of the mechanisms in some steps. Shares are from 0 to 1; None: of nothing.

    Attributes:
        groups, collapsed, recalled, ranked: groups of every prompt; those of equal verdicts, as
            `r3/groups/collapsed_before` counts them; those of them to which a recall, or only a
            ranking, gave a difference.
        recalled_share, ranked_share: share of sum |advantage| in recalled rows, and in ranked ones.
        reflected: problems and steps with both groups; the mean difference of their accuracies.
    """

    groups: int
    collapsed: int
    recalled: int
    ranked: int
    recalled_share: float | None
    ranked_share: float | None
    reflected: int
    reflection_difference: float | None
    step: int | None = None  # None: of all


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Totals):
    """The effect over all steps of a run. See `effect_of`."""

    held_out: HeldOut | None
    steps: list[Totals]

    def sentences(self) -> list[str]:
        """Say it in two to four sentences."""
        return [sentence for _, sentence in self.parts()]

    def parts(self) -> list[tuple[str, str]]:
        """Return the sentences by their subject: held-out, groups, update, reflection."""
        parts = {
            "held-out": self.held_out.sentence()
            if self.held_out is not None
            else "Not decided: the run evaluated no held-out problems (held_out.path).",
            "groups": f"{self.recalled} of {self.collapsed} collapsed groups were repaired by replay, {self.ranked} more "
            f"were only ranked ({self.groups} groups).",
        }
        if self.recalled_share is not None:
            parts["update"] = (
                f"Recalled rows carried {self.recalled_share:.0%} of the update (sum of |advantage|), ranked rows "
                f"{self.ranked_share:.0%}."
            )
        if self.reflection_difference is not None:
            parts["reflection"] = (
                f"Accuracy with a stored error in the prompt: {100 * self.reflection_difference:+.1f} points, compared "
                f"with the plain prompt of the same problem ({self.reflected} groups)."
            )
        return list(parts.items())


def effect_of(run: RunDirectory) -> Effect:
    """Measure what the mechanisms did. R3Error: the run has no rollouts."""
    tallies = {
        step: tally_of(file, step)
        for step, file in rollout_files.steps_in(run.rollouts).items()
    }
    if not any(tally["groups"] for tally in tallies.values()):
        raise R3Error(
            f"{run.path} has no rollouts, so nothing can be said of them; train it with algo=r3"
        )
    return Effect(
        **_totals(tallies.values()),
        held_out=held_out_of(run),
        steps=[Totals(step=step, **_totals([tally])) for step, tally in tallies.items()],
    )


def held_out_of(run: RunDirectory) -> HeldOut | None:
    """Compare the first evaluation with the last one. None: there is none with an accuracy."""
    lines = [line for line in run.read_evaluations() if line.get("pass_at_1") is not None]
    if not lines:
        return None
    first, last = lines[0], lines[-1]
    files = rollout_files.steps_in(run.held_out_rollouts)
    before, after = (
        shares_right(files[line["step"]]) if line["step"] in files else {}
        for line in (first, last)
    )
    changes = np.array([after[uid] - share for uid, share in before.items() if uid in after])
    low = high = None
    # equal ones are no certainty
    if len(changes) >= LEAST_PROBLEMS and changes.min() < changes.max():
        draws = np.random.default_rng(0).integers(len(changes), size=(RESAMPLES, len(changes)))
        low, high = np.quantile(changes[draws].mean(1), (0.025, 0.975)).tolist()
    accuracies = first["pass_at_1"], last["pass_at_1"]
    return HeldOut(
        steps=(first["step"], last["step"]),
        accuracies=accuracies,
        problems=len(changes),
        low=low,
        high=high,
    )


def shares_right(file: Path) -> dict[str, float]:
    """uid -> share of its graded responses that are right."""
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for row in rollout_files.read_columns(file, ("uid", "verdict")):
        if row["verdict"] != Verdict.UNGRADED:
            verdicts[row["uid"]].append(row["verdict"] == Verdict.CORRECT)
    return {uid: fmean(of_problem) for uid, of_problem in verdicts.items()}


def tally_of(file: Path, step: int) -> Counter[str]:
    """Count a step's groups and rows, and sum their |advantage| (`_tally`); kept until the file
    changes. R3Error: a damaged file."""
    seen = file.stat()  # a file of the same moment may be another one
    return _tally(file, step, (seen.st_ino, seen.st_size, seen.st_mtime_ns))


@lru_cache(4096)
def _tally(file: Path, step: int, _stamp: tuple[int, int, int]) -> Counter[str]:
    """Collect sums that add up over steps: counts of groups, sums of |advantage|, differences of
    accuracy (reflection less plain), "fate:..." of collapsed groups."""
    rows = rollout_files.read_columns(file, READ)
    try:
        groups = groups_of(rows, step=step)
    except (ValueError, TypeError) as error:
        raise R3Error(
            f"{file} is damaged: {error}; restore it from a copy, or remove it"
        ) from error
    accuracy = {
        group.key: group.num_correct / group.num_graded for group in groups if group.num_graded
    }
    tally: Counter[str] = Counter()
    for group in groups:
        is_graded, is_collapsed = group.key in accuracy, accuracy.get(group.key) in (0.0, 1.0)
        sums: dict[str, Any] = {
            "groups": int(is_graded),
            "collapsed": int(is_collapsed),
            "recalled": int(is_collapsed and group.num_recalled > 0),
            "ranked": int(is_graded and group.num_ranked > 0 and not group.num_recalled),
            "mass": group.mass,
            "recalled_mass": group.recalled_mass,
            "ranked_mass": group.ranked_mass,
        }
        tally.update(sums)
        plain = accuracy.get((group.uid, Context.PLAIN.value))
        if group.context is Context.REFLECTION and group.key in accuracy and plain is not None:
            difference: dict[str, Any] = {
                "reflected": 1,
                "reflection_difference": accuracy[group.key] - plain,
            }
            tally.update(difference)
        if group.fate is not None:
            tally[f"fate:{group.fate}"] += 1
    return tally


def _totals(tallies: Iterable[Counter[str]]) -> dict[str, Any]:
    """Compute the fields of Totals over some steps."""
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    counts = {
        name: total[name] for name in ("groups", "collapsed", "recalled", "ranked", "reflected")
    }
    shares = {
        f"{name}_share": _over(total[f"{name}_mass"], total["mass"])
        for name in ("recalled", "ranked")
    }
    return (
        counts
        | shares
        | {"reflection_difference": _over(total["reflection_difference"], total["reflected"])}
    )


def _over(value: float, of: float) -> float | None:
    return value / of if of else None
