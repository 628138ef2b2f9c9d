"""One training step's rollouts as mixed groups: who collapsed, who was recalled, who was ranked,
which advantage.

Algorithm 1 of the paper between "responses are graded" and "one policy update", on plain values: no
tensor, no framework, no I/O but the `recall` function that is passed in:

    batch = MixedBatch(rollouts, group_ids)          # ungraded rollouts leave their group here
    batch.recall(...)                                # CCR
    batch.rows_to_rank(...) ; batch.rank(...)        # SERR
    batch.advantages(...)                            # eq. 3
    batch_metrics(batch, ...)                        # method/core/batch_metrics.py

The class R3 (method/r3.py) makes these calls as its settings say."""

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np

from r3_openrlhf.method.core.advantages import amplify_successes, keep_order
from r3_openrlhf.method.core.distill import Lesson, LessonFate
from r3_openrlhf.method.core.estimators import GROUP_NORM, GroupEstimator, mean_baseline
from r3_openrlhf.method.core.groups import (
    WITH_REWARDS,
    GroupState,
    RankingFate,
    RecallFate,
    group_state,
    opposite_verdict,
)
from r3_openrlhf.method.core.ranking import (
    RankingScore,
    below_successes,
    bounds_decide,
    ranked_rewards,
    ranking_parts,
    score_rewards,
)
from r3_openrlhf.method.types import (
    AdvantageScope,
    Context,
    EntropyStatistics,
    RankingGuard,
    RankingScope,
    ReplayMode,
    Rollout,
    Verdict,
)

NO_GROUP = -1
RecallFunction = Callable[[str, Verdict], Sequence[Rollout]]


@dataclass(slots=True)
class Row:
    """One rollout in the step's batch.

    Attributes:
        index: into MixedBatch.rows.
        group: index into MixedBatch.groups; NO_GROUP of a rehearsed row.
        source: of a fresh row, index into the rollouts that were passed in; None of a recalled one.
        trained: False where the row gives way to a recalled one (replay.mode = replace).
        outcome_reward: what the grader's verdict is worth.
        ranking_reward: by the order of the ranked failures, in [0, R_max]; None: not ranked.
        tied: True if all rows of that order tie, so that nothing was ordered.
        reward: the value that the advantage was made of: the outcome reward, in a ranked group
            with its part of the ranking (`ranked_rewards`).
        old_logprobs: what the row's ratio is taken against, float32 [response tokens]; None: the
            current policy's own.
        token_advantages: of a taught row, float32 [response tokens] (method/core/distill.py); None:
            each token has `advantage`."""

    index: int
    rollout: Rollout
    group: int
    outcome_reward: float
    reward: float
    source: int | None = None
    trained: bool = True
    ranking_reward: float | None = None
    tied: bool = False
    advantage: float = 0.0
    old_logprobs: np.ndarray | None = None
    token_advantages: np.ndarray | None = None

    @property
    def recalled(self) -> bool:
        """True if it comes from the history, not from this step's sampling."""
        return self.source is None

    @property
    def rehearsed(self) -> bool:
        """True for a stored success of a problem of another step, which is compared to nothing."""
        return self.group == NO_GROUP

    @property
    def ranked(self) -> bool:
        """True if its group's ranking put it before or after another row."""
        return self.ranking_reward is not None and not self.tied

    @property
    def fresh_source(self) -> int:
        """`source` of a fresh row. ValueError for a recalled one, which has none in this step."""
        if self.source is None:
            raise ValueError(
                f"row {self.index} is recalled and was not among the rollouts of this step"
            )
        return self.source


@dataclass(slots=True)
class Group:
    """The rows of one prompt in one context."""

    uid: str
    context: Context
    rows: list[int]  # indices into MixedBatch.rows
    state: GroupState  # from the verdicts of its fresh rows, before replay
    replay: RecallFate = RecallFate.OFF
    ranking: RankingFate = RankingFate.OFF
    entropy_source: str | None = None
    recalled: list[int] = field(default_factory=list)
    repaired: bool = False  # it collapsed, and something with the other verdict was recalled
    # why the history had nothing of the opposite verdict; None: it had, or was not asked
    absence: RecallFate | None = None

    @property
    def wanted(self) -> bool:
        """True if replay asked the history for it."""
        return self.replay not in UNASKED

    @property
    def collapsed_before(self) -> bool:
        """True if all its fresh rows have one verdict."""
        return self.state in (GroupState.ALL_CORRECT, GroupState.NONE_CORRECT)

    @property
    def collapsed_after(self) -> bool:
        """True if it collapsed and nothing with the other verdict was recalled."""
        return self.collapsed_before and not self.repaired


UNASKED = (
    RecallFate.NOT_COLLAPSED,
    RecallFate.OFF,
    RecallFate.FAILURES_OFF,
    RecallFate.STARTS_ELSEWHERE,
)


class MixedBatch:
    """The graded rollouts of one step, in groups.

    An ungraded rollout leaves its group: it is neither trained on nor part of the statistics. A
    group with fewer than two graded rollouts cannot be normalised and is left out as a whole, unless
    `recall` adds stored ones of the opposite verdict to the only one.

    Args:
        rollouts: everything that was sampled this step.
        group_ids: one hashable id per rollout; equal ids are one group.
        keeps_single: a group with one graded rollout stays, for advantages that compare no groups.
    """

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        group_ids: Sequence[Hashable],
        *,
        keeps_single: bool = False,
    ) -> None:
        if len(rollouts) != len(group_ids):
            raise ValueError(f"{len(rollouts)} rollouts but {len(group_ids)} group ids")
        self.rollouts = list(rollouts)
        self.keeps_single = keeps_single
        self.rows: list[Row] = []
        self.groups: list[Group] = []
        self.num_ungraded = sum(r.verdict is Verdict.UNGRADED for r in rollouts)
        self.num_left_out_groups = 0
        self.lessons: dict[int, Lesson] = {}  # row -> its teacher (method/core/distill.py)
        self.lesson_fates: dict[int, LessonFate] = {}  # fresh row -> has it a teacher
        self._alone: list[int] = []  # the only graded rollouts of groups that are left out
        members: dict[Hashable, list[int]] = defaultdict(list)
        for index, group_id in enumerate(group_ids):
            members[group_id].append(index)
        for indices in members.values():
            graded = [i for i in indices if rollouts[i].verdict is not Verdict.UNGRADED]
            state = group_state([rollouts[i].verdict for i in graded])
            if state is GroupState.TOO_SMALL and not (keeps_single and graded):
                self.num_left_out_groups += 1
                self._alone += graded
                continue
            self._add_group(graded, state)

    def _add_group(self, sources: Sequence[int], state: GroupState) -> None:
        first = self.rollouts[sources[0]]
        group = Group(uid=first.uid, context=first.context, rows=[], state=state)
        for i in sources:
            self._add(group, len(self.groups), self.rollouts[i], source=i)
        self.groups.append(group)

    def _add(
        self, group: Group, number: int, rollout: Rollout, *, source: int | None = None
    ) -> Row:
        row = Row(
            index=len(self.rows),
            rollout=rollout,
            group=number,
            source=source,
            outcome_reward=rollout.graded_reward,
            reward=rollout.graded_reward,
        )
        group.rows.append(row.index)
        self.rows.append(row)
        return row

    def rehearse(self, rollouts: Sequence[Rollout], *, coef: float) -> None:
        """Add stored successes of other problems, own prompts, advantage `coef`, in no group."""
        for rollout in rollouts:
            reward = rollout.graded_reward
            row = Row(
                len(self.rows),
                rollout,
                NO_GROUP,
                outcome_reward=reward,
                reward=reward,
                advantage=coef,
            )
            self.rows.append(row)

    @property
    def trained(self) -> list[Row]:
        """The rows of the update: all except the fresh ones that recalled rows replaced."""
        return [row for row in self.rows if row.trained]

    def first_of(self, row: Row) -> Row:
        """Return the first row of the same group, always a fresh one: its prompt is the group's.
        For a rehearsed row, which is in no group, the first row of the batch."""
        return self.rows[0 if row.rehearsed else self.groups[row.group].rows[0]]

    def has_own_prompt(self, row: Row) -> bool:
        """Return whether the row has its group's prompt. A recalled row may have another context or
        template, and its log-probs do not apply here. A turn in an environment keeps its prompt."""
        if row.rehearsed or row.rollout.turn is not None:
            return True
        first = self.first_of(row).rollout
        return (
            row.rollout is first or row.rollout.prompt_ids.tolist() == first.prompt_ids.tolist()
        )

    def prompt_ids_of(self, row: Row) -> np.ndarray:
        """Return the prompt that a loop trains the row with, int32 [prompt tokens]: its group's; of
        a rehearsed row and of a turn in an environment its own."""
        return (row if self.has_own_prompt(row) else self.first_of(row)).rollout.prompt_ids

    # ── CCR ──

    def recall(
        self,
        recall: RecallFunction,
        *,
        mode: ReplayMode | str,
        rng: random.Random,
        failures: bool = True,
        every: bool = False,
    ) -> None:
        """Add stored rollouts of the opposite verdict to every collapsed group (METHOD section 4),
        or with failures=False only to all-wrong groups; with every=True successes to every group. A
        group that starts from a state gets none, because stored rollouts do not start there. Neither
        does a group of trajectories that saw an earlier attempt, because stored ones keep their own
        prompts. An all-right reflection group gets no failure: it has no log-probs after that prompt,
        so nothing would bound its update; nor does one get imported rows, for the same reason.

        With `mode` "replace", as many fresh rows leave the ranking and the update as were recalled,
        never all of them. They stay in the group's statistics with their outcome reward.

        With `mode` "add", a group with one graded rollout, which is no turn in an environment, is
        asked for as well. It is a group from then on if anything is recalled.

        `group.replay` has the outcome for each group; it is NOT_CHOSEN where nothing was recalled.

        Raises:
            ValueError: the mode does not exist."""
        mode = ReplayMode.checked("mode", mode)
        answers: dict[int, list[Rollout]] = {}  # place of a group -> what is recalled for it
        if mode is ReplayMode.ADD:
            answers = self._recall_for_alone(recall, failures=failures and not every)
        for index, group in enumerate(self.groups):
            opposite = opposite_verdict(group.state)
            verdict = Verdict.CORRECT if every else opposite
            first = self.rows[group.rows[0]].rollout
            if verdict is None:
                group.replay = RecallFate.NOT_COLLAPSED
            elif verdict is Verdict.WRONG and not failures:
                group.replay = RecallFate.FAILURES_OFF
            elif not _takes(first, verdict):
                group.replay = RecallFate.STARTS_ELSEWHERE
            else:
                fresh = list(group.rows)
                stored = answers.get(index) or _stored(recall, first, verdict)
                group.recalled = [self._add(group, index, rollout).index for rollout in stored]
                group.replay = RecallFate.RECALLED if group.recalled else RecallFate.NOT_CHOSEN
                group.repaired = bool(group.recalled) and verdict is opposite
                leave = (
                    min(len(group.recalled), len(fresh) - 1)
                    if mode is ReplayMode.REPLACE
                    else 0
                )
                for row in rng.sample(fresh, leave):
                    self.rows[row].trained = False

    def _recall_for_alone(
        self, recall: RecallFunction, *, failures: bool
    ) -> dict[int, list[Rollout]]:
        """Make groups of the only graded rollouts for which something is recalled. Returns place of
        the group -> recalled rollouts."""
        answers: dict[int, list[Rollout]] = {}
        for source in self._alone:
            rollout = self.rollouts[source]
            is_right = rollout.verdict is Verdict.CORRECT
            state = GroupState.ALL_CORRECT if is_right else GroupState.NONE_CORRECT
            verdict = Verdict.WRONG if is_right else Verdict.CORRECT
            is_wanted = rollout.turn is None and _takes(rollout, verdict)
            if not is_wanted or (is_right and not failures):
                continue
            if stored := _stored(recall, rollout, verdict):
                answers[len(self.groups)] = stored
                self._add_group([source], state)
        self.num_left_out_groups -= len(answers)
        self._alone = []
        return answers

    # ── SERR ──

    def rows_to_rank(self, *, scope: RankingScope | str) -> dict[int, list[int]]:
        """Return group index -> indices of the fresh rows to rank: truncated (or all failed) rows
        of all-wrong groups.

        Raises:
            ValueError: the scope does not exist."""
        scope = RankingScope.checked("scope", scope)
        found = {}
        for index, group in enumerate(self.groups):
            if group.state is not GroupState.NONE_CORRECT:
                group.ranking = RankingFate.NOT_ALL_WRONG
                continue
            rows = [
                i
                for i in group.rows
                if not self.rows[i].recalled
                and self.rows[i].trained
                and (scope is RankingScope.FAILED or self.rows[i].rollout.truncated)
            ]
            group.ranking = RankingFate.TOO_FEW
            if len(rows) > 1:  # one row alone has nothing to be ranked against
                found[index] = rows
        return found

    def rank(
        self,
        ranked: dict[int, list[int]],
        score: RankingScore,
        entropy: Callable[[Row], EntropyStatistics],
        *,
        max_reward: float,
    ) -> None:
        """Set the ranking reward of the rows of each group in `ranked` (METHOD section 6).
        `entropy` is called only if the score needs it.

        Raises:
            ValueError: the score does not return one finite number per row.
        """
        for index, rows in ranked.items():
            rollouts = [self.rows[i].rollout for i in rows]
            statistics = [entropy(self.rows[i]) for i in rows] if score.needs_entropy else []
            for rollout, statistic in zip(rollouts, statistics, strict=bool(statistics)):
                rollout.entropy = statistic
            scores = score.of(rollouts, statistics)
            group = self.groups[index]
            group.ranking = RankingFate.RANKED if len(set(scores)) > 1 else RankingFate.TIED
            group.entropy_source = statistics[0].source if statistics else None
            rewards = score_rewards(scores, max_reward=max_reward)
            for i, reward in zip(rows, rewards, strict=True):
                self.rows[i].ranking_reward = reward
                self.rows[i].tied = group.ranking is RankingFate.TIED

    # ── eq. 3 ──

    def advantages(
        self,
        *,
        alpha: float,
        lam: float,
        scope: AdvantageScope | str,
        guard: RankingGuard | str,
        success_scale: float = 1.0,
        estimator: GroupEstimator = GROUP_NORM,
    ) -> list[float]:
        """Compute the advantages of every group: one value per row, also stored in `row.advantage`.

        Correct responses of different lengths have different rewards, so eq. 3 also separates the
        rows of an all-correct group. A ranked row has its own reward and its part of the ranking
        (`ranked_rewards`). No ranked failure has an advantage above a success of its group, and no
        other one above a success that is paid as much (`keep_order`).

        Args:
            alpha: damps groups that recalled something, the others have eq. 1. lam: see
                `group_advantages`.
            scope: of such a group, all rows (mixed_groups) or the recalled ones (off_policy_only).
            guard: for ranked groups without a correct row. "no_std": the ranking is not divided by
                the std, and what is verified has the scale of any other group,
                A_i = A(o)_i + p_i - mean(p), with the estimator's A(o) of the rows' own rewards.
                "centred": also shifts the rankings to mean 0, what a failure that is not
                ranked has; otherwise being truncated is worth R_max / 2 on average.
            success_scale: see `amplify_successes`.
            estimator: makes the advantages of a group, by default eq. 3.

        Raises:
            ValueError: the scope or the guard does not exist."""
        scope, guard = (
            AdvantageScope.checked("scope", scope),
            RankingGuard.checked("guard", guard),
        )
        is_centred = guard is RankingGuard.CENTRED
        for group in self.groups:
            rows = [self.rows[i] for i in group.rows]
            rewards = [row.outcome_reward for row in rows]
            if group.ranking in WITH_REWARDS:
                correct = [row.rollout.verdict is Verdict.CORRECT for row in rows]
                parts = [row.ranking_reward for row in rows]
                rewards = ranked_rewards(rewards, parts, correct, centred=is_centred)
            for row, reward in zip(rows, rewards, strict=True):
                row.reward = reward
        differing = [
            len({self.rows[i].reward for i in group.rows}) > 1 for group in self.groups
        ]
        for group in self.groups:
            rows = [self.rows[i] for i in group.rows]
            correct = [row.rollout.verdict is Verdict.CORRECT for row in rows]
            is_ranked = group.ranking in WITH_REWARDS
            is_guarded = is_ranked and guard is not RankingGuard.NONE and not any(correct)
            rewards = [row.outcome_reward if is_guarded else row.reward for row in rows]
            is_apart = scope is AdvantageScope.OFF_POLICY_ONLY
            facts = {
                "correct": correct,
                "recalled": [row.recalled for row in rows],
                "num_tokens": [row.rollout.num_sampled_tokens for row in rows],
                "differing": sum(differing) / len(differing),
                "alpha": alpha if group.recalled else 1.0,
                "lam": lam,
            }
            if is_guarded and len(set(rewards)) == 1:
                values = [0.0] * len(rows)
            else:
                values = estimator.of(rewards, **facts, off_policy_only=is_apart)
            if is_guarded:
                parts = [row.ranking_reward for row in rows]
                of_ranking = mean_baseline(ranking_parts(parts, centred=is_centred))
                values = [a + b for a, b in zip(values, of_ranking, strict=True)]
            plain = values
            if is_apart and group.recalled:
                plain = estimator.of(rewards, **facts, off_policy_only=False)
            values = amplify_successes(values, correct, factor=success_scale)
            values = keep_order(values, plain, correct)
            # an estimator may value a success below its reward
            if is_ranked:
                has_reward = [row.ranking_reward is not None for row in rows]
                values = below_successes(values, has_reward, correct)
            for row, value in zip(rows, values, strict=True):
                row.advantage = value
        return [row.advantage for row in self.rows]


def _takes(fresh: Rollout, verdict: Verdict) -> bool:
    """Tell whether stored rollouts of this verdict may join the group of a fresh one."""
    if fresh.context in (Context.REFLECTION, Context.HINT):
        return verdict is Verdict.CORRECT and fresh.turn is None
    return fresh.context is not Context.PREFIX


def _stored(recall: RecallFunction, fresh: Rollout, verdict: Verdict) -> list[Rollout]:
    """Recall for the group of a fresh rollout; imported ones join plain groups alone."""
    is_plain = fresh.context is Context.PLAIN
    return [one for one in recall(fresh.uid, verdict) if is_plain or not one.origin]


def topk_decides(rows: Sequence[Row]) -> bool:
    """Tell whether the bounds from the engine's top-k log-probs decide the ranking of these rows."""
    found = [
        astuple(bounds) for row in rows if (bounds := row.rollout.entropy_bounds) is not None
    ]
    return len(found) == len(rows) and bounds_decide(*zip(*found, strict=True))
