"""The effect of the mechanisms on the groups of a run, from its rollouts alone.

The question that a user has of replay is what a recall changed: how often is a problem right at its
next visit, if its all-wrong group was repaired, and how often if it was not? A group is only
repaired if its problem has been right before, so the two are compared at an equal number of earlier
successes, between runs if a run has no such groups itself."""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.step_groups import groups_of

READ = (
    *("uid", "context", "group", "group_replay", "group_ranking", "verdict", "recalled_from", "ranked", "advantage"),
    *("reward", "truncated", "num_tokens", "trajectory"),
)
AGES = {"1 to 5": 5, "6 to 20": 20, "21 to 50": 50, "older": 2**63}  # name -> the oldest of it
# Earlier successes: problems of a class count as equally hard. The last class has no upper end.
SUCCESS_CLASSES = (0, 1, 2, 4, 8)
RESAMPLES = 2000
LEAST_PROBLEMS = 3  # of an interval


class Visit(NamedTuple):
    """A plain group of a problem, whose rollouts count where they are fresh and graded."""

    uid: str
    step: int
    accuracy: float
    successes: int  # of the problem's plain prompts before this visit
    repaired: bool  # did stored rollouts join it?
    next_accuracy: float | None  # of the problem's next visit; None: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedClass:
    """The visits of problems with `successes` earlier successes or more, below the next of
    SUCCESS_CLASSES, and the mean accuracy at their next visit."""

    successes: int
    repaired: int
    repaired_accuracy: float
    other: int
    other_accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Next accuracy after a repaired all-wrong group, less that after an all-wrong group that was
    not repaired.

    Attributes:
        repaired, other: visits that were compared.
        difference: weighted by the repaired visits of each class of SUCCESS_CLASSES.
        low, high: 95% interval by resampling problems; None with fewer than two problems on a side.
        unmatched: repaired visits of a class without any other visit; they are left out.
        classes: what was compared, by earlier successes."""

    repaired: int
    other: int
    difference: float
    low: float | None
    high: float | None
    unmatched: int
    classes: list[MatchedClass]

    def sentence(self) -> str:
        """The difference with its interval."""
        interval = "" if self.low is None else f" [{100 * self.low:+.0f}, {100 * (self.high or 0.0):+.0f}]"
        return (
            f"Accuracy at the next visit: {100 * self.difference:+.1f} points{interval} for repaired problems, compared "
            f"with equally hard ones that were not repaired ({self.repaired} and {self.other} visits)."
        )


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

    def sentence(self) -> str:
        """The change with its interval, and what it does not decide."""
        if self.steps[0] == self.steps[1]:
            return f"Not decided: held-out problems were evaluated once, at step {self.steps[0]}."
        has_interval = self.low is not None and self.high is not None
        interval = f" [{100 * self.low:+.1f}, {100 * self.high:+.1f}]" if has_interval else ""  # type: ignore[operator]
        change = 100 * (self.accuracies[1] - self.accuracies[0])
        return (
            f"Held-out accuracy from step {self.steps[0]} to {self.steps[1]}: {self.accuracies[0]:.3f} -> "
            f"{self.accuracies[1]:.3f}, {change:+.1f} points{interval}. What replay, reflection and ranking did for it is not "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEffect(Totals):
    """One step."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Totals):
    """All steps of a run. See `effect_of`."""

    held_out: HeldOut | None
    next_visit: Matched | None
    steps: list[StepEffect]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """Say it in three to five sentences."""
        return [sentence for _, sentence in self.parts()]

    def parts(self) -> list[tuple[str, str]]:
        """The sentences by their subject: held-out, groups, update, next-visit, reflection."""
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
        if self.next_visit is not None:
            parts["next-visit"] = self.next_visit.sentence()
        elif self.recalled:
            parts["next-visit"] = (
                "No all-wrong group of an equally hard problem went without a recall, so this run alone cannot say what "
                "the recalls changed: compare it with a run of the same problems without replay."
            )
        if self.reflection_difference is not None:
            parts["reflection"] = (
                f"Accuracy with a stored error in the prompt: {100 * self.reflection_difference:+.1f} points, compared "
                f"with the plain prompt of the same problem ({self.reflected} groups)."
            )
        return list(parts.items())


def effect_of(run: RunDirectory, *, against: RunDirectory | None = None) -> Effect:
    """Measure what the mechanisms did.

    Args:
        run: a run with rollouts.
        against: a run of the same problems without replay. Its all-wrong groups are what repaired
            ones are compared with; default: those of `run` itself.

    Raises:
        R3Error: no rollouts, or `against` shares no problem with `run`, or replayed too.
    """
    tallies = _tallies(run)
    visits = _visits_in(tallies)
    if not visits:
        raise R3Error(f"{run.path} has no rollouts, so nothing can be said of them; train it with algo=r3")
    compared = visits
    if against is not None:
        compared = _visits_in(_tallies(against))
        if not {visit.uid for visit in compared} & {visit.uid for visit in visits}:
            raise R3Error(f"{against.path} has no problem of {run.path}; name a run on the same data")
        if repaired := sum(visit.repaired for visit in compared):
            raise R3Error(
                f"{against.path} replayed too: {repaired} of its groups were repaired; name a run of the same problems "
                "without replay"
            )
    return Effect(
        **_totals(list(tallies.values())),
        held_out=held_out_of(run),
        next_visit=next_visits(visits, compared),
        steps=[StepEffect(step=step, **_totals([tally])) for step, tally in tallies.items()],
    )


def held_out_of(run: RunDirectory) -> HeldOut | None:
    """Compare the first evaluation with the last one. None: there is none with an accuracy."""
    lines = [line for line in run.read_evaluations() if line.get("pass_at_1") is not None]
    if not lines:
        return None
    first, last = lines[0], lines[-1]
    files = rollout_files.steps_in(run.held_out_rollouts)
    before, after = (_shares_right(files[line["step"]]) if line["step"] in files else {} for line in (first, last))
    changes = np.array([after[uid] - share for uid, share in before.items() if uid in after])
    low = high = None
    if len(changes) >= LEAST_PROBLEMS and changes.min() < changes.max():  # equal ones are no certainty
        draws = np.random.default_rng(0).integers(len(changes), size=(RESAMPLES, len(changes)))
        low, high = np.quantile(changes[draws].mean(1), (0.025, 0.975)).tolist()
    accuracies = first["pass_at_1"], last["pass_at_1"]
    return HeldOut(
        steps=(first["step"], last["step"]), accuracies=accuracies, problems=len(changes), low=low, high=high
    )


def _shares_right(file: Path) -> dict[str, float]:
    """uid -> share of its graded responses that are right."""
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for row in rollout_files.read_columns(file, ("uid", "verdict")):
        if row["verdict"] != Verdict.UNGRADED:
            verdicts[row["uid"]].append(row["verdict"] == Verdict.CORRECT)
    return {uid: fmean(of_problem) for uid, of_problem in verdicts.items()}


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of a step's rows."""

    plain: list[tuple[str, int, int, bool]]  # (uid, correct, graded, repaired) of each plain group
    groups: int  # of every prompt, with a graded rollout
    collapsed: int
    recalled: int  # collapsed ones that a recall repaired
    only_ranked: int
    mass: float  # sums of |advantage|
    recalled_mass: float
    ranked_mass: float
    reflections: list[float]  # accuracy less that of the plain group
    counts: dict[str, int]  # "fate:..." -> collapsed groups, "age:..." -> recalled rows


def tally_of(file: Path, step: int) -> Tally:
    """The tally of a step's file, kept until it changes. R3Error: a damaged file."""
    return _tally(file, step, file.stat().st_mtime_ns)


def _tallies(run: RunDirectory) -> dict[int, Tally]:
    return {step: tally_of(file, step) for step, file in rollout_files.steps_in(run.rollouts).items()}


@lru_cache(4096)
def _tally(file: Path, step: int, _written_ns: int) -> Tally:
    rows = rollout_files.read_columns(file, READ)
    try:
        groups = groups_of(rows, step=step)
    except (ValueError, TypeError) as error:
        raise R3Error(f"{file} is damaged: {error}; restore it from a copy, or remove it") from error
    accuracy = {group.key: group.num_correct / group.num_graded for group in groups if group.num_graded}
    graded = [group for group in groups if group.key in accuracy]
    plain = [group for group in graded if group.context is Context.PLAIN]
    collapsed = [group for group in graded if accuracy[group.key] in (0.0, 1.0)]
    counts = Counter(f"fate:{group.fate}" for group in groups if group.fate is not None)
    for row in (row for group in groups for row in group.rows if row["recalled_from"] is not None):
        lag = step - row["recalled_from"]
        counts[f"age:{next(name for name, oldest in AGES.items() if lag <= oldest)}"] += 1
    return Tally(
        plain=[(group.uid, group.num_correct, group.num_graded, group.num_recalled > 0) for group in plain],
        groups=len(graded),
        collapsed=len(collapsed),
        recalled=sum(group.num_recalled > 0 for group in collapsed),
        only_ranked=sum(group.num_ranked > 0 and not group.num_recalled for group in graded),
        mass=sum(group.mass for group in groups),
        recalled_mass=sum(group.recalled_mass for group in groups),
        ranked_mass=sum(group.ranked_mass for group in groups),
        reflections=[
            accuracy[uid, context] - accuracy[uid, Context.PLAIN.value]
            for uid, context in accuracy
            if context == Context.REFLECTION and (uid, Context.PLAIN.value) in accuracy
        ],
        counts=dict(counts),
    )


def _totals(tallies: Sequence[Tally]) -> dict[str, Any]:
    """The fields of Totals over some steps."""
    reflections = [difference for tally in tallies for difference in tally.reflections]
    mass = sum(tally.mass for tally in tallies)
    return {
        "groups": sum(tally.groups for tally in tallies),
        "collapsed": sum(tally.collapsed for tally in tallies),
        "recalled": sum(tally.recalled for tally in tallies),
        "ranked": sum(tally.only_ranked for tally in tallies),
        "recalled_share": sum(tally.recalled_mass for tally in tallies) / mass if mass else None,
        "ranked_share": sum(tally.ranked_mass for tally in tallies) / mass if mass else None,
        "reflected": len(reflections),
        "reflection_difference": fmean(reflections) if reflections else None,
    }


def _visits_in(tallies: dict[int, Tally]) -> list[Visit]:
    return visits_of((uid, step, *group) for step, tally in tallies.items() for uid, *group in tally.plain)  # type: ignore[misc]


def visits_of(groups: Iterable[tuple[str, int, int, int, bool]]) -> list[Visit]:
    """The visits of each problem, from (uid, step, correct, graded, repaired) by step."""
    visits: list[Visit] = []
    by_problem = sorted(groups, key=itemgetter(0))
    for _, of_problem in itertools.groupby(by_problem, key=itemgetter(0)):
        its_groups = list(of_problem)
        earlier = itertools.accumulate((group[2] for group in its_groups), initial=0)
        accuracies = [correct / graded for _, _, correct, graded, _ in its_groups]
        for group, successes, accuracy, after in zip(
            its_groups, earlier, accuracies, [*accuracies[1:], None], strict=False
        ):
            visits.append(Visit(group[0], group[1], accuracy, successes, group[4], after))
    return visits


def next_visits(visits: Sequence[Visit], compared: Sequence[Visit]) -> Matched | None:
    """All-wrong groups of `visits` that were repaired against those of `compared` that were not, by
    SUCCESS_CLASSES.

        difference = sum_c n_c (mean next accuracy of repaired in c - of others in c) / sum_c n_c

    n_c: repaired visits of the class c that has visits of both kinds. None: no class has."""
    tables = [
        _by_problem([visit for visit in visits if visit.repaired]),
        _by_problem([visit for visit in compared if not visit.repaired]),
    ]
    (n_C, total_C), (m_C, other_C) = (table_PCX.sum(0).T for table_PCX in tables)
    both_C = (n_C > 0) & (m_C > 0)
    if not both_C.any():
        return None
    matched = [table_PCX[:, both_C][table_PCX[:, both_C, 0].any(1)] for table_PCX in tables]
    low = high = None
    if min(map(len, matched)) >= 2:
        rng = np.random.default_rng(0)
        drawn = [_difference(*(_resampled(table, rng) for table in matched)) for _ in range(RESAMPLES)]
        low, high = np.nanquantile(drawn, (0.025, 0.975)).tolist()
    return Matched(
        repaired=int(n_C[both_C].sum()),
        other=int(m_C[both_C].sum()),
        difference=_difference(*(table.sum(0) for table in matched)),
        low=low,
        high=high,
        unmatched=int(n_C[~both_C].sum()),
        classes=[
            MatchedClass(
                successes=SUCCESS_CLASSES[place],
                repaired=int(n_C[place]),
                repaired_accuracy=float(total_C[place] / n_C[place]),
                other=int(m_C[place]),
                other_accuracy=float(other_C[place] / m_C[place]),
            )
            for place in np.flatnonzero(both_C).tolist()
        ],
    )


def _by_problem(visits: Sequence[Visit]) -> np.ndarray:
    """float64 [P, C, 2], of visits with an all-wrong group and a next one: how many per problem and
    class, and the sum of their next accuracies."""
    kept = [visit for visit in visits if visit.accuracy == 0.0 and visit.next_accuracy is not None]
    uids, problems = np.unique([visit.uid for visit in kept], return_inverse=True)
    table_PCX = np.zeros((len(uids), len(SUCCESS_CLASSES), 2))
    for visit, problem in zip(kept, problems, strict=True):
        table_PCX[problem, bisect(SUCCESS_CLASSES, visit.successes) - 1] += 1.0, visit.next_accuracy or 0.0
    return table_PCX


def _resampled(table_PCX: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The sums [C, 2] of as many problems, drawn with replacement."""
    count = len(table_PCX)
    return np.tensordot(np.bincount(rng.integers(count, size=count), minlength=count), table_PCX, 1)


def _difference(repaired_CX: np.ndarray, others_CX: np.ndarray) -> float:
    """See `next_visits`. NaN: no class has visits of both kinds."""
    both = (repaired_CX[:, 0] > 0) & (others_CX[:, 0] > 0)
    if not both.any():
        return math.nan
    (n, total), (m, other_total) = repaired_CX[both].T, others_CX[both].T
    return float((n * (total / n - other_total / m)).sum() / n.sum())
