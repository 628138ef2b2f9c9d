"""Did it help? What the mechanisms did to the groups of a run, from its rollouts alone.

The question that a user has of replay is what a recall changed: how often is a problem right at its next visit, if its all-wrong
group was repaired, and how often if it was not? A group is only repaired if its problem has been right before, so the two are
compared at an equal number of earlier successes, between runs if a run has no such groups itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
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
class Matched:
    """Next accuracy after a repaired all-wrong group, less that after an all-wrong group that was not repaired.

    Attributes:
        repaired, other: visits that were compared.
        difference: weighted by the repaired visits of each class of SUCCESS_CLASSES.
        low, high: 95% interval by resampling problems; None with fewer than two problems on a side.
        unmatched: repaired visits of a class without any other visit; they are left out.
    """

    repaired: int
    other: int
    difference: float
    low: float | None
    high: float | None
    unmatched: int


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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """What it says, in two to four sentences."""
        lines = [
            f"{self.recalled} of {self.collapsed} collapsed groups were repaired by replay, {self.ranked} more were only ranked "
            f"({self.groups} plain groups)."
        ]
        if self.recalled_share is not None:
            lines.append(
                f"Recalled rows carried {self.recalled_share:.0%} of the update (sum of |advantage|), ranked rows "
                f"{self.ranked_share:.0%}."
            )
        if (found := self.next_visit) is not None:
            interval = (
                ""
                if found.low is None or found.high is None
                else f" [{100 * found.low:+.0f}, {100 * found.high:+.0f}]"
            )
            lines.append(
                f"Accuracy at the next visit: {100 * found.difference:+.1f} points{interval} for repaired problems, compared with "
                f"equally hard ones that were not repaired ({found.repaired} and {found.other} visits)."
            )
        elif self.recalled:
            lines.append(
                "No all-wrong group of an equally hard problem went without a recall, so this run alone cannot say what the "
                "recalls changed: compare it with a run without replay (--against RUN)."
            )
        if self.reflection_difference is not None:
            lines.append(
                f"Accuracy with a stored error in the prompt: {100 * self.reflection_difference:+.1f} points, compared with the plain "
                f"prompt of the same problem ({self.reflected} groups)."
            )
        return lines


def effect_of(run: RunDirectory, *, against: RunDirectory | None = None) -> Effect:
    """What the mechanisms did.

    Args:
        run: a run with rollouts.
        against: a run of the same problems without replay. Its all-wrong groups are what repaired ones are compared with;
            default: those of `run` itself.

    Raises:
        R3Error: no rollouts, or `against` shares no problem with `run`.
    """
    found = _tally(run)
    if not found.groups:
        raise R3Error(f"{run.path} has no rollouts, so nothing can be said of them; train it with algo=r3")
    visits = visits_of(found.groups)
    compared = visits
    if against is not None:
        compared = visits_of(_tally(against).groups)
        if not {visit.uid for visit in compared} & {visit.uid for visit in visits}:
            raise R3Error(f"{against.path} has no problem of {run.path}; name a run on the same data")
    collapsed = [visit for visit in visits if visit.accuracy in (0.0, 1.0)]
    return Effect(
        groups=len(visits),
        collapsed=len(collapsed),
        recalled=sum(visit.repaired for visit in collapsed),
        ranked=found.only_ranked,
        recalled_share=found.recalled / found.total if found.total else None,
        ranked_share=found.ranked / found.total if found.total else None,
        reflected=len(found.reflections),
        reflection_difference=fmean(found.reflections) if found.reflections else None,
        next_visit=next_visits(visits, compared),
    )


@dataclass(slots=True)
class _Tally:
    """Sums over the steps of a run; its rows are read once and not kept."""

    groups: list[tuple[str, int, int, int, bool]] = field(default_factory=list)  # as visits_of takes them
    only_ranked: int = 0
    total: float = 0.0  # sums of |advantage|
    recalled: float = 0.0
    ranked: float = 0.0
    reflections: list[float] = field(default_factory=list)  # accuracy less that of the plain group


def _tally(run: RunDirectory) -> _Tally:
    found = _Tally()
    for step, file in rollout_files.steps_in(run.rollouts).items():
        groups = grouped(rollout_files.read_columns(file, READ))
        for (uid, context), rows in groups.items():
            weights = [abs(row["advantage"] or 0.0) for row in rows]
            found.total += sum(weights)
            found.recalled += sum(
                weight for row, weight in zip(rows, weights, strict=True) if row["recalled_from"] is not None
            )
            found.ranked += sum(weight for row, weight in zip(rows, weights, strict=True) if row["ranked"])
            correct, graded = _counts(rows)
            if context == "plain" and graded:
                repaired = any(row["recalled_from"] is not None for row in rows)
                found.groups.append((uid, step, correct, graded, repaired))
                found.only_ranked += any(row["ranked"] for row in rows) and not repaired
            elif context == "reflection" and graded:
                plain, of = _counts(groups.get((uid, "plain"), []))
                found.reflections += [correct / graded - plain / of] if of else []
    return found


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
