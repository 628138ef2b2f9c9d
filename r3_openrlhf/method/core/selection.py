"""Which of an epoch's problems are asked: tokens go to groups that can differ (docs/method.md, section 10).

Every problem comes up once an epoch, in the epoch's order, and is asked or not. Two rules:

    skip_collapsed   GRESO (arXiv 2506.02177): the longer a problem's groups have collapsed in the same way, the rarer
                     it is asked
    near_half        MoPPS (arXiv 2507.04632): of several problems those are asked whose success rate, drawn from a
                     posterior, is nearest one half

Under both, a problem that comes up is asked with a probability of `floor` or more, whatever happened before: nothing is
lost for ever. Functions and records here are plain values; ProblemSelection holds what a run has seen so far, and gives
it away as JSON so that a run can go on exactly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from r3_openrlhf.method.core.checks import finite_value, whole_number
from r3_openrlhf.method.core.groups import GroupState, group_state
from r3_openrlhf.method.types import SelectionRule, Verdict

KEEP_LOW, KEEP_HIGH = 0.05, 0.95  # GRESO's bounds of the adapted probabilities
PRIOR = 1.0  # MoPPS: Beta(1, 1) before the first visit

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """What the plain groups of one problem have shown so far.

    `state`: of the last visit; None before the first. `run`: how many visits in a row, the last one included, collapsed
    as the last one did; 0 after a mixed group. `right`, `wrong`: the posterior Beta(right, wrong) of the success rate.
    """

    state: GroupState | None = None
    run: int = 0
    right: float = PRIOR
    wrong: float = PRIOR


def after_visit(before: Visits, *, num_correct: int, num_graded: int, memory: float) -> Visits:
    """The record after one more group of the problem.

        run                    run + 1 where the group collapsed as the one before, 1 where it did in another way, 0 if mixed
        right = memory * right + (1 - memory) * 1 + num_correct            MoPPS: old evidence fades, because the policy learns
        wrong = memory * wrong + (1 - memory) * 1 + num_graded - num_correct

    A group with fewer than two graded rollouts shows nothing and changes nothing.

    ValueError: counts that cannot be, a memory outside [0, 1].
    """
    num_graded = whole_number("num_graded", num_graded, minimum=0)
    num_correct = whole_number("num_correct", num_correct, minimum=0)
    memory = finite_value("memory", memory)
    if num_correct > num_graded:
        raise ValueError(f"num_correct is {num_correct}, above num_graded, which is {num_graded}")
    if not 0 <= memory <= 1:
        raise ValueError(f"memory is {memory}; it must be between 0 and 1")
    if num_graded < 2:
        return before
    state, run = GroupState.MIXED, 0
    if num_correct in (0, num_graded):
        state = GroupState.ALL_CORRECT if num_correct else GroupState.NONE_CORRECT
        run = before.run + 1 if state is before.state else 1
    return Visits(
        state=state,
        run=run,
        right=memory * before.right + (1 - memory) * PRIOR + num_correct,
        wrong=memory * before.wrong + (1 - memory) * PRIOR + num_graded - num_correct,
    )


def visit_probability(visits: Visits, *, keep_all_correct: float, keep_none_correct: float, floor: float) -> float:
    """How likely a problem that comes up is asked, by its run of collapsed groups.

        v = max(keep ^ run, floor),   keep by the kind of the run         GRESO: 1 - v is the probability of a skip

    1 before the first visit and after a mixed group. ValueError: a probability outside [0, 1].
    """
    keeps = {GroupState.ALL_CORRECT: keep_all_correct, GroupState.NONE_CORRECT: keep_none_correct}
    for name, value in (
        ("keep_all_correct", keep_all_correct),
        ("keep_none_correct", keep_none_correct),
        ("floor", floor),
    ):
        if not 0 <= finite_value(name, value) <= 1:
            raise ValueError(f"{name} is {value}; it must be between 0 and 1")
    if visits.state is None:
        return 1.0
    return max(keeps.get(visits.state, 1.0) ** visits.run, floor)


def adapted(keep: float, *, share: float, target: float, step: float) -> float:
    """`keep` after a step in which `share` of the asked groups collapsed in its way (GRESO).

        keep - step   where the share is above the target,   keep + step elsewhere,   within [KEEP_LOW, KEEP_HIGH]

    step 0 leaves it as it is.
    """
    if step == 0:
        return keep
    return min(KEEP_HIGH, max(KEEP_LOW, keep - step if share > target else keep + step))


def nearest_half(
    posteriors: Sequence[tuple[float, float]], *, count: int, floor: float, rng: random.Random
) -> list[int]:
    """Places, ascending, of `count` of the problems with these Beta posteriors (all of them where there are fewer).

        ceil(floor * n) places by lot among all n;   the rest by |p_i - 1/2|, p_i ~ Beta(right_i, wrong_i), the smallest first

    So a problem is asked with probability ceil(floor * n) / n or more, however far from one half it is.

    ValueError: count below 1, a posterior whose parameters are not above 0, a floor outside [0, 1] or one that `count`
    places cannot keep.
    """
    count = whole_number("count", count, minimum=1)
    floor = finite_value("floor", floor)
    if not 0 <= floor <= 1:
        raise ValueError(f"floor is {floor}; it must be between 0 and 1")
    if any(right <= 0 or wrong <= 0 for right, wrong in posteriors):
        raise ValueError("a Beta posterior needs two parameters above 0")
    count = min(count, len(posteriors))
    by_lot = math.ceil(floor * len(posteriors))
    if by_lot > count:
        raise ValueError(
            f"floor is {floor}: of {len(posteriors)} problems {by_lot} must be asked, but only {count} may be"
        )
    chosen = set(rng.sample(range(len(posteriors)), by_lot))
    distances = [abs(rng.betavariate(right, wrong) - 0.5) for right, wrong in posteriors]
    others = sorted((i for i in range(len(posteriors)) if i not in chosen), key=lambda i: (distances[i], i))
    return sorted(chosen | set(others[: count - by_lot]))


def draws_on(verdicts: Iterable[Verdict]) -> bool:
    """Does a group need its second draw: do the verdicts of the first not differ yet? (Reinforce-Ada, arXiv 2510.04996)

    Of n responses drawn in two parts, n1 first, the group ends with a difference exactly where all n would have had one:
    what is saved is the rest of groups that have it early.

        expected responses = n1 + (n - n1) (p^n1 + (1 - p)^n1)          at a success rate of p
    """
    return group_state(verdicts) is not GroupState.MIXED


class ProblemSelection:
    """What a run has seen of each problem, and the choice that follows.

    Args:
        rule: SelectionRule.
        floor: least probability that a problem that comes up is asked.
        keep: of skip_collapsed, at the start and for both kinds of groups; `adapt` moves it each step towards
            `target_all_correct` and `target_none_correct`, the wanted shares of collapsed groups among the asked ones.
        candidates: of near_half, how many problems come up for each one that is asked.
        memory: of near_half, see `after_visit`.

    ValueError: a rule that does not exist.
    """

    def __init__(
        self,
        *,
        rule: SelectionRule | str,
        floor: float = 0.05,
        keep: float = 0.5,
        adapt: float = 0.01,
        target_all_correct: float = 0.083,
        target_none_correct: float = 0.167,
        candidates: int = 4,
        memory: float = 0.5,
    ) -> None:
        self.rule = SelectionRule.checked("rule", rule)
        self.floor, self.adapt, self.candidates, self.memory = floor, adapt, candidates, memory
        self.keep = {GroupState.ALL_CORRECT: keep, GroupState.NONE_CORRECT: keep}
        self.target = {GroupState.ALL_CORRECT: target_all_correct, GroupState.NONE_CORRECT: target_none_correct}
        self.visits: dict[str, Visits] = {}
        self._start = dict(self.keep)
        self._came_up = self._asked = 0

    def choose(
        self, items: Iterator[ItemT], *, count: int, uid: Callable[[ItemT], str], rng: random.Random
    ) -> Iterator[ItemT]:
        """The items that are asked, in their order. Takes from `items` only what `count` of them need; a consumer that
        stops after `count` has left the rest in there. The result may be shorter where `items` ends."""
        if self.rule is SelectionRule.SKIP_COLLAPSED:
            for item in items:
                self._came_up += 1
                if rng.random() < self.probability(uid(item)):
                    self._asked += 1
                    yield item
            return
        while chunk := list(islice(items, self.candidates * count)):
            posteriors = [(found.right, found.wrong) for found in map(self._of, map(uid, chunk))]
            share = -(-len(chunk) // self.candidates)  # `count`, and fewer of the last, shorter chunk of an epoch
            places = nearest_half(posteriors, count=share, floor=self.floor, rng=rng)
            self._came_up += len(chunk)
            self._asked += len(places)
            yield from (chunk[place] for place in places)

    def probability(self, uid: str) -> float:
        """Of skip_collapsed: how likely the problem is asked when it comes up now."""
        return visit_probability(
            self._of(uid),
            keep_all_correct=self.keep[GroupState.ALL_CORRECT],
            keep_none_correct=self.keep[GroupState.NONE_CORRECT],
            floor=self.floor,
        )

    def observe(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """One step's plain groups: uid -> (correct, graded)."""
        shown = {uid: found for uid, found in counts.items() if found[1] >= 2}
        for uid, (num_correct, num_graded) in shown.items():
            self.visits[uid] = after_visit(
                self._of(uid), num_correct=num_correct, num_graded=num_graded, memory=self.memory
            )
        if not shown:
            return
        for state in self.keep:
            share = sum(self.visits[uid].state is state for uid in shown) / len(shown)
            self.keep[state] = adapted(self.keep[state], share=share, target=self.target[state], step=self.adapt)

    def take_metrics(self) -> dict[str, float]:
        """How many problems came up and were not asked since the last call, and the probabilities as they are now."""
        came_up, asked, self._came_up, self._asked = self._came_up, self._asked, 0, 0
        found = {"r3/select/came_up": float(came_up), "r3/select/skipped": float(came_up - asked)}
        if self.rule is SelectionRule.SKIP_COLLAPSED:
            found |= {f"r3/select/keep_{state}": keep for state, keep in self.keep.items()}
        return found

    def state(self) -> dict[str, Any]:
        """Everything that `choose` depends on, as plain JSON; numbers survive it exactly."""
        return {
            "keep": {str(state): keep for state, keep in self.keep.items()},
            "visits": {uid: [v.state and str(v.state), v.run, v.right, v.wrong] for uid, v in self.visits.items()},
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Goes on from what `state()` gave; None: from the beginning."""
        self.keep, self.visits = dict(self._start), {}
        self._came_up = self._asked = 0
        if state is not None:
            self.keep |= {GroupState(name): keep for name, keep in state["keep"].items()}
            self.visits = {
                uid: Visits(state=name and GroupState(name), run=run, right=right, wrong=wrong)
                for uid, (name, run, right, wrong) in state["visits"].items()
            }

    def _of(self, uid: str) -> Visits:
        return self.visits.get(uid, Visits())
