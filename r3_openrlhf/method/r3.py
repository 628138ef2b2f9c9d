"""R³ in one class (algorithm 1). Every training loop makes the same calls: the OpenRLHF adapter,
the lab, and yours.

    r3 = R3(R3Settings(), history=HistoryStore.open("history.sqlite"), seed=0)
    prompts = r3.prompts(problems, step=step, epoch=epoch, render=ChatPrompts(tokenizer, max_prompt_tokens=2048))
    batch = r3.mix(rollouts, step=step, entropy=entropies)         # CCR, SERR, eq. 3
    for row in batch.trained: ...                                  # row.rollout, row.advantage, row.old_logprobs
    r3.remember(rollouts, step=step, epoch=epoch)

`step` counts the optimizer steps done so far, `epoch` the passes over the data from 1. A loop
samples, grades and updates; it decides nothing of the method."""

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from r3_openrlhf.method.checks import section_of
from r3_openrlhf.method.core.batch_metrics import batch_metrics
from r3_openrlhf.method.core.distill import (
    SOURCES,
    WEIGHTS,
    GroupAdvantage,
    Lesson,
    LessonFate,
    Shown,
    TaughtRows,
    TeacherScores,
    lesson_metrics,
    token_terms,
)
from r3_openrlhf.method.core.groups import ABSENT, RecallFate, opposite_verdict
from r3_openrlhf.method.core.mixed_batch import MixedBatch, Row, topk_decides
from r3_openrlhf.method.core.ranking import RANKING_SCORES
from r3_openrlhf.method.core.states import (
    CUTS,
    by_value,
    choose_states,
    next_prefix,
    state_of,
    weights,
)
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.history.codec import state_digest
from r3_openrlhf.method.history.records import RecallRequest
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.prompts import (
    ChosenStates,
    Prefix,
    PromptMaker,
    ReflectionFate,
    StepPrompt,
    StepPrompts,
)
from r3_openrlhf.method.settings import R3Settings
from r3_openrlhf.method.types import (
    Context,
    EntropySource,
    EntropyStatistics,
    HardBy,
    OldLogprobs,
    PromisingState,
    Rollout,
    TokenEntropies,
    Verdict,
)
from r3_openrlhf.method.values import read, read_rollouts, refusal

DRAWN_PER_STATE = 4  # states drawn for each that is continued, where today's critic chooses
# a problem with more continuations than this share of all graded rollouts is not continued
MOST_OF_A_PROBLEM = 1 / 32
# a state of an imported solution leaves the policy at least half of it to write
MOST_OF_A_SOLUTION = 0.5
FIRST_REFLECTION_EPOCH = 2  # [P]: epoch > 1
REHEARSED_UP_TO = 0.25  # share of right rollouts of a problem whose stored success is rehearsed
REHEARSAL_ADVANTAGE = 1.0  # a rehearsed row's ratio is 1: its log-prob's gradient

Entropies = (
    Mapping[int, "EntropyStatistics | np.ndarray"] | Sequence["EntropyStatistics | np.ndarray"]
)


class R3:
    """The three mechanisms of R³, for any training loop.

    Args:
        settings: R3Settings, a dict of its sections, or a whole R3Config.
        history: the store of past rollouts, or its file (":memory:": none), which is opened for
            writing. None: nothing is recalled or reflected on.
        seed: seed of every choice. The same seed, step and history give the same choices.
        max_response_tokens: the limit of a response; a prefix is shorter.

    Every method checks what it is given: a value that its type does not hold exactly is one
    InvalidValue, which names the row, the field, the value, and what to use instead.
    """

    def __init__(
        self,
        settings: R3Settings | Mapping[str, Any] | None = None,
        *,
        history: HistoryStore | str | Path | None = None,
        seed: int = 0,
        max_response_tokens: int | None = None,
    ) -> None:
        self.settings: R3Settings = section_of(
            "settings", R3Settings, {} if settings is None else settings
        )
        self.seed = read("seed", int, seed)
        self.max_response_tokens = read("max_response_tokens", int | None, max_response_tokens)
        if isinstance(history, str | Path):
            history = HistoryStore.open(history, limits=self.settings.history, seed=self.seed)
        if not isinstance(history, HistoryStore | None):
            raise refusal("history", history, "a HistoryStore, the path of its file, or None")
        self.history = history
        # imported solutions of which this step marked a state, for `remember`
        self._marked: list[Rollout] = []

    # ── before sampling ──

    def states(
        self,
        *,
        count: int,
        step: int,
        values_of: Callable[[Sequence[Rollout], Sequence[int]], Sequence[float]] | None = None,
    ) -> ChosenStates:
        """Choose the stored states that replace prompts in a batch of `count` groups.

        At most one of each problem, and none of a problem whose continuations are more than
        MOST_OF_A_PROBLEM of the run's rollouts.

        values_of: (stored responses, lengths of their prefixes) -> today's values by the critic,
        which choose among the drawn where the cut is by value, with the problem's tries."""
        settings = self.settings.exploration.rrl
        wanted = min(round(settings.ratio * count), count - 1)
        if not settings.ratio or self.history is None:
            return ChosenStates([], {})
        known = [
            one
            for one in self.history.states(step=step)
            if one.num_tokens <= self._longest_prefix
        ]
        tries: Counter[str] = Counter()
        for (uid, _), (continued, _) in self.history.continuations().items():
            tries[uid] += continued
        most = MOST_OF_A_PROBLEM * self.history.num_graded
        todays = values_of if CUTS[settings.cut] is by_value else None
        num_drawn = wanted * (DRAWN_PER_STATE if todays else 1)
        drawn = choose_states(
            [one for one in known if tries[one.uid] <= most],
            count=num_drawn,
            tries=tries,
            rng=random.Random(f"{self.seed}/states/{step}"),
        )
        stored = [one.rollout for one in self.history.rollouts([one.row for one in drawn])]
        chosen = list(zip(drawn, stored, strict=True))
        if todays is not None and len(drawn) > wanted:
            values = todays(stored, [state.num_tokens for state in drawn])
            by_weight = weights(drawn, values, tries)
            best = sorted(range(len(drawn)), key=by_weight.__getitem__, reverse=True)
            chosen = [chosen[place] for place in best[:wanted]]
        metrics = {
            "r3/rrl/continued": float(len(chosen)),
            "r3/rrl/not_drawn": float(len(known) - len(chosen)),
            "r3/rrl/of_solutions": float(sum(bool(one.origin) for _, one in chosen)),
        }
        prefixes = [
            Prefix(
                one.response_ids[: state.num_tokens],
                _logprobs_of_first(one, state.num_tokens),
                state,
            )
            for state, one in chosen
        ]
        return ChosenStates(prefixes, metrics)

    @property
    def _longest_prefix(self) -> float:
        """Tokens that leave exploration.rrl.min_continuation of the response limit, one at least."""
        if self.max_response_tokens is None:
            return math.inf
        least = math.ceil(
            self.settings.exploration.rrl.min_continuation * self.max_response_tokens
        )
        return self.max_response_tokens - max(1, least)

    def prompts(
        self,
        problems: Sequence[Any],
        *,
        step: int,
        epoch: int,
        render: PromptMaker,
        states: ChosenStates | None = None,
        of_states: Sequence[Any] = (),
    ) -> StepPrompts:
        """Return the prompts of this step: one per problem, and further groups for hard ones
        (METHOD section 2).

        Args:
            problems: each has an attribute `uid` that is the same at every visit.
            render: makes the prompts; `ChatPrompts` for text.
            states: the result of `states`.
            of_states: the problem of each prefix in `states`."""
        step, epoch = read("step", int, step), read("epoch", int, epoch)
        uids = [
            read(f"problems[{i}].uid", str, getattr(problem, "uid", None))
            for i, problem in enumerate(problems)
        ]
        asked = [
            StepPrompt(problem, i, Context.PLAIN, render.plain(problem))
            for i, problem in enumerate(problems)
        ]
        fates, places = self._hard_problems(uids, step=step, epoch=epoch)
        hint = self.settings.reflection.hint
        for i in places:
            error = None if hint else self._stored_error(uids[i], step=step)
            if error is None and not hint:
                fates[i] = ReflectionFate.WITHOUT_ERROR
            elif (prompt := render.reflection(problems[i], error)) is None:
                fates[i] = ReflectionFate.WITHOUT_ROOM
            else:
                asked.append(
                    StepPrompt(
                        problems[i], i, Context.HINT if hint else Context.REFLECTION, prompt
                    )
                )
        for i, prefix in self._parts_of_successes(uids, step=step):
            asked.append(
                StepPrompt(problems[i], i, Context.PREFIX, render.plain(problems[i]), prefix)
            )
        chosen = states or ChosenStates([], {})
        for i, (problem, prefix) in enumerate(
            zip(of_states, chosen.prefixes, strict=True), start=len(problems)
        ):
            asked.append(StepPrompt(problem, i, Context.PREFIX, render.plain(problem), prefix))
        return StepPrompts(asked, reflection=fates, state_metrics=chosen.metrics)

    def _hard_problems(
        self, uids: Sequence[str], *, step: int, epoch: int
    ) -> tuple[list[ReflectionFate], list[int]]:
        """Return the fate of every problem, and the places of those that get a reflection group:
        problems whose stored rollouts are below the threshold, at most max_share of all by lot."""
        settings = self.settings.reflection
        if not settings.enabled or self.history is None:
            return [ReflectionFate.OFF] * len(uids), []
        if epoch < FIRST_REFLECTION_EPOCH:
            return [ReflectionFate.BEFORE_FIRST_EPOCH] * len(uids), []
        rng = random.Random(f"{self.seed}/reflection/{step}")
        most = max(1, round(settings.max_share * len(uids)))
        means = self.history.means(
            HardBy.checked("reflection.hard_by", settings.hard_by), contexts=self._contexts
        )
        fates = [
            ReflectionFate.NOT_HARD if uid in means else ReflectionFate.UNKNOWN_PROBLEM
            for uid in uids
        ]
        hard = [
            i for i, uid in enumerate(uids) if means.get(uid, math.inf) < settings.threshold
        ]
        drawn = hard if len(hard) <= most else sorted(rng.sample(hard, most))
        for i in hard:
            fates[i] = ReflectionFate.CUT
        for i in drawn:
            fates[i] = ReflectionFate.ASKED
        return fates, drawn

    def _parts_of_successes(
        self, uids: Sequence[str], *, step: int
    ) -> list[tuple[int, Prefix]]:
        """Choose by lot problems that were asked and never solved, and of each the first part of an
        imported success (replay.imported.use=prefix). Returns (place in `uids`, part)."""
        imported = self.settings.replay.imported
        if imported.use not in ("prefix", "all") or self.history is None:
            return []
        rates, known = self.history.means(HardBy.SUCCESS_RATE), self.history.continuations()
        unsolved = [i for i, uid in enumerate(uids) if rates.get(uid) == 0]
        random.Random(f"{self.seed}/prefix/{step}").shuffle(unsolved)
        most, found = (
            max(1, round(imported.prefix_share * len(uids))),
            list[tuple[int, Prefix]](),
        )

        def tried(success: Rollout, length: int) -> tuple[int, int]:
            return known.get((success.uid, state_digest(success.response_ids[:length])), (0, 0))

        for i in unsolved:  # the same success at every visit
            if len(found) == most:
                break
            request = {"k": 1, "step": step, "max_policy_lag": step, "order": "newest"}
            stored = self.history.recall(
                uids[i], Verdict.CORRECT, contexts=(Context.IMPORTED,), **request
            )
            for success in (one.rollout for one in stored):
                if (
                    length := next_prefix(success.num_tokens, partial(tried, success))
                ) is not None:
                    logprobs = _logprobs_of_first(success, length)
                    found.append((i, Prefix(success.response_ids[:length], logprobs)))
        return sorted(found, key=lambda one: one[0])

    def _stored_error(self, uid: str, *, step: int) -> Rollout | None:
        """Draw a wrong answer at random; None: the store has none."""
        assert self.history is not None
        lag = self.settings.replay.max_policy_lag
        stored = self.history.recall(
            uid, Verdict.WRONG, k=1, step=step, max_policy_lag=lag, contexts=self._contexts
        )
        return stored[0].rollout if stored else None

    @property
    def _contexts(self) -> tuple[Context, ...]:
        """The prompts whose stored rollouts count: the plain one, and with include_reflection both."""
        return (
            (Context.PLAIN, Context.REFLECTION)
            if self.settings.replay.include_reflection
            else (Context.PLAIN,)
        )

    # ── after grading ──

    def mix(
        self,
        rollouts: Sequence[Rollout],
        *,
        step: int,
        entropy: Entropies | None = None,
        groups: Sequence[Hashable] | None = None,
    ) -> MixedBatch:
        """Recall, rank and weigh a step's rollouts. The batch's `trained` rows are those of the update.

        Args:
            entropy: of each rollout its token entropies in nats [tokens], or EntropyStatistics;
                used for ranked rows only.
            groups: of each rollout the id of its group. Default: equal uid and context."""
        batch = self.recall(rollouts, step=step, groups=groups)
        self.assign_advantages(batch, entropy)
        return batch

    def recall(
        self,
        rollouts: Sequence[Rollout],
        *,
        step: int,
        groups: Sequence[Hashable] | None = None,
        rows_of_recalled: Callable[[list[Rollout]], list[Rollout]] = list,
        keeps_single: bool = False,
    ) -> MixedBatch:
        """Group the step's rollouts, recall for collapsed groups (CCR); `group.replay`: fate.
        `rows_of_recalled` maps recalled rollouts to rows, where one rollout is many rows.
        `keeps_single`: a loop with advantages of its own trains groups of one response, too."""
        step = read("step", int, step)
        rollouts = read_rollouts(rollouts, step=step)
        group_ids, replay = _group_ids(rollouts, groups), self.settings.replay
        batch = MixedBatch(rollouts, group_ids, keeps_single=keeps_single)
        if replay.enabled and self.history is not None:
            batch.recall(
                lambda uid, verdict: rows_of_recalled(self.stored(uid, verdict, step=step)),
                mode=replay.mode,
                rng=random.Random(f"{self.seed}/replace/{step}"),
                failures=replay.recall_failures,
                every=replay.groups == "all",
            )
            self._explain(batch, step=step)
        if self.settings.replay.rehearse.share and batch.rows:
            batch.rehearse(self._rehearsed(rollouts, step=step), coef=REHEARSAL_ADVANTAGE)
        for row in batch.rows:
            if self._uses_stored_logprobs(batch, row):
                row.old_logprobs = row.rollout.response_logprobs
        return batch

    def _rehearsed(self, rollouts: Sequence[Rollout], *, step: int) -> list[Rollout]:
        """Draw by lot the newest stored success of rarely solved problems of other steps."""
        if self.history is None:
            return []
        present = {rollout.uid for rollout in rollouts}
        rates, contexts = self.history.means(HardBy.SUCCESS_RATE), self._contexts_to("rehearse")
        solved = self.history.means(HardBy.SUCCESS_RATE, contexts=contexts)
        rare = (
            uid
            for uid, rate in solved.items()
            if rate and rates.get(uid, 0.0) <= REHEARSED_UP_TO
        )
        uids = [uid for uid in rare if uid not in present]
        random.Random(f"{self.seed}/rehearse/{step}").shuffle(uids)
        lag = self.settings.replay.max_policy_lag
        found: list[Rollout] = []
        share, until = self.settings.replay.rehearse.share, self.settings.replay.rehearse.until
        most = round(share * (1 if until is None else max(0, 1 - step / until)) * len(rollouts))
        for uid in uids:
            if len(found) >= most:
                break
            recall = partial(self.history.recall, uid, k=1, step=step, max_policy_lag=lag)
            for one in recall(verdict=Verdict.CORRECT, order="newest", contexts=contexts):
                failures = (
                    recall(verdict=Verdict.WRONG) if one.rollout.context is Context.HINT else []
                )
                if failures:  # a hint's success is trained after the plain prompt
                    found.append(
                        replace(one.rollout, prompt_ids=failures[0].rollout.prompt_ids)
                    )
                elif one.rollout.context is not Context.HINT:
                    found.append(one.rollout)
        return found

    def stored(self, uid: str, verdict: Verdict, *, step: int) -> list[Rollout]:
        """Return the rollouts that replay recalls for a problem and verdict, without texts."""
        if self.history is None or not self.settings.replay.enabled:
            return []
        return [
            one.rollout for one in self.history.answer(self._request(uid, verdict, step=step))
        ]

    def _request(self, uid: str, verdict: Verdict, *, step: int) -> RecallRequest:
        replay = self.settings.replay
        # a failure from a reflection prompt has no log-probs after the plain one: ratio 1, by choice alone
        is_bounded = verdict is Verdict.CORRECT or replay.old_logprobs == OldLogprobs.RECOMPUTE
        contexts = self._contexts if is_bounded else (Context.PLAIN,)
        imported_k = None
        if verdict is Verdict.CORRECT:
            contexts = tuple(dict.fromkeys((*contexts, *self._contexts_to("recall"))))
            imported_k = replay.imported.k
        if imported_k == replay.k:  # no place is left for the policy's own
            contexts = (Context.IMPORTED,)
        return RecallRequest(
            uid=uid,
            verdict=verdict,
            k=replay.k,
            step=step,
            max_policy_lag=replay.max_policy_lag,
            order=replay.order,
            contexts=contexts,
            imported_k=imported_k,
        )

    def _contexts_to(self, use: str) -> tuple[Context, ...]:
        """Return the contexts of successes to "recall" or "rehearse", by replay.imported.use."""
        imported = (
            (Context.IMPORTED,)
            if self.settings.replay.imported.use in (use, "both", "all")
            else ()
        )
        return (
            Context.PLAIN,
            *imported,
            *((Context.HINT,) if self.settings.reflection.hint else ()),
        )

    def _explain(self, batch: MixedBatch, *, step: int) -> None:
        """Count why nothing was recalled for groups, and what the store could have given."""
        assert self.history is not None
        for group in batch.groups:
            verdict = (
                Verdict.CORRECT
                if self.settings.replay.groups == "all"
                else opposite_verdict(group.state)
            )
            if not group.wanted or verdict is None:
                continue
            group.absence = self.history.absence(self._request(group.uid, verdict, step=step))
            if group.replay is RecallFate.NOT_CHOSEN and group.absence is not None:
                group.replay = group.absence

    def _uses_stored_logprobs(self, batch: MixedBatch, row: Row) -> bool:
        """Tell whether the row's ratio uses the log-probs from sampling (METHOD section 4). Only
        a recalled row has a choice, and only if it was sampled from the prompt of its group. An
        imported row's are the first policy's."""
        wanted = OldLogprobs.checked("replay.old_logprobs", self.settings.replay.old_logprobs)
        is_wanted = wanted is OldLogprobs.BEHAVIOUR and not row.rehearsed
        if row.rollout.origin:
            is_wanted = self.settings.replay.imported.weight == "clip"
        return (
            row.recalled
            and is_wanted
            and row.rollout.has_logprobs
            and batch.has_own_prompt(row)
        )

    # ── SERR and eq. 3 ──

    def rows_to_rank(self, batch: MixedBatch) -> dict[int, list[int]]:
        """Return group index -> indices of the rows to rank. Empty with ranking.enabled=false."""
        ranking = self.settings.ranking
        return batch.rows_to_rank(scope=ranking.scope) if ranking.enabled else {}

    def rows_to_measure(self, batch: MixedBatch) -> set[int]:
        """Return the rows that need exact entropy of the policy before `assign_advantages`, by
        ranking.entropy_source. The engine's bounds (rollout.entropy_bounds) suffice for others."""
        if not self.settings.ranks_by_entropy:
            return set()
        source = EntropySource.checked(
            "ranking.entropy_source", self.settings.ranking.entropy_source
        )
        found: set[int] = set()
        for indices in self.rows_to_rank(batch).values():
            rows = [batch.rows[i] for i in indices]
            if source is EntropySource.EXACT or (
                source is EntropySource.AUTO and not topk_decides(rows)
            ):
                found.update(indices)
        return found

    def assign_advantages(self, batch: MixedBatch, entropy: Entropies | None = None) -> None:
        """Set `reward` and `advantage` of every row (SERR and eq. 3). `entropy`: see `mix`.

        Raises:
            TrainingStopped: a ranked row has neither entropies nor top-k bounds.
        """
        ranking = self.settings.ranking
        batch.rank(
            self.rows_to_rank(batch),
            RANKING_SCORES[ranking.score],
            lambda row: self._statistics(row, entropy),
            max_reward=ranking.max_reward,
        )
        self._set_advantages(batch)

    def idle_rows(self, batch: MixedBatch) -> set[int]:
        """Return the rows that get advantage 0, whatever the entropies that are still to be measured.

        For a loop that passes the others alone through the model, after `recall` and before
        `assign_advantages`."""
        ranking, measured = self.settings.ranking, self.rows_to_measure(batch)
        if measured and self.settings.estimator.reads("differing"):
            return set()  # a ranked group may change the advantages of every other one
        waiting = {batch.rows[i].group for i in measured}
        decided = self.rows_to_rank(batch)
        for group in waiting:
            decided.pop(group, None)
        batch.rank(
            decided,
            RANKING_SCORES[ranking.score],
            lambda row: self._statistics(row, None),
            max_reward=ranking.max_reward,
        )
        self._set_advantages(batch)
        return {
            row.index
            for row in batch.rows
            if row.group not in waiting
            and row.advantage == 0
            and row.index not in batch.lessons
        }

    def _set_advantages(self, batch: MixedBatch) -> None:
        ranking, advantage = self.settings.ranking, self.settings.advantage
        batch.advantages(
            alpha=advantage.alpha,
            lam=advantage.std_eps,
            scope=advantage.scope,
            guard=ranking.guard,
            success_scale=advantage.success_scale,
            estimator=self.settings.estimator,
        )
        distill = self.settings.distill
        if not distill.enabled or distill.group_advantage == GroupAdvantage.ALL:
            return
        for row in batch.rows:
            if distill.group_advantage == GroupAdvantage.NONE or row.index in batch.lessons:
                row.advantage = 0.0

    def _statistics(self, row: Row, entropy: Entropies | None) -> EntropyStatistics:
        place = row.fresh_source
        known = entropy is not None and (
            place in entropy if isinstance(entropy, Mapping) else place < len(entropy)
        )
        bounds = row.rollout.entropy_bounds
        if not known and bounds is None:
            raise TrainingStopped(
                f"a ranked rollout of problem {row.rollout.uid} has neither token entropies nor bounds from the engine's top-k "
                "log-probs; pass `entropy`, or give the rollouts `entropy_bounds`"
            )
        if not known and bounds is not None:
            return EntropyStatistics(
                peak=bounds.peak_lower, global_=bounds.global_lower, source="topk"
            )
        assert entropy is not None
        found = entropy[place]
        if isinstance(found, EntropyStatistics):
            return found
        read(f"entropy[{place}]", TokenEntropies, found)
        found = np.asarray(found)  # in its own precision
        if len(found) != row.rollout.num_tokens:
            tokens = f"{row.rollout.num_tokens} values, one for each response token"
            raise refusal(f"entropy[{place}]", f"an array of {len(found)}", tokens)
        from r3_openrlhf.method.core.entropy import entropy_statistics  # needs torch

        peak, global_ = entropy_statistics(
            found[row.rollout.sampled], peak_fraction=self.settings.ranking.peak_fraction
        )
        return EntropyStatistics(peak=peak, global_=global_, source="exact")

    # ── a teacher from the store ──

    def lessons(
        self,
        batch: MixedBatch,
        *,
        step: int,
        problems: Callable[[Rollout], Any],
        render: PromptMaker,
    ) -> list[Lesson]:
        """Choose the rows that a teacher scores in this step, and make their teacher's prompts.

        Call it after `recall`, score each row's response behind both prompts with the policy before the
        update, and pass that to `teach` after `assign_advantages`. A row is taught if it is fresh, follows
        the plain prompt, fails (distill.rows) and has a success to show (distill.source).

        Args:
            problems: a rollout -> its problem, as `render` takes it."""
        settings = self.settings.distill
        batch.lessons, batch.lesson_fates = {}, {}
        if not settings.enabled:
            return []
        fresh = [row for row in batch.trained if not row.recalled]
        most = max(1, round(settings.max_share * len(fresh)))
        # a lot of each row's own: in whatever order a loop gives the rows, the same are taught by the same
        lots = {row.index: self._lot(row.rollout, step=step) for row in fresh}
        stored = cache(partial(self._stored_successes, step=step))
        for row in sorted(fresh, key=lambda row: lots[row.index].random()):
            fate, lesson = self._lesson(
                batch, row, stored, lots[row.index], problems, render, step=step
            )
            if lesson is not None and len(batch.lessons) == most:
                fate, lesson = LessonFate.CUT, None
            batch.lesson_fates[row.index] = fate
            if lesson is not None:
                batch.lessons[row.index] = lesson
        return [batch.lessons[index] for index in sorted(batch.lessons)]

    def _lot(self, rollout: Rollout, *, step: int) -> random.Random:
        """Return a generator that depends on the response and the step alone."""
        digest = state_digest(rollout.response_ids).hex()
        return random.Random(f"{self.seed}/distill/{step}/{rollout.uid}/{digest}")

    def _lesson(
        self,
        batch: MixedBatch,
        row: Row,
        stored: Callable[[str], list[Rollout]],
        rng: random.Random,
        problems: Callable[[Rollout], Any],
        render: PromptMaker,
        *,
        step: int,
    ) -> tuple[LessonFate, Lesson | None]:
        """Choose what a fresh row's teacher reads. stored: uid -> successes of the store."""
        settings, rollout = self.settings.distill, row.rollout
        if settings.rows == TaughtRows.FAILED and rollout.verdict is not Verdict.WRONG:
            return LessonFate.NOT_FAILED, None
        if rollout.context is not Context.PLAIN or rollout.turn is not None:
            return LessonFate.STARTS_ELSEWHERE, None
        of_group = _other_successes(batch, row)
        known = list(SOURCES[settings.source](of_group, stored(rollout.uid)))
        known.sort(key=lambda one: one.response_ids.tolist())
        if not known and not settings.answer:
            return LessonFate.WITHOUT_SUCCESS, None
        success = rng.choice(known) if known else None
        error = None
        if settings.shows == Shown.ERROR and self.history is not None:
            error = self._stored_error(rollout.uid, step=step)
        prompt = render.teacher(problems(rollout), success, settings=settings, error=error)
        if prompt is None:
            return LessonFate.WITHOUT_ROOM, None
        return LessonFate.TAUGHT, Lesson(row.index, prompt, success)

    def _stored_successes(self, uid: str, *, step: int) -> list[Rollout]:
        """Return one stored success of the policy's own and one imported, where the store has them."""
        if self.history is None:
            return []
        lag = self.settings.replay.max_policy_lag
        found = []
        for context in (Context.PLAIN, Context.IMPORTED):
            stored = self.history.recall(
                uid, Verdict.CORRECT, k=1, step=step, max_policy_lag=lag, contexts=(context,)
            )
            found += [one.rollout for one in stored]
        return found

    def teach(self, batch: MixedBatch, scores: Mapping[int, TeacherScores]) -> dict[str, float]:
        """Set `token_advantages` of the taught rows (method/core/distill.py). Returns the step's metrics.

        scores: of each row of `lessons`. TrainingStopped: a log-prob of one is not finite."""
        settings = self.settings.distill
        sampled = {index: batch.rows[index].rollout.sampled for index in batch.lessons}
        for index in () if settings.compares_logits else batch.lessons:
            row = batch.rows[index]
            try:
                terms = token_terms(
                    scores[index],
                    sampled[index],
                    bound=settings.bound,
                    weight=WEIGHTS[settings.weight],
                )
            except ValueError as error:
                raise TrainingStopped(
                    f"a response of problem {row.rollout.uid} cannot be taught: {error}"
                ) from error
            row.token_advantages = np.float32(row.advantage) + settings.coef * terms
        return lesson_metrics(
            batch.lesson_fates.values(), scores, sampled, bound=settings.bound
        )

    def mark_states(
        self,
        rollouts: Sequence[Rollout],
        values: Mapping[int, np.ndarray],
        *,
        step: int,
        explained: float | None,
        values_of: Callable[[Sequence[Rollout]], Sequence[np.ndarray]] | None = None,
    ) -> None:
        """Set `state` of one failed response of each problem that this step did not solve: the
        most promising among the problem's responses (exploration.rrl). An imported solution of the
        problem takes part until it has a state; `remember` stores it with that.

        Args:
            values: index of a rollout -> the critic's values, float [response tokens]. Values of
                given tokens are ignored.
            explained: the critic's explained variance in this step; None: not known. Below
                exploration.rrl.min_explained_variance nothing is marked.
            values_of: solutions -> the critic's values of each, float [response tokens]; None:
                solutions take no part."""
        settings = self.settings.exploration.rrl
        self._marked = []
        if explained is None or explained < settings.min_explained_variance:
            return
        cut, rng = CUTS[settings.cut], random.Random(f"{self.seed}/cut/{step}")
        solved = {one.uid for one in rollouts if one.verdict is Verdict.CORRECT}
        best: dict[str, tuple[Rollout, PromisingState]] = {}
        for place, values_T in values.items():
            rollout = rollouts[place]
            if rollout.verdict is not Verdict.WRONG or rollout.uid in solved:
                continue
            state = state_of(cut, values_T, self._places(rollout), rng)
            if state is not None and (
                rollout.uid not in best or state.value > best[rollout.uid][1].value
            ):
                best[rollout.uid] = rollout, state
        failed = {one.uid for one in rollouts if one.verdict is Verdict.WRONG}
        solutions = self._solutions(sorted(failed - solved), step=step) if values_of else []
        found = values_of(solutions) if values_of and solutions else []
        for solution, values_T in zip(solutions, found, strict=True):
            state = state_of(cut, values_T, self._places(solution), rng)
            uid = solution.uid
            if state is not None and (uid not in best or state.value > best[uid][1].value):
                best[uid] = solution, state
        for rollout, state in best.values():
            if rollout.origin:
                self._marked.append(replace(rollout, state=state))
            else:
                rollout.state = state

    def _solutions(self, uids: Sequence[str], *, step: int) -> list[Rollout]:
        """Return the newest imported solution of each of these problems that has one, and no state of it."""
        if self.history is None:
            return []
        with_state = {state.row for state in self.history.states(step=step)}
        found = []
        for uid in uids:
            request = {"k": 1, "step": step, "max_policy_lag": step, "order": "newest"}
            stored = self.history.recall(
                uid, Verdict.CORRECT, contexts=(Context.IMPORTED,), **request
            )
            found += [one.rollout for one in stored if one.row not in with_state]
        return found

    def _places(self, rollout: Rollout) -> list[int]:
        """Return where a response may be cut: after the given tokens, before its last token (of a finished
        one the last before its end mark), with the least budget of a continuation left. Of an imported
        solution MOST_OF_A_SOLUTION at most is given."""
        last = rollout.num_tokens - (not rollout.truncated) - 1
        if rollout.origin:
            last = min(last, int(MOST_OF_A_SOLUTION * rollout.num_tokens))
        return list(range(rollout.prefix_tokens + 1, int(min(last, self._longest_prefix)) + 1))

    # ── after the update ──

    def remember(self, rollouts: Iterable[Rollout], *, step: int, epoch: int) -> None:
        """Store a step's rollouts in the history. `step` as in `mix`."""
        if self.history is not None:
            step = read("step", int, step)
            kept = [*rollouts, *self._marked]
            self._marked = []
            self.history.commit_step(step + 1, epoch, read_rollouts(kept, step=step))

    def roll_back(self, step: int) -> None:
        """Delete what the history stored after `step`, before a run continues from there."""
        if self.history is not None:
            self.history.roll_back(step)

    def metrics(self, batch: MixedBatch, *, step: int) -> dict[str, float]:
        """Return the counts of the step's groups and rows, for a log (docs/metrics.md)."""
        return batch_metrics(batch, step=step) | self.coverage(batch)

    def coverage(self, batch: MixedBatch) -> dict[str, float]:
        """Count collapsed groups with a stored rollout, others by reason; {} with replay off."""
        if self.history is None or not self.settings.replay.enabled:
            return {}
        reasons = Counter(group.absence for group in batch.groups if group.wanted)
        wanted = sum(reasons.values())
        covered = reasons[None] / wanted if wanted else 1.0
        return {"r3/history/coverage": covered} | {
            f"r3/history/{why}": float(reasons[why]) for why in ABSENT
        }


def _other_successes(batch: MixedBatch, row: Row) -> list[Rollout]:
    """Return the other right responses of a fresh row's group."""
    found = []
    for index in batch.groups[row.group].rows:
        other = batch.rows[index]
        if (
            index != row.index
            and not other.recalled
            and other.rollout.verdict is Verdict.CORRECT
        ):
            found.append(other.rollout)
    return found


def _logprobs_of_first(rollout: Rollout, length: int) -> np.ndarray:
    """Return the log-probs of a response's first tokens, float32 [length]; 0 where they are not known."""
    if not rollout.has_logprobs:
        return np.zeros(length, np.float32)
    return rollout.response_logprobs[:length]


def _group_ids(
    rollouts: Sequence[Rollout], groups: Sequence[Hashable] | None
) -> Sequence[Hashable]:
    """Return `groups`, an array of numbers included; without them one for each uid and context."""
    if groups is None:
        return [(rollout.uid, rollout.context) for rollout in rollouts]
    groups = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    if len(groups) != len(rollouts):
        raise refusal(
            "groups", groups, f"{len(rollouts)} ids, one for each rollout, not {len(groups)}"
        )
    return groups
