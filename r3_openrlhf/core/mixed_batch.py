"""One training step's rollouts as mixed groups: who collapsed, who was recalled, who was ranked, which advantage.

Algorithm 1 of the paper between "responses are graded" and "one policy update", on plain values: no tensor, no
framework, no I/O but the `recall` function that is passed in:

    batch = MixedBatch(rollouts, group_ids)          # ungraded rollouts leave their group here
    batch.recall(...)                                # CCR
    batch.rows_to_rank(...) ; batch.rank(...)        # SERR
    batch.advantages(...)                            # eq. 3
    batch_metrics(batch, ...)                        # core/batch_metrics.py

method.py makes these calls as a configuration says.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field, replace

from r3_openrlhf.core.advantages import amplify_successes, group_advantages
from r3_openrlhf.core.groups import GroupState, group_state, opposite_verdict
from r3_openrlhf.core.ranking import bounds_decide, centre_rankings, ranking_rewards, score_rewards
from r3_openrlhf.core.replay import response_bytes, rows_to_replace
from r3_openrlhf.types import (
    AdvantageScope,
    Context,
    EntropyBounds,
    EntropyStatistics,
    RankingGuard,
    RankingScope,
    ReplayMode,
    Rollout,
    Verdict,
)

RecallFunction = Callable[[str, Verdict], Sequence[Rollout]]


@dataclass(slots=True)
class Row:
    """One rollout in the step's batch."""

    index: int  # into MixedBatch.rows
    rollout: Rollout
    group: int  # index into MixedBatch.groups
    recalled: bool = False
    source: int | None = None  # fresh rows: index into the rollouts that were passed in
    trained: bool = True  # False: gives way to a recalled row (replay.mode = replace)
    reward: float = 0.0  # outcome reward, or the ranking reward once ranked
    ranked: bool = False
    advantage: float = 0.0

    @property
    def fresh_source(self) -> int:
        """`source` of a fresh row. ValueError for a recalled one, which comes from no rollout of this step."""
        if self.source is None:
            raise ValueError(f"row {self.index} is recalled and was not among the rollouts of this step")
        return self.source


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
        """Did its fresh rows all have one verdict?"""
        return self.state in (GroupState.ALL_CORRECT, GroupState.NONE_CORRECT)

    @property
    def collapsed_after(self) -> bool:
        """Did it collapse, and was nothing recalled that has the other verdict?"""
        return self.collapsed_before and not self.recalled


class MixedBatch:
    """The graded rollouts of one step, in groups.

    Args:
        rollouts: everything that was sampled this step.
        group_ids: one id per rollout; equal ids are one group. Any hashable value.

    An ungraded rollout leaves its group: it is neither trained on nor part of the statistics. A group with fewer
    than two graded rollouts cannot be normalised and is left out as a whole.
    """

    def __init__(self, rollouts: Sequence[Rollout], group_ids: Sequence[Hashable]) -> None:
        if len(rollouts) != len(group_ids):
            raise ValueError(f"{len(rollouts)} rollouts but {len(group_ids)} group ids")
        self.rollouts = list(rollouts)
        self.rows: list[Row] = []
        self.groups: list[Group] = []
        self.num_ungraded = sum(r.verdict is Verdict.UNGRADED for r in rollouts)
        self.num_left_out_groups = 0
        members: dict[Hashable, list[int]] = defaultdict(list)
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
                self._add(group, len(self.groups), rollouts[i], source=i)
            self.groups.append(group)

    def _add(self, group: Group, number: int, rollout: Rollout, *, source: int | None = None) -> Row:
        row = Row(
            index=len(self.rows),
            rollout=rollout,
            group=number,
            recalled=source is None,
            source=source,
            reward=rollout.graded_reward,
        )
        group.rows.append(row.index)
        self.rows.append(row)
        return row

    def first_of(self, row: Row) -> Row:
        """The first row of the same group, always a fresh one: its prompt is the prompt of the group."""
        return self.rows[self.groups[row.group].rows[0]]

    def has_own_prompt(self, row: Row) -> bool:
        """Was the row sampled from the prompt of its group? A recalled one may come from the same problem in another
        context or under another template; its stored log-probs then say nothing about this prompt. A turn in an environment
        keeps the prompt that it had."""
        if row.rollout.turn is not None:
            return True
        first = self.first_of(row).rollout
        return row.rollout is first or row.rollout.prompt_ids.tolist() == first.prompt_ids.tolist()

    # ── CCR ──

    def successes_in(self, contexts: Container[Context]) -> dict[str, list[Rollout]]:
        """uid -> the different correct responses of its fresh groups in these contexts, as copies that may join another
        group. Such a copy has no prefix: what was given is trained like the rest."""
        found: dict[str, dict[bytes, Rollout]] = defaultdict(dict)
        for row in self.rows:
            rollout = row.rollout
            if not row.recalled and rollout.context in contexts and rollout.verdict is Verdict.CORRECT:
                found[rollout.uid].setdefault(response_bytes(rollout), replace(rollout, prefix_tokens=0))
        return {uid: list(rollouts.values()) for uid, rollouts in found.items()}

    def recall(
        self, recall: RecallFunction, *, mode: ReplayMode | str, rng: random.Random, failures: bool = True
    ) -> None:
        """Add stored rollouts of the opposite verdict to every collapsed group (METHOD section 4), or with
        failures=False to all-wrong groups alone. A group that starts from a state gets none: they do not start there.
        Neither does one of trajectories behind an earlier attempt: stored ones keep their own prompts.

        `mode` "replace" lets as many fresh rows of the group give way as were recalled (never all of them): they
        stay in the group's statistics with their outcome reward, and leave the ranking and the update.

        ValueError: a mode that does not exist.
        """
        mode = ReplayMode.checked("mode", mode)
        for index, group in enumerate(self.groups):
            verdict = opposite_verdict(group.state)
            if verdict is None or (verdict is Verdict.WRONG and not failures) or not self._takes_stored(group):
                continue
            group.wanted = True
            fresh = list(group.rows)
            for stored in recall(group.uid, verdict):
                group.recalled.append(self._add(group, index, stored).index)
            if mode is ReplayMode.REPLACE and group.recalled:
                for position in rows_to_replace(len(fresh), min(len(group.recalled), len(fresh) - 1), rng):
                    self.rows[fresh[position]].trained = False

    def _takes_stored(self, group: Group) -> bool:
        if group.context is Context.REFLECTION:
            return self.rows[group.rows[0]].rollout.turn is None
        return group.context is not Context.PREFIX

    # ── SERR ──

    def rows_to_rank(self, *, scope: RankingScope | str) -> dict[int, list[int]]:
        """Group index -> indices of the fresh rows to rank: truncated (or all failed) rows of all-wrong groups.

        ValueError: a scope that does not exist.
        """
        scope = RankingScope.checked("scope", scope)
        found = {}
        for index, group in enumerate(self.groups):
            if group.state is not GroupState.NONE_CORRECT:
                continue
            rows = [
                i
                for i in group.rows
                if not self.rows[i].recalled
                and self.rows[i].trained
                and (scope is RankingScope.FAILED or self.rows[i].rollout.truncated)
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

    def rank_by_score(self, ranked: dict[int, list[int]], score: Callable[[Row], float], *, max_reward: float) -> None:
        """The same by one number per row, the higher the better. No entropy is asked for."""
        for index, rows in ranked.items():
            self.groups[index].ranked = True
            rewards = score_rewards([score(self.rows[i]) for i in rows], max_reward=max_reward)
            for i, reward in zip(rows, rewards, strict=True):
                self.rows[i].reward, self.rows[i].ranked = reward, True

    # ── eq. 3 ──

    def advantages(
        self,
        *,
        alpha: float,
        lam: float,
        scope: AdvantageScope | str,
        guard: RankingGuard | str,
        zero_collapsed: bool = False,
        success_scale: float = 1.0,
    ) -> list[float]:
        """Eq. 3 in every group; one value per row, also kept in `row.advantage`.

        Correct responses of different lengths have different rewards, so eq. 3 tells the rows of an all-correct
        group apart. `zero_collapsed` gives 0 to a group whose verdicts stay equal after replay, unless it was ranked.

        `guard` "no_std": where the only difference inside a group is a ranking (no correct row, so no verified
        difference), the advantage is R_i - mean, not scaled up to unit spread. "centred": the same, and the rankings'
        mean is 0, what any other failure earns; otherwise being truncated is worth R_max / 2 on average.

        `success_scale`: see `amplify_successes`.

        ValueError: a scope or a guard that does not exist.
        """
        scope, guard = AdvantageScope.checked("scope", scope), RankingGuard.checked("guard", guard)
        for group in self.groups:
            rows = [self.rows[i] for i in group.rows]
            if zero_collapsed and not group.ranked and not verified_difference(rows):
                for row in rows:
                    row.advantage = 0.0
                continue
            rewards = [row.reward for row in rows]
            if guard is RankingGuard.CENTRED and group.ranked:
                rewards = centre_rankings(rewards, [row.ranked for row in rows])
            values = group_advantages(
                rewards,
                alpha=alpha,
                lam=lam,
                recalled=[row.recalled for row in rows],
                off_policy_only=scope is AdvantageScope.OFF_POLICY_ONLY,
                std_norm=not (guard is not RankingGuard.NONE and group.ranked and not verified_difference(rows)),
            )
            correct = [row.rollout.verdict is Verdict.CORRECT for row in rows]
            for row, value in zip(rows, amplify_successes(values, correct, factor=success_scale), strict=True):
                row.advantage = value
        return [row.advantage for row in self.rows]


def verified_difference(rows: Sequence[Row]) -> bool:
    """Do the verdicts inside the group differ (a grader told its rows apart)?"""
    return len({row.rollout.verdict for row in rows}) > 1


def topk_decides(rows: Sequence[Row], bounds: Callable[[Row], EntropyBounds | None]) -> bool:
    """Do the bounds from the engine's top-k log-probs already decide the ranking of these rows?"""
    found = [bound for row in rows if (bound := bounds(row)) is not None]
    if len(found) < len(rows):
        return False
    return bounds_decide(
        [b.peak_lower for b in found],
        [b.peak_upper for b in found],
        [b.global_lower for b in found],
        [b.global_upper for b in found],
    )
