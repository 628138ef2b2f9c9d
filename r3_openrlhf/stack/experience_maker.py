"""Between "responses are graded" and "one policy update": calls R3, and moves its results into
tensors.

Answers trainer/ppo_utils/experience_maker.py: groups by `reshape(-1, n_samples_per_prompt)` (:284),
which cannot hold mixed groups; micro-batches that need not divide evenly among ranks (:65-91)."""

import copy
import functools
import itertools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import ray
import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.idle_rows import why_all_rows_stay
from r3_openrlhf.config.words import TokenValues
from r3_openrlhf.method.core.batch_metrics import trained_tokens
from r3_openrlhf.method.core.distill import Lesson, Support, Target, TeacherScores
from r3_openrlhf.method.core.estimators import EQ_3, ESTIMATORS, GroupEstimator
from r3_openrlhf.method.core.losses import IMPORTED_WEIGHTS
from r3_openrlhf.method.core.mixed_batch import MixedBatch, Row
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import EntropyStatistics, Rollout, Verdict
from r3_openrlhf.runs.rollout_records import TokenPieces, records_of
from r3_openrlhf.stack.batching import (
    balanced_batches,
    effective_ranks,
    even_slices,
    max_forward_tokens,
    micro_batches,
    num_fillers,
    num_windows,
)
from r3_openrlhf.stack.convert import experience_from_recalled, filler_experience
from r3_openrlhf.stack.engine_faults import is_fault
from r3_openrlhf.stack.experience_values import (
    EXPLAINED,
    explained_variance,
    gap_of_masks,
    gap_of_tokens,
    logprob_gap,
    rows_of,
    sampled_at_least,
    values_of_responses,
    values_of_solutions,
)
from r3_openrlhf.stack.expert_routing import RECALLED_OWN, add_counts, routing_metrics
from r3_openrlhf.stack.idle_rows import is_idle, num_actions
from r3_openrlhf.stack.kept_tokens import TokensWanted
from r3_openrlhf.stack.policy_update import RECALLED
from r3_openrlhf.stack.read_rows import drawn, passing, set_logprobs
from r3_openrlhf.stack.step_metrics import ages, entropy_metrics, extra_metrics
from r3_openrlhf.stack.step_warnings import early_warnings, ungraded_sentence
from r3_openrlhf.stack.teacher_pass import (
    choose_lessons,
    response_logprobs,
    rows_to_score,
    scores_of,
    set_targets,
    set_token_advantages,
    targets_of,
)

P99_FACTOR = 10  # limit on the 99th percentile of the gap, in limits on its mean
SYNC_GAP, SYNC_P99 = "r3/sync/abs_logprob_gap", "r3/sync/p99_logprob_gap"
SYNC_CLIP, SYNC_ROWS = "r3/sync/outside_clip_share", "r3/sync/rows"


class StockExperienceMaker(RemoteExperienceMaker):
    """Upstream's estimators untouched; keeps the records and metrics that every run reports.

    After each call of `make_experience_batch`: `metrics`; `warnings`, kind -> sentence; `records`,
    one dict per rollout for the step's file. `step` (optimizer steps done so far) is set by the trainer.
    """

    def __init__(self, *args, config: R3Config, r3: R3, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.config = config
        self.r3 = r3
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.records: list[dict] = []
        self.rollouts: list[Rollout] = []
        self._prompts: list[str] = []
        self._recall_s = 0.0
        self.warnings: dict[str, str] = {}
        self._recalled_prompts: dict[int, str] = {}  # recalled turn's index -> its prompt
        self._entropies: dict[int, EntropyStatistics] = {}  # row index -> measured in this step
        self._routing_metrics: dict[str, float] = {}  # rollout.routing_replay
        self._policy_logprobs: dict[int, np.ndarray] = {}  # row -> float32 [T], current policy
        self._teacher_logprobs: dict[int, np.ndarray] = {}  # taught row -> float32 [T]

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Upstream's experiences of this step, a row each, with advantages and old log-probs.

        Raises:
            TrainingStopped: too many ungraded, a reward that is no number, or
                stop.max_abs_logprob_gap."""
        batch = self._batch(rollout_samples)
        of_step = self.advantage_estimator == "flash_reinforce"
        complete_ungraded(rollout_samples, of_step=of_step)
        with torch.no_grad():  # as upstream does (:94)
            unread = self._unread(rollout_samples, self._idle(rollout_samples))
            passes = self._passes(rollout_samples, unread)
            experiences = self._rejoined(rollout_samples, self.make_experience(passes), unread)
            experiences = self.compute_advantages_and_returns(experiences)
        if self.advantage_estimator in ESTIMATORS:
            correct_groups(experiences, rollout_samples, ESTIMATORS[self.advantage_estimator])
        for experience, position, index in rows_of(experiences):
            mask = experience.action_mask[position].bool()
            if mask.any():
                rollout_samples[index].r3_advantage = (
                    experience.advantages[position][mask].mean().item()
                )
        for row in batch.rows:
            row.advantage = getattr(rollout_samples[row.fresh_source], "r3_advantage", 0.0)
        self._keep_policy_logprobs(experiences, batch.rows)
        explained = explained_variance(experiences)
        if self.config.exploration.rrl.ratio:
            values = values_of_responses(experiences, self.rollouts)
            self.r3.mark_states(
                self.rollouts,
                values,
                step=self.step,
                explained=explained.get(EXPLAINED),
                values_of=functools.partial(values_of_solutions, self.critic_model_group),
            )
        gaps = self._gaps(experiences, self.rollouts, unread)
        if self.config.rollout.partial:
            self._set_sampling_logprobs(experiences, self.rollouts)
        self._report(batch, gaps, explained)
        return experiences

    # ── which rows pass through the policy ──

    @functools.cached_property
    def _skips_idle(self) -> bool:
        """Tell whether rows without a gradient leave the passes through the policy."""
        others = (self.initial_model_group, self.critic_model_group)
        return why_all_rows_stay(self.config) is None and others == (None, None)

    def _idle(self, rollout_samples: list[Experience]) -> set[int]:
        """Return the rows whose advantage upstream's estimator makes 0: tried on copies of one token."""
        if not self._skips_idle or self.advantage_estimator not in ESTIMATORS:
            return set()
        copies = []
        for number, sample in enumerate(rollout_samples):
            copied = copy.copy(sample)
            copied.index = [number]
            copied.rewards = sample.rewards.clone()  # a length penalty is subtracted in place
            copied.info = dict(sample.info)
            copied.action_mask = sample.action_mask.amax(-1, keepdim=True)
            copied.kl = torch.zeros(1, 1)
            copies.append(copied)
        self.compute_advantages_and_returns(copies)
        correct_groups(copies, rollout_samples, ESTIMATORS[self.advantage_estimator])
        return {number for number, copied in enumerate(copies) if is_idle(copied)}

    def _unread(self, samples: list[Experience], idle: set[int]) -> set[int]:
        """Return the rows that need not pass through the policy: those of `idle` but for a few that
        are drawn, and rows without any action. samples: all rows of the step."""
        if not idle or self.config.logging.token_values == TokenValues.ALL:
            return set()
        silent = {number for number, sample in enumerate(samples) if not num_actions(sample)}
        compared = drawn(idle - silent, seed=self.config.train.seed, step=self.step)
        return (idle | silent) - compared

    def _passes(self, samples: list[Experience], unread: set[int]) -> list[Experience]:
        """Lay out the micro-batches of the passes through the policy: all rows, or fewer."""
        if not unread:
            return self.split_rollout_samples(samples)
        lengths = [int(sample.total_length.item()) for sample in samples]
        for number, sample in enumerate(samples):
            sample.index = [number]
        numbers = passing(unread, lengths, ranks=effective_ranks(self.args))
        return self._micro_batches([samples[number] for number in numbers])

    def _rejoined(
        self, samples: list[Experience], experiences: list[Experience], unread: set[int]
    ) -> list[Experience]:
        """Return the micro-batches of all rows, with the log-probs of those that passed."""
        if not unread:
            return experiences
        numbers = [index for _, _, index in rows_of(experiences)]
        set_logprobs(samples, experiences, numbers)
        return self.split_rollout_samples(samples)

    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """Run upstream's forward passes. TrainingStopped: a log-prob of the policy is not finite; those of
        engines are checked when they arrive (engine_faults.py)."""
        experiences = super().make_experience(samples_list)
        if self.config.rollout.routing_replay:
            self._count_routing(samples_list)
        for experience in experiences:
            if not experience.action_log_probs[experience.action_mask.bool()].isfinite().all():
                raise TrainingStopped(
                    f"step {self.step + 1}: log-probs of the policy are not finite before the update; a lower "
                    "train.learning_rate usually helps. The newest checkpoint is from before this step"
                )
        return experiences

    def _dispatch_forward(self, group, sync_condition, **kwargs):
        """Dispatch upstream's pass (:106). The engine's experts are the policy's alone: a reference has others."""
        if self.config.rollout.routing_replay and group is not self.actor_model_group:
            kwargs.pop("mm_train_inputs_list", None)
        return super()._dispatch_forward(group, sync_condition, **kwargs)

    def _count_routing(self, samples_list: list[Experience]) -> None:
        """Keep the metrics of these passes of the policy."""
        duplicates = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        ranks = ray.get(self.actor_model_group.async_run_method("pop_routing"))[::duplicates]
        self._routing_metrics |= routing_metrics(samples_list, add_counts(ranks))

    def get_advantages_and_returns(self, values, rewards, action_mask, gamma, lambd):
        """Upstream's GAE (:343) over the sampled tokens alone: [B, A] each, 0 elsewhere.

        Upstream gives tokens between them, a tool's answer, the value 0 and a step each: a reward of 1
        is worth lambda^100 = .006 before an answer of 100 tokens (lambda .95)."""
        sampled = SampledTokens(action_mask)
        found = super().get_advantages_and_returns(
            sampled.first(values), sampled.first(rewards), sampled.mask_BA, gamma, lambd
        )
        advantages_BA, returns_BA = (sampled.back(one_BA) for one_BA in found)
        return advantages_BA, returns_BA

    def get_cumulative_returns(self, rewards, action_mask, gamma):
        """Upstream's discounted returns (:390) over the sampled tokens alone: [B, A], 0 elsewhere."""
        sampled = SampledTokens(action_mask)
        found = super().get_cumulative_returns(sampled.first(rewards), sampled.mask_BA, gamma)
        return sampled.back(found)

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Micro-batches for forward passes: of equal number on all ranks, and of rows if fixed.
        With train.dynamic_batch none exceeds rollout.max_tokens_per_gpu tokens, but for one row."""
        for i, sample in enumerate(rollout_samples):
            sample.index = [i]
        return self._micro_batches(rollout_samples)

    def _micro_batches(self, rollout_samples: list[Experience]) -> list[Experience]:
        ranks = effective_ranks(self.args)
        if self.args.train.dynamic_batch_enable:
            lengths = [int(sample.total_length.item()) for sample in rollout_samples]
            batches = balanced_batches(
                lengths, ranks=ranks, max_tokens=max_forward_tokens(self.args)
            )
        else:
            batches = [
                list(range(rank.start + inside.start, rank.start + inside.stop))
                for rank in even_slices(len(rollout_samples), ranks)
                for inside in micro_batches(
                    rank.stop - rank.start, self.args.rollout.micro_batch_size
                )
            ]
        return [
            Experience.concat_experiences(
                [rollout_samples[i] for i in batch], self.tokenizer.pad_token_id
            )
            for batch in batches
        ]

    def _batch(self, rollout_samples: list[Experience]) -> MixedBatch:
        self.rollouts = [sample.r3_rollout for sample in rollout_samples]
        self._prompts = [sample.prompts[0] for sample in rollout_samples]
        self._entropies, self._policy_logprobs, self._recalled_prompts = {}, {}, {}
        self._teacher_logprobs = {}
        self._routing_metrics = {}
        for rollout in self.rollouts:
            if rollout.verdict is not Verdict.UNGRADED and not math.isfinite(
                rollout.graded_reward
            ):
                raise TrainingStopped(
                    f"the reward of a rollout of problem {rollout.uid} is {rollout.reward}"
                )
        started = time.perf_counter()
        groups = [(sample.prompts[0], sample.labels[0]) for sample in rollout_samples]
        batch = self.r3.recall(
            self.rollouts,
            step=self.step,
            groups=groups,
            rows_of_recalled=self._rows_of_recalled,
            keeps_single=not self.config.algorithm.compares_groups,
        )
        self._recall_s = time.perf_counter() - started
        self._check_ungraded(batch)
        self.warnings = early_warnings(self.rollouts, step=self.step + 1)
        return batch

    def _rows_of_recalled(self, recalled: list[Rollout]) -> list[Rollout]:
        """Turn a group's recalled rollouts into rows of the batch."""
        for rollout in recalled:  # the store keeps token ids
            rollout.text = rollout.text or self._text(rollout.response_ids)
        return recalled

    def _keep_policy_logprobs(self, experiences: list[Experience], rows: Sequence[Row]) -> None:
        """Log-probs of the step's forward pass for the file: recalled and taught rows, or by logging.
        A fresh row that began with given tokens has none: they are not measured."""
        kept = self.config.logging.token_values
        for experience, position, index in (
            rows_of(experiences) if kept != TokenValues.NONE else ()
        ):
            if index >= len(rows):
                continue
            is_compared = rows[index].recalled or rows[index].index in self._teacher_logprobs
            if kept == TokenValues.ALL or is_compared:
                found_T = experience.action_log_probs[position][
                    experience.action_mask[position].bool()
                ]
                if len(found_T) == rows[index].rollout.num_tokens:
                    self._policy_logprobs[rows[index].index] = found_T.float().numpy().copy()

    def _text(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=True)

    def kept_rollouts(self) -> list[Rollout]:
        """Return the rollouts of this step for the history store."""
        return self.rollouts

    def _check_ungraded(self, batch: MixedBatch) -> None:
        rate, limit = (
            batch.num_ungraded / len(self.rollouts),
            self.config.reward.max_ungraded_rate,
        )
        if rate > limit:
            reasons = {one.reason for one in self.rollouts if one.verdict is Verdict.UNGRADED}
            broken = "rollout engine" if all(map(is_fault, reasons)) else "grader"
            raise TrainingStopped(
                f"{ungraded_sentence(self.rollouts)}; that is {rate:.0%} of this step, more than "
                f"reward.max_ungraded_rate={limit}; repair the {broken}, then start the same command again"
            )

    def _gaps(
        self,
        experiences: list[Experience],
        rollouts: Sequence[Rollout | None],
        unread: Collection[int] = (),
    ) -> dict[str, float]:
        """Measure the distance between actor and engine, as metrics.

        rollouts: of each row, None where it is not fresh. unread: rows that did not pass through
        the policy, and are not compared.

        Where rollouts are sampled ahead, older weights explain a difference: the sync shows in rows
        of the current ones alone, and is not reported of a step that has none."""
        is_async, is_partial = self.config.is_async, self.config.rollout.partial > 0
        fresh = {
            i: self.step - one.policy_step for i, one in enumerate(rollouts) if one is not None
        }
        clip = self.args.actor.eps_clip_low_high
        compared = set(fresh) - set(unread)
        if is_partial:  # tokens of older weights are in rows of current ones
            masks, number = sampled_at_least(experiences, rollouts, compared, step=self.step)
            gap = gap_of_masks(experiences, masks, clip=clip)
        else:
            current = {i for i in compared if fresh[i] == 0} if is_async else compared
            gap, number = logprob_gap(experiences, current, clip=clip), len(current)
        found: dict[str, float] = {}
        if number or not (is_async or is_partial):
            found = {SYNC_GAP: gap.mean, SYNC_P99: gap.p99, SYNC_CLIP: gap.outside_clip}
            found[SYNC_ROWS] = float(number)
        if is_partial:
            found |= ages(rollouts, step=self.step)
        if not is_async:
            return found
        return found | {
            "r3/async/abs_logprob_gap": logprob_gap(experiences, compared, clip=clip).mean,
            "r3/async/mean_lag": sum(fresh.values()) / len(fresh) if fresh else 0.0,
            "r3/async/max_lag": float(max(fresh.values(), default=0)),
        }

    def _set_sampling_logprobs(
        self, experiences: list[Experience], rollouts: Sequence[Rollout | None]
    ) -> None:
        """Take the ratio of tokens of older weights (rollout.partial, openrlhf.train.async_enable) against
        their sampling log-probs, as a recalled row's. OpenRLHF corrects stale rollouts in another way.

        rollouts: of each row, None where it is not fresh."""
        if self.args.algo.advantage.is_correction_level != "off":
            return
        rows = {
            i
            for i, one in enumerate(rollouts)
            if one is not None and one.policy_step < self.step
        }
        current, _ = sampled_at_least(experiences, rollouts, rows, step=self.step)
        for experience, current_BA in zip(experiences, current, strict=True):
            stale_B = torch.tensor([index in rows for index in experience.index])
            if not stale_B.any():
                continue
            old = experience.action_log_probs.clone()  # Ray's memory is not ours to write
            stale_BA = stale_B[:, None] & ~current_BA
            old[stale_BA] = experience.rollout_log_probs[stale_BA].to(old.dtype)
            experience.action_log_probs = old

    def _report(
        self, batch: MixedBatch, gaps: dict[str, float], metrics: dict[str, float]
    ) -> None:
        limit = self.config.stop.max_abs_logprob_gap
        if SYNC_GAP in gaps and not (
            gaps[SYNC_GAP] <= limit and gaps[SYNC_P99] <= P99_FACTOR * limit
        ):
            raise TrainingStopped(
                f"actor and rollout engine disagree: mean |log-prob difference| on fresh rollouts is {gaps[SYNC_GAP]:.4g} nats, "
                f"99th percentile {gaps[SYNC_P99]:.4g} nats, {gaps[SYNC_CLIP]:.0%} of the tokens outside the clip; "
                f"stop.max_abs_logprob_gap={limit} allows that mean and {P99_FACTOR} times it for the percentile. The weight sync "
                "is broken or the settings differ (temperature, dtype): see docs/install.md"
            )
        self.metrics = {**self.r3.metrics(batch, step=self.step), **gaps, **metrics}
        self.metrics |= self._routing_metrics
        self.metrics["trained_tokens"] = trained_tokens(
            batch, passes=self.config.train.inner_epochs
        )
        self.metrics.update(entropy_metrics(self.rollouts) | extra_metrics(self.rollouts))
        self.records = records_of(
            batch,
            step=self.step + 1,
            prompts=self._prompts,
            recalled_prompts=self._recalled_prompts,
            entropies=self._entropies,
            policy_logprobs=self._policy_logprobs,
            teacher_logprobs=self._teacher_logprobs,
            token_values=self.config.logging.token_values,
            token_chars=self._token_chars,
        )

    @functools.cached_property
    def _token_chars(self) -> TokenPieces:
        # as rollout_executor.py decodes a response
        return TokenPieces(lambda ids: self.tokenizer.decode(ids, skip_special_tokens=True))


class R3ExperienceMaker(StockExperienceMaker):
    """Recall, rank, eq. 3."""

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Make the experiences of the mixed batch: fresh rows that are trained, recalled rows, fillers.

        Raises:
            TrainingStopped: also where no group has two graded rollouts.
        """
        config, seconds = self.config, {}
        batch = self._batch(rollout_samples)
        if not batch.rows:
            raise TrainingStopped(
                "no group of this step has two graded rollouts; see r3/grading in metrics.jsonl"
            )
        seconds["r3/time/recall_s"] = self._recall_s

        started = time.perf_counter()
        lessons = choose_lessons(
            self.r3, config, self.tokenizer, batch, rollout_samples, step=self.step
        )
        rows = batch.trained
        samples = self._samples(batch, rows, rollout_samples)
        exact = self.r3.rows_to_measure(batch)
        measured = {row.index for row in rows} if config.measures_all_entropies else exact
        seconds["r3/time/batch_s"] = time.perf_counter() - started

        unread = self._unread(samples, self._idle_rows(batch, rows, measured))
        samples_list = self._passes(samples, unread)
        if measured:
            self._announce_entropy(
                samples_list, {i for i, row in enumerate(rows) if row.index in measured}
            )
        distill = config.distill
        needs_supports = distill.compares_logits and distill.support == Support.STUDENT
        if lessons and needs_supports:
            self._announce_tokens(
                samples_list,
                {i: distill.top_k for i, row in enumerate(rows) if row.index in batch.lessons},
            )
        experiences = self.make_experience(samples_list)
        found, seconds["r3/time/entropy_s"] = (
            self._exact_entropy(samples_list) if measured else ({}, 0.0)
        )
        supports = self._kept_tokens(samples_list) if lessons and needs_supports else {}
        experiences = self._rejoined(samples, experiences, unread)
        started = time.perf_counter()
        scores, targets = self._teacher_scores(
            batch, rows, lessons, experiences, supports, sibling=samples[0]
        )
        if config.distill.enabled:
            seconds["r3/time/teacher_s"] = time.perf_counter() - started

        started = time.perf_counter()
        self._entropies = {row.index: found[i] for i, row in enumerate(rows) if i in found}
        self.r3.assign_advantages(
            batch, {batch.rows[i].fresh_source: self._entropies[i] for i in exact}
        )
        taught = self.r3.teach(batch, scores) if config.distill.enabled else {}
        self._keep_policy_logprobs(experiences, rows)
        off_policy = self._set_old_logprobs(experiences, rows, batch)
        fresh = [None if row.recalled else row.rollout for row in rows]
        gaps = self._gaps(experiences, fresh, unread)
        if self.config.is_async or self.config.rollout.partial:
            self._set_sampling_logprobs(experiences, fresh)
        self._set_advantages(experiences, rows)
        if distill.enabled and distill.compares_logits:
            set_targets(experiences, rows, targets)
        seconds["r3/time/advantage_s"] = time.perf_counter() - started
        self._report(batch, gaps, {**off_policy, **seconds, **taught})
        return experiences

    # ── a teacher from the store ──

    def _teacher_scores(
        self,
        batch: MixedBatch,
        rows: list[Row],
        lessons: list[Lesson],
        experiences: list[Experience],
        supports: dict[int, tuple[np.ndarray, np.ndarray]],
        *,
        sibling: Experience,
    ) -> tuple[dict[int, TeacherScores], dict[int, Target]]:
        """Score the taught rows after their teacher's prompts.

        Returns, by row index, the log-probs of both, and what a loss on logits is taken against.

        Args:
            experiences: of the policy's pass, before any log-prob of an old policy is written there.
            supports: place in `rows` -> the policy's likeliest tokens, with distill.support=student."""
        if not lessons:
            return {}, {}
        taught = {place: row for place, row in enumerate(rows) if row.index in batch.lessons}
        of_rows = response_logprobs(
            experiences, {place: row.rollout for place, row in taught.items()}
        )
        student = {rows[place].index: values for place, values in of_rows.items()}
        scored = rows_to_score(
            lessons,
            batch,
            self.tokenizer,
            sibling=sibling,
            ranks=effective_ranks(self.args),
        )
        passes = self._micro_batches(scored)
        places = set(range(len(lessons)))
        needs_entropy = self.config.distill.needs_entropy
        if needs_entropy:
            self._announce_entropy(passes, places, tokens=True)
        distill = self.config.distill
        if distill.compares_logits:
            place_of = {row.index: place for place, row in enumerate(rows)}
            wanted: dict[int, TokensWanted] = dict.fromkeys(places, distill.top_k)
            if distill.support == Support.STUDENT:
                wanted = {i: supports[place_of[lessons[i].row]][0] for i in places}
            self._announce_tokens(passes, wanted)
        with self._teacher_in_place():
            self._score(passes)
        kept = self._kept_tokens(passes) if distill.compares_logits else {}
        entropies = self._exact_entropy(passes)[0] if needs_entropy else {}
        teacher = response_logprobs(
            passes, {place: batch.rows[lessons[place].row].rollout for place in places}
        )
        if self.config.logging.token_values != TokenValues.NONE:
            self._teacher_logprobs = {
                lesson.row: teacher[place] for place, lesson in enumerate(lessons)
            }
        scores = scores_of(lessons, batch, teacher, student, entropies)
        if not distill.compares_logits:
            return scores, {}
        return scores, targets_of(lessons, batch, kept, scores, distill)

    @contextmanager
    def _teacher_in_place(self) -> Iterator[None]:
        """Let the actors have the teacher's weights in the block, where they are not the policy's."""
        if not self.config.distill.averages:
            yield
            return
        group = self.actor_model_group
        ray.get(group.async_run_method("put_teacher"))
        yield
        ray.get(group.async_run_method("put_policy"))

    def _announce_tokens(
        self, samples_list: list[Experience], wanted: Mapping[int, TokensWanted]
    ) -> None:
        """Ask for log-probs of tokens in the next pass: index of a row -> which."""
        rows = [[wanted.get(index, 0) for index in samples.index] for samples in samples_list]
        ray.get(
            self.actor_model_group.async_run_method_batch(
                method_name="expect_tokens", rows=rows
            )
        )

    def _kept_tokens(
        self, samples_list: list[Experience]
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Row index -> ids [S, K] and log-probs [S, K], of the pass over these micro-batches."""
        duplicates = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        ranks = ray.get(self.actor_model_group.async_run_method("pop_tokens"))[::duplicates]
        passes = itertools.chain.from_iterable(ranks)
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for samples, kept in zip(samples_list, passes, strict=True):
            found |= {samples.index[row]: tokens for row, tokens in kept.items()}
        return found

    def _score(self, passes: list[Experience]) -> None:
        """Set the log-probs of micro-batches under the policy, as upstream's make_experience does
        (:155-160, :200), without a reference, critic or reward."""
        args = self.args
        found = self._dispatch_forward(
            self.actor_model_group,
            args.train.colocate_all or args.train.colocate_actor_ref,
            sequences=[one.sequences for one in passes],
            action_mask=[one.action_mask for one in passes],
            attention_mask=[one.attention_mask for one in passes],
        )
        duplicates = args.ds.ring_attn_size * args.ds.tensor_parallel_size
        logprobs = self._flatten_results(found, duplicates)
        for one, logprobs_BA in zip(passes, logprobs, strict=True):
            one.action_log_probs = logprobs_BA

    def _idle_rows(self, batch: MixedBatch, rows: list[Row], measured: set[int]) -> set[int]:
        """Return the places in `rows` of fresh rows that have advantage 0 and are not measured."""
        if not self._skips_idle:
            return set()
        idle = self.r3.idle_rows(batch) - measured
        return {i for i, row in enumerate(rows) if row.index in idle and not row.recalled}

    # ── CCR ──

    def _samples(
        self, batch: MixedBatch, rows: list[Row], rollout_samples: list[Experience]
    ) -> list[Experience]:
        """Return one Experience per trained row, then the fillers."""
        samples = []
        for row in rows:
            if row.source is not None:
                samples.append(rollout_samples[row.source])
            else:
                sibling = rollout_samples[batch.first_of(row).fresh_source]
                prompt_ids = batch.prompt_ids_of(row)
                samples.append(
                    experience_from_recalled(
                        row.rollout,
                        prompt_ids=prompt_ids,
                        sibling=sibling,
                        experts=self._stored_experts(batch, row),
                    )
                )
        if self.config.rollout.routing_replay:
            recalled = [row for row in rows if row.source is None]
            own = [row for row in recalled if self._stored_experts(batch, row) is None]
            self._routing_metrics[RECALLED_OWN] = float(len(own))
        windows = num_windows(
            self.args,
            num_rows=len(samples),
            rows_per_update=self.config.train.rows_per_update,
        )
        missing = num_fillers(len(samples), ranks=effective_ranks(self.args), windows=windows)
        return samples + [
            filler_experience(samples[0], self.tokenizer.pad_token_id) for _ in range(missing)
        ]

    def _stored_experts(self, batch: MixedBatch, row: Row) -> np.ndarray | None:
        """Return the experts that sampled a recalled row; None: the policy chooses.

        They are those of its own prompt: after another one the engine would have chosen others."""
        if not self.config.rollout.routing_replay or not batch.has_own_prompt(row):
            return None
        return row.rollout.experts

    # ── SERR ──

    def _announce_entropy(
        self, samples_list: list[Experience], wanted: set[int], *, tokens: bool = False
    ) -> None:
        """Ask for exact entropy of rows in the next pass. tokens: of each token, whatever is logged."""
        rows = [[index in wanted for index in samples.index] for samples in samples_list]
        ray.get(
            self.actor_model_group.async_run_method_batch(
                method_name="expect_entropy", rows=rows, tokens=[tokens] * len(rows)
            )
        )

    def _exact_entropy(
        self, samples_list: list[Experience]
    ) -> tuple[dict[int, EntropyStatistics], float]:
        """Row index -> exact statistics, and the seconds of the slowest rank."""
        duplicates = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        ranks = ray.get(self.actor_model_group.async_run_method("pop_entropy"))[::duplicates]
        passes = list(itertools.chain.from_iterable(ranks))
        if len(passes) != len(samples_list):
            raise TrainingStopped(
                f"{len(samples_list)} forward passes but entropy of {len(passes)}"
            )
        found = {}
        for samples, measured in zip(samples_list, passes, strict=True):
            for place, (index, (peak, global_)) in enumerate(
                zip(samples.index, measured.statistics_B2.tolist(), strict=True)
            ):
                if not math.isnan(peak):
                    tokens = measured.tokens.get(place)
                    found[index] = EntropyStatistics(
                        peak=peak, global_=global_, source="exact", tokens=tokens
                    )
        return found, max(sum(measured.seconds for measured in rank) for rank in ranks)

    # ── tensors ──

    def _set_old_logprobs(
        self, experiences: list[Experience], rows: list[Row], batch: MixedBatch
    ) -> dict[str, float]:
        """Set the log-probs of a recalled row's ratio, and measure how far off-policy it is."""
        gaps: list[torch.Tensor] = []
        smallest: list[float] = []  # of each recalled success
        for experience in experiences:  # through Ray: shared memory, read only
            if any(index < len(rows) and rows[index].recalled for index in experience.index):
                experience.action_log_probs = experience.action_log_probs.clone()
                experience.rollout_log_probs = experience.rollout_log_probs.clone()
        for experience, position, index in rows_of(experiences):
            if index >= len(rows) or not rows[index].recalled:
                continue
            row = rows[index]
            mask = experience.action_mask[position].bool()
            if batch.has_own_prompt(row) and not row.rehearsed and row.rollout.has_logprobs:
                once = experience.rollout_log_probs[position][mask].float()
                gaps.append(experience.action_log_probs[position][mask].float() - once)
                if row.rollout.verdict is Verdict.CORRECT:
                    smallest.append(gaps[-1].min().clamp(-20, 20).exp().item())
            now, stored = experience.action_log_probs, experience.rollout_log_probs
            if row.old_logprobs is not None:
                now[position] = stored[position].to(now.dtype)
            else:  # importance sampling of stale engines must not see a stored policy
                stored[position] = now[position].to(stored.dtype)
        gap_T = torch.cat(gaps) if gaps else torch.zeros(0)
        ratio_T, gap = (
            gap_T.clamp(-20, 20).exp(),
            gap_of_tokens(gap_T, clip=self.args.actor.eps_clip_low_high),
        )
        return {
            "r3/replay/ratio_mean": ratio_T.mean(dtype=torch.float64).item() if gaps else 0.0,
            "r3/replay/ratio_max": ratio_T.max().item() if gaps else 0.0,
            "r3/replay/p99_logprob_gap": gap.p99,
            "r3/replay/clip_fraction": gap.outside_clip,
            "r3/replay/least_likely_weight": sum(smallest) / len(smallest) if smallest else 0.0,
        }

    def _set_advantages(self, experiences: list[Experience], rows: list[Row]) -> None:
        """Per-token advantages as upstream's (:307-352), from eq. 3 instead of its groups."""
        values = [row.advantage for row in rows]
        rewards = [row.reward for row in rows]
        for experience in experiences:
            fillers = [0.0] * sum(index >= len(rows) for index in experience.index)
            of_rows = [index for index in experience.index if index < len(rows)]
            # fillers come last in row order, and indices inside a micro-batch ascend
            advantage_B = torch.tensor(
                [values[i] for i in of_rows] + fillers, dtype=torch.float32
            )
            experience.rewards = torch.tensor(
                [rewards[i] for i in of_rows] + fillers, dtype=torch.float32
            )
            experience.info["reward"] = experience.rewards.clone()
            mask_BA = experience.action_mask
            # no reward_clip_range: these are advantages
            reward_BA = compute_reward(
                advantage_B, self.kl_ctl.value, experience.kl, action_mask=mask_BA
            )
            experience.returns = returns_to_go(reward_BA, mask_BA)
            experience.advantages = experience.returns.clone()
            for position, index in enumerate(experience.index):
                if index < len(rows) and rows[index].token_advantages is not None:
                    set_token_advantages(experience, position, rows[index])
            if (weight := IMPORTED_WEIGHTS[self.config.replay.imported.weight]) is not None:
                for position, index in enumerate(experience.index):
                    # ratio 1: the policy's own log-probs
                    if index < len(rows) and rows[index].rollout.origin:
                        probs_A = experience.action_log_probs[position].float().exp()
                        experience.advantages[position] *= weight(probs_A)
            experience.info["return"] = reward_BA.sum(dim=-1)
            if "recalled" in self.config.loss.reads:
                experience.info[RECALLED] = torch.tensor(
                    [rows[i].recalled for i in of_rows] + fillers
                ).float()
            experience.kl = None


class SampledTokens:
    """Each row's sampled tokens, moved to its beginning in their order, and back.

    mask_BA: the mask of the moved rows."""

    def __init__(self, action_mask_BA: torch.Tensor) -> None:
        self.order_BA = torch.argsort(action_mask_BA.bool().logical_not().int(), stable=True)
        self.mask_BA = self.first(action_mask_BA)

    def first(self, values_BA: torch.Tensor) -> torch.Tensor:
        """Return the values with those of sampled tokens first."""
        return values_BA.gather(-1, self.order_BA)

    def back(self, values_BA: torch.Tensor) -> torch.Tensor:
        """Return the values at the places of their tokens, 0 at those of others."""
        return torch.zeros_like(values_BA).scatter(-1, self.order_BA, values_BA * self.mask_BA)


def returns_to_go(reward_BA: torch.Tensor, action_mask_BA: torch.Tensor) -> torch.Tensor:
    """sum of the rewards at t, t + 1, ...: upstream's get_cumulative_returns (:390) with gamma 1,
    which loops in Python and takes longer than all the rest of the experience maker."""
    return (reward_BA * action_mask_BA).flip(-1).cumsum(-1).flip(-1)


def complete_ungraded(rollout_samples: list[Experience], *, of_step: bool = False) -> None:
    """Stock estimators need full groups. An ungraded one gets the mean reward and score of graded
    siblings and no action tokens: it moves no mean and carries no gradient; nor an ungraded group.
    See `correct_groups` for its effect on a std.

    of_step: siblings are all rows of the step, whose mean is the baseline."""
    group_of = _step_of if of_step else _group_of
    graded: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for sample in rollout_samples:
        if sample.r3_rollout.verdict is not Verdict.UNGRADED:
            values = (
                sample.r3_rollout.reward,
                float(sample.r3_rollout.verdict is Verdict.CORRECT),
            )
            graded.setdefault(group_of(sample), []).append(values)
    for sample in rollout_samples:
        if sample.r3_rollout.verdict is Verdict.UNGRADED:
            siblings = graded.get(group_of(sample), [(0.0, 0.0)])
            # not "a reward above 0": a user's rewards may give a failure one, and a success none
            sample.rewards, sample.scores = (
                torch.tensor(siblings, dtype=torch.float32).mean(dim=0).split(1)
            )
            sample.info["reward"], sample.info["score"] = sample.rewards, sample.scores
            sample.action_mask = torch.zeros_like(sample.action_mask)
            # an overlong penalty would move the mean
            sample.response_length = torch.zeros_like(sample.response_length)


def _group_of(sample: Experience) -> tuple[str, ...]:
    return sample.prompts[0], sample.labels[0]


def _step_of(_sample: Experience) -> tuple[str, ...]:
    return ()


def correct_groups(
    experiences: list[Experience], rollout_samples: list[Experience], estimator: GroupEstimator
) -> None:
    """Set the advantages of groups with ungraded rows, and of groups with equal rewards, to the estimator's.

    Upstream (:313, :318) divides by a std over all rows, those that `complete_ungraded` filled too, and
    takes a baseline of them. Of equal rewards it divides rounding noise by 1e-9: eight rewards of 0.1 have
    the float32 mean 0.1 + 7e-9, so that `group_norm` gives each -7.5 instead of 0. The estimator
    equals upstream's elsewhere (tests/method/core/test_agrees_with_openrlhf.py); the KL is part of
    the loss and not of the reward (arguments.py)."""
    groups: dict[tuple[str, str], list[tuple[Experience, int]]] = {}
    filled = set()
    for experience, position, index in rows_of(experiences):
        sample = rollout_samples[index]
        group = sample.prompts[0], sample.labels[0]
        if sample.r3_rollout.verdict is Verdict.UNGRADED:
            filled.add(group)
        else:
            groups.setdefault(group, []).append((experience, position))
    for group, rows in groups.items():
        rewards = [experience.rewards[position].item() for experience, position in rows]
        if group not in filled and len(set(rewards)) > 1:
            continue
        values = estimator.of(rewards, **EQ_3)
        for (experience, position), value in zip(rows, values, strict=True):
            experience.advantages[position] = experience.returns[position] = (
                value * experience.action_mask[position]
            )
