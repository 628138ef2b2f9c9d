"""One training step's rollouts as mixed groups: who collapsed, who was recalled, who was ranked, which advantage.

Algorithm 1 of the paper between "responses are graded" and "one policy update", on plain values: no tensor, no
framework, no I/O but the `recall` function that is passed in. The OpenRLHF adapter and any other training loop call
the same five steps:

    batch = MixedBatch(rollouts, group_ids)          # ungraded rollouts leave their group here
    batch.recall(...)                                # CCR
    batch.rows_to_rank(...) ; batch.rank(...)        # SERR
    batch.advantages(...)                            # eq. 3
    batch.metrics(...)
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from r3_openrlhf.core.advantages import group_advantages
from r3_openrlhf.core.groups import GroupState, group_state, opposite_verdict
from r3_openrlhf.core.ranking import bounds_decide, ranking_rewards
from r3_openrlhf.core.replay import rows_to_replace
from r3_openrlhf.types import Context, EntropyBounds, EntropyStatistics, Rollout, Verdict

RecallFunction = Callable[[str, Verdict], Sequence[Rollout]]


@dataclass(slots=True)
class Row:
    """One rollout in the step's batch."""

    rollout: Rollout
    group: int  # index into MixedBatch.groups
    recalled: bool = False
    source: int | None = None  # fresh rows: index into the rollouts that were passed in
    trained: bool = True  # False: gives way to a recalled row (replay.mode = replace)
    reward: float = 0.0  # outcome reward, or the ranking reward once ranked
    ranked: bool = False
    advantage: float = 0.0


@dataclass(slots=True)
class Group:
    """The rows of one prompt in one context."""

    uid: str
    context: Context
    rows: list[int]  # indices into MixedBatch.rows
    state: GroupState  # from the verdicts of its fresh rows, before replay
    wanted: bool = False  # collapsed, replay on: an opposite verdict was asked for
    ranked: bool = False
    entropy_source: str | None = None
    recalled: list[int] = field(default_factory=list)

    @property
    def collapsed_before(self) -> bool:
        return self.state in (GroupState.ALL_CORRECT, GroupState.NONE_CORRECT)

    @property
    def collapsed_after(self) -> bool:
        return self.collapsed_before and not self.recalled


class MixedBatch:
    """The graded rollouts of one step, in groups.

    Args:
        rollouts: everything that was sampled this step.
        group_ids: one id per rollout; equal ids are one group. Any hashable value.

    An ungraded rollout leaves its group: it is neither trained on nor part of the statistics. A group with fewer
    than two graded rollouts cannot be normalised and is left out as a whole.
    """

    def __init__(self, rollouts: Sequence[Rollout], group_ids: Sequence) -> None:
        if len(rollouts) != len(group_ids):
            raise ValueError(f"{len(rollouts)} rollouts but {len(group_ids)} group ids")
        self.rollouts = list(rollouts)
        self.rows: list[Row] = []
        self.groups: list[Group] = []
        self.num_ungraded = sum(r.verdict is Verdict.UNGRADED for r in rollouts)
        self.num_left_out_groups = 0
        members: dict = defaultdict(list)
        for index, group_id in enumerate(group_ids):
            members[group_id].append(index)
        for indices in members.values():
            graded = [i for i in indices if rollouts[i].verdict is not Verdict.UNGRADED]
            state = group_state([rollouts[i].verdict for i in graded])
            if state is GroupState.TOO_SMALL:
                self.num_left_out_groups += 1
                continue
            group = Group(uid=rollouts[graded[0]].uid, context=rollouts[graded[0]].context, rows=[], state=state)
            for i in graded:
                group.rows.append(len(self.rows))
                self.rows.append(
                    Row(rollout=rollouts[i], group=len(self.groups), source=i, reward=float(rollouts[i].reward))
                )
            self.groups.append(group)

    # ── CCR ──

    def recall(self, recall: RecallFunction, *, mode: str, rng: random.Random) -> None:
        """Add stored rollouts of the opposite verdict to every collapsed group (METHOD section 4).

        `mode` "replace" lets as many fresh rows of the group give way as were recalled (never all of them): they
        stay in the group's statistics with their outcome reward, and leave the ranking and the update.
        """
        for index, group in enumerate(self.groups):
            verdict = opposite_verdict(group.state)
            if verdict is None:
                continue
            group.wanted = True
            fresh = list(group.rows)
            for stored in recall(group.uid, verdict):
                group.recalled.append(len(self.rows))
                group.rows.append(len(self.rows))
                self.rows.append(Row(rollout=stored, group=index, recalled=True, reward=float(stored.reward)))
            if mode == "replace" and group.recalled:
                for position in rows_to_replace(len(fresh), min(len(group.recalled), len(fresh) - 1), rng):
                    self.rows[fresh[position]].trained = False

    # ── SERR ──

    def rows_to_rank(self, *, scope: str) -> dict[int, list[int]]:
        """Group index -> indices of the fresh rows to rank: truncated (or all failed) rows of all-wrong groups."""
        found = {}
        for index, group in enumerate(self.groups):
            if group.state is not GroupState.NONE_CORRECT:
                continue
            rows = [
                i
                for i in group.rows
                if not self.rows[i].recalled
                and self.rows[i].trained
                and (scope == "failed" or self.rows[i].rollout.truncated)
            ]
            if len(rows) > 1:  # one row alone has nothing to be ranked against
                found[index] = rows
        return found

    def rank(
        self, ranked: dict[int, list[int]], entropy: Callable[[Row], EntropyStatistics], *, max_reward: float
    ) -> None:
        """Replace the outcome reward of the given rows by their ranking reward (METHOD section 6)."""
        for index, rows in ranked.items():
            statistics = [entropy(self.rows[i]) for i in rows]
            rewards = ranking_rewards(
                [s.peak for s in statistics], [s.global_ for s in statistics], max_reward=max_reward
            )
            self.groups[index].ranked = True
            self.groups[index].entropy_source = statistics[0].source
            for i, reward, statistic in zip(rows, rewards, statistics, strict=True):
                self.rows[i].reward, self.rows[i].ranked = reward, True
                self.rows[i].rollout.entropy = statistic

    # ── eq. 3 ──

    def advantages(
        self, *, alpha: float, lam: float, scope: str, guard: str, zero_collapsed: bool = False
    ) -> list[float]:
        """Eq. 3 in every group; one value per row, also kept in `row.advantage`.

        Correct responses of different lengths have different rewards, so eq. 3 tells the rows of an all-correct
        group apart. `zero_collapsed` gives 0 to a group whose verdicts stay equal after replay, unless it was ranked.

        `guard` "no_std": where the only difference inside a group is a ranking (no correct row, so no verified
        difference), the advantage is R_i - mean, not scaled up to unit spread. "centred": the same, and the rankings'
        mean is 0, what any other failure earns; otherwise being truncated is worth R_max / 2 on average.
        """
        for group in self.groups:
            rows = [self.rows[i] for i in group.rows]
            if zero_collapsed and not group.ranked and not verified_difference(rows):
                for row in rows:
                    row.advantage = 0.0
                continue
            rewards = [row.reward for row in rows]
            if guard == "centred" and group.ranked:
                middle = fmean(row.reward for row in rows if row.ranked)
                rewards = [row.reward - middle if row.ranked else row.reward for row in rows]
            values = group_advantages(
                rewards,
                alpha=alpha,
                lam=lam,
                recalled=[row.recalled for row in rows],
                off_policy_only=scope == "off_policy_only",
                std_norm=not (guard != "none" and group.ranked and not verified_difference(rows)),
            )
            for row, value in zip(rows, values, strict=True):
                row.advantage = value
        return [row.advantage for row in self.rows]

    # ── what happened ──

    def metrics(self, *, step: int) -> dict[str, float]:
        """The counts of METHOD section 7 that follow from the rows alone."""
        groups, rows = self.groups, self.rows
        recalled = [row for row in rows if row.recalled]
        lags = [step - row.rollout.policy_step for row in recalled]
        wanted = [group for group in groups if group.wanted]
        ranked = [row.reward for row in rows if row.ranked]
        mass = sum(abs(row.advantage) for row in rows if row.trained)
        unverified = sum(
            abs(row.advantage)
            for group in groups
            if not verified_difference([rows[i] for i in group.rows])
            for row in (rows[i] for i in group.rows)
            if row.trained
        )
        graded = [r for r in self.rollouts if r.verdict is not Verdict.UNGRADED]
        num_rollouts = max(1, len(self.rollouts))
        reflection_uids = {g.uid for g in groups if g.context is Context.REFLECTION}
        return {
            "r3/groups/all_correct": count(g.state is GroupState.ALL_CORRECT for g in groups),
            "r3/groups/none_correct": count(g.state is GroupState.NONE_CORRECT for g in groups),
            "r3/groups/mixed": count(g.state is GroupState.MIXED for g in groups),
            "r3/groups/left_out": float(self.num_left_out_groups),
            "r3/groups/collapsed_before": count(g.collapsed_before for g in groups),
            "r3/groups/collapsed_after": count(g.collapsed_after for g in groups),
            "r3/replay/recalled": float(len(recalled)),
            "r3/replay/hits": count(bool(g.recalled) for g in wanted),
            "r3/replay/misses": count(not g.recalled for g in wanted),
            "r3/replay/mean_lag": mean_or_zero(lags),
            "r3/replay/max_lag": float(max(lags, default=0)),
            "r3/replay/row_share": len(recalled) / max(1, count(row.trained for row in rows)),
            "r3/reflection/groups": count(g.context is Context.REFLECTION for g in groups),
            "r3/reflection/accuracy": accuracy(graded, Context.REFLECTION, reflection_uids),
            "r3/reflection/plain_accuracy": accuracy(graded, Context.PLAIN, reflection_uids),
            "r3/ranking/groups": count(g.ranked for g in groups),
            "r3/ranking/groups_exact": count(g.ranked and g.entropy_source == "exact" for g in groups),
            "r3/ranking/rows": float(len(ranked)),
            "r3/ranking/reward_mean": mean_or_zero(ranked),
            "r3/ranking/reward_std": pstdev(ranked) if ranked else 0.0,
            "r3/advantage/abs_sum": mass,
            "r3/advantage/unverified_share": unverified / mass if mass else 0.0,
            "r3/grading/ungraded": float(self.num_ungraded),
            "r3/grading/ungraded_rate": self.num_ungraded / num_rollouts,
            "accuracy": mean_or_zero([r.verdict is Verdict.CORRECT for r in graded if r.context is Context.PLAIN]),
            "reward_mean": mean_or_zero([r.reward for r in graded]),
            "response_length_mean": mean_or_zero([r.num_tokens for r in self.rollouts]),
            "response_tokens": float(sum(r.num_tokens for r in self.rollouts)),
            "truncated_rate": mean_or_zero([r.truncated for r in self.rollouts]),
        }


def verified_difference(rows: Sequence[Row]) -> bool:
    """Do the verdicts inside the group differ (a grader told its rows apart)?"""
    return len({row.rollout.verdict for row in rows}) > 1


def topk_decides(rows: Sequence[Row], bounds: Callable[[Row], EntropyBounds | None]) -> bool:
    """Do the bounds from the engine's top-k log-probs already decide the ranking of these rows?"""
    found = [bounds(row) for row in rows]
    if any(bound is None for bound in found):
        return False
    return bounds_decide(
        [b.peak_lower for b in found],
        [b.peak_upper for b in found],
        [b.global_lower for b in found],
        [b.global_upper for b in found],
    )


def accuracy(rollouts: Sequence[Rollout], context: Context, uids: set[str]) -> float:
    return mean_or_zero([r.verdict is Verdict.CORRECT for r in rollouts if r.context is context and r.uid in uids])


def count(values) -> float:
    return float(sum(map(bool, values)))


def mean_or_zero(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
