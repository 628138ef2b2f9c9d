"""What the mechanisms did to the groups of a run, from its rollouts alone.

The question that a user has of replay is what a recall changed: how often is a problem right at its next visit, if its all-wrong
group was repaired, and how often if it was not? A group is only repaired if its problem has been right before, so the two are
compared at an equal number of earlier successes, between runs if a run has no such groups itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_records import grouped

READ = ("uid", "context", "group", "verdict", "recalled_from", "ranked", "advantage")
# Earlier successes of a problem: within a class, problems count as equally hard. The last one has no upper end.
SUCCESS_CLASSES = (0, 1, 2, 4, 8)
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A plain group of a problem.

    Attributes:
        accuracy: share of its graded fresh rollouts that are correct.
        successes: correct rollouts of the problem from plain prompts before this visit.
        next_accuracy: `accuracy` of the problem's next visit; None: there is none.
        repaired: did stored rollouts, or successes of a reflection group, join it?
    """

    uid: str
    step: int
    accuracy: float
    successes: int
    repaired: bool
    next_accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedClass:
    """The visits of problems with `successes` earlier successes or more, below the next of SUCCESS_CLASSES, and the mean
    accuracy at their next visit."""

    successes: int
    repaired: int
    repaired_accuracy: float
    other: int
    other_accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Next accuracy after a repaired all-wrong group, less that after an all-wrong group that was not repaired.

    Attributes:
        repaired, other: visits that were compared.
        difference: weighted by the repaired visits of each class of SUCCESS_CLASSES.
        low, high: 95% interval by resampling problems; None with fewer than two problems on a side.
        unmatched: repaired visits of a class without any other visit; they are left out.
        classes: what was compared, by earlier successes.
    """

    repaired: int
    other: int
    difference: float
    low: float | None
    high: float | None
    unmatched: int
    classes: list[MatchedClass]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEffect:
    """What the mechanisms did in one step; the fields are those of Effect."""

    step: int
    groups: int
    collapsed: int
    recalled: int
    ranked: int
    recalled_share: float | None
    ranked_share: float | None
    reflected: int
    reflection_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """See `effect_of`. Shares are from 0 to 1; None: there is nothing to take it of.

    Attributes:
        groups, collapsed, recalled, ranked: plain groups; those whose verdicts are equal; those of them that a recall, or only a
            ranking, gave a difference.
        recalled_share, ranked_share: share of sum |advantage| in recalled rows, and in ranked ones.
        reflected: problems and steps with a reflection group and a plain one; the mean difference of their accuracies.
    """

    groups: int
    collapsed: int
    recalled: int
    ranked: int
    recalled_share: float | None
    ranked_share: float | None
    reflected: int
    reflection_difference: float | None
    next_visit: Matched | None
    steps: list[StepEffect]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """What it says, in two to four sentences."""
        return [sentence for _, sentence in self.parts()]

    def parts(self) -> list[tuple[str, str]]:
        """The sentences with the names of what they are about: groups, update, next-visit, reflection."""
        parts = [
            (
                "groups",
                f"{self.recalled} of {self.collapsed} collapsed groups were repaired by replay, {self.ranked} more were only ranked "
                f"({self.groups} plain groups).",
            )
        ]
        if self.recalled_share is not None:
            sentence = (
                f"Recalled rows carried {self.recalled_share:.0%} of the update (sum of |advantage|), ranked rows "
                f"{self.ranked_share:.0%}."
            )
            parts.append(("update", sentence))
        if (found := self.next_visit) is not None:
            interval = (
                ""
                if found.low is None or found.high is None
                else f" [{100 * found.low:+.0f}, {100 * found.high:+.0f}]"
            )
            sentence = (
                f"Accuracy at the next visit: {100 * found.difference:+.1f} points{interval} for repaired problems, compared with "
                f"equally hard ones that were not repaired ({found.repaired} and {found.other} visits)."
            )
            parts.append(("next-visit", sentence))
        elif self.recalled:
            sentence = (
                "No all-wrong group of an equally hard problem went without a recall, so this run alone cannot say what the "
                "recalls changed: compare it with a run without replay (--against RUN)."
            )
            parts.append(("next-visit", sentence))
        if self.reflection_difference is not None:
            sentence = (
                f"Accuracy with a stored error in the prompt: {100 * self.reflection_difference:+.1f} points, compared with the plain "
                f"prompt of the same problem ({self.reflected} groups)."
            )
            parts.append(("reflection", sentence))
        return parts


def effect_of(run: RunDirectory, *, against: RunDirectory | None = None) -> Effect:
    """What the mechanisms did.

    Args:
        run: a run with rollouts.
        against: a run of the same problems without replay. Its all-wrong groups are what repaired ones are compared with;
            default: those of `run` itself.

    Raises:
        R3Error: no rollouts, or `against` shares no problem with `run`.
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
    steps = [_step_effect(step, [tally]) for step, tally in tallies.items()]
    whole = asdict(_step_effect(0, list(tallies.values())))
    del whole["step"]
    return Effect(**whole, next_visit=next_visits(visits, compared), steps=steps)


@dataclass(frozen=True, slots=True)
class _Tally:
    """What is kept of a step's rows."""

    groups: list[tuple[str, int, int, bool]]  # (uid, correct, graded, repaired) of each plain group
    only_ranked: int
    total: float  # sums of |advantage|
    recalled: float
    ranked: float
    reflections: list[float]  # accuracy less that of the plain group


def _tallies(run: RunDirectory) -> dict[int, _Tally]:
    files = rollout_files.steps_in(run.rollouts)
    return {step: _tally(file, file.stat().st_mtime_ns) for step, file in files.items()}


@lru_cache(4096)
def _tally(file: Path, _written_ns: int) -> _Tally:
    """Kept: `r3 view` asks again after each step of a run."""
    groups = grouped(rollout_files.read_columns(file, READ))
    plain: list[tuple[str, int, int, bool]] = []
    reflections: list[float] = []
    only_ranked, total, recalled, ranked = 0, 0.0, 0.0, 0.0
    for (uid, context), rows in groups.items():
        weights = [abs(row["advantage"] or 0.0) for row in rows]
        is_recalled = [row["recalled_from"] is not None for row in rows]
        is_ranked = [bool(row["ranked"]) for row in rows]
        total += sum(weights)
        recalled += sum(weight for weight, holds in zip(weights, is_recalled, strict=True) if holds)
        ranked += sum(weight for weight, holds in zip(weights, is_ranked, strict=True) if holds)
        correct, graded = _counts(rows)
        if context == "plain" and graded:
            plain.append((uid, correct, graded, any(is_recalled)))
            only_ranked += any(is_ranked) and not any(is_recalled)
        elif context == "reflection" and graded:
            plain_correct, plain_graded = _counts(groups.get((uid, "plain"), []))
            reflections += [correct / graded - plain_correct / plain_graded] if plain_graded else []
    return _Tally(plain, only_ranked, total, recalled, ranked, reflections)


def _step_effect(step: int, tallies: Sequence[_Tally]) -> StepEffect:
    """The sums over some steps."""
    groups = [group for tally in tallies for group in tally.groups]
    collapsed = [group for group in groups if group[1] in (0, group[2])]
    reflections = [difference for tally in tallies for difference in tally.reflections]
    total = sum(tally.total for tally in tallies)
    return StepEffect(
        step=step,
        groups=len(groups),
        collapsed=len(collapsed),
        recalled=sum(repaired for *_, repaired in collapsed),
        ranked=sum(tally.only_ranked for tally in tallies),
        recalled_share=sum(tally.recalled for tally in tallies) / total if total else None,
        ranked_share=sum(tally.ranked for tally in tallies) / total if total else None,
        reflected=len(reflections),
        reflection_difference=fmean(reflections) if reflections else None,
    )


def _visits_in(tallies: dict[int, _Tally]) -> list[Visit]:
    return visits_of((uid, step, *group) for step, tally in tallies.items() for uid, *group in tally.groups)  # type: ignore[misc]


def _counts(rows: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """(correct, graded) fresh rollouts."""
    verdicts = [row["verdict"] for row in rows if row["recalled_from"] is None and row["verdict"] != "ungraded"]
    return verdicts.count("correct"), len(verdicts)


def visits_of(groups: Iterable[tuple[str, int, int, int, bool]]) -> list[Visit]:
    """The visits of each problem. `groups`: (uid, step, correct, graded, repaired) in the order of steps."""
    found: dict[str, list[tuple[int, int, int, bool]]] = defaultdict(list)
    for uid, *group in groups:
        found[uid].append(tuple(group))  # type: ignore[arg-type]
    visits = []
    for uid, own in found.items():
        successes = 0
        for (step, correct, graded, repaired), after in zip(own, [*own[1:], None], strict=True):
            visits.append(
                Visit(
                    uid=uid,
                    step=step,
                    accuracy=correct / graded,
                    successes=successes,
                    repaired=repaired,
                    next_accuracy=after[1] / after[2] if after else None,
                )
            )
            successes += correct
    return visits


def next_visits(visits: Sequence[Visit], compared: Sequence[Visit]) -> Matched | None:
    """All-wrong groups of `visits` that were repaired against those of `compared` that were not, by SUCCESS_CLASSES.

        difference = sum_c n_c (mean next accuracy of repaired in c - of the others in c) / sum_c n_c

    n_c: repaired visits of the class c that has visits of both kinds. None: no class has.
    """
    repaired = [one for one in visits if _is_all_wrong(one) and one.repaired]
    others = [one for one in compared if _is_all_wrong(one) and not one.repaired]
    classes = {_class_of(one) for one in repaired} & {_class_of(one) for one in others}
    matched = [one for one in repaired if _class_of(one) in classes]
    reference = [one for one in others if _class_of(one) in classes]
    if not matched:
        return None
    tables = [_by_problem(matched), _by_problem(reference)]
    low = high = None
    if min(map(len, tables)) >= 2:
        rng = np.random.default_rng(0)
        drawn = [_difference(*(_resampled(table, rng) for table in tables)) for _ in range(RESAMPLES)]
        low, high = np.nanquantile(drawn, (0.025, 0.975)).tolist()
    return Matched(
        repaired=len(matched),
        other=len(reference),
        difference=_difference(*(table.sum(0) for table in tables)),
        low=low,
        high=high,
        unmatched=len(repaired) - len(matched),
        classes=[_class_means(start, matched, reference) for start in sorted(classes)],
    )


def _class_means(start: int, matched: Sequence[Visit], reference: Sequence[Visit]) -> MatchedClass:
    repaired, others = (
        [one.next_accuracy or 0.0 for one in visits if _class_of(one) == start] for visits in (matched, reference)
    )
    return MatchedClass(
        successes=start,
        repaired=len(repaired),
        repaired_accuracy=fmean(repaired),
        other=len(others),
        other_accuracy=fmean(others),
    )


def _by_problem(visits: Sequence[Visit]) -> np.ndarray:
    """float64 [P, C, 2]: of each problem and class the visits, and the sum of their next accuracies."""
    places: dict[str, int] = {}
    for visit in visits:
        places.setdefault(visit.uid, len(places))
    table_PCX = np.zeros((len(places), len(SUCCESS_CLASSES), 2))
    for visit in visits:
        table_PCX[places[visit.uid], SUCCESS_CLASSES.index(_class_of(visit))] += 1.0, visit.next_accuracy or 0.0
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


def _is_all_wrong(visit: Visit) -> bool:
    return visit.accuracy == 0.0 and visit.next_accuracy is not None


def _class_of(visit: Visit) -> int:
    return max(start for start in SUCCESS_CLASSES if start <= visit.successes)
