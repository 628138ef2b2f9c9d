"""The training loop of the lab: one process, a model of a million parameters, the same core modules as the real stack.

Problems, prompts, history store, reflection prompts, mixed groups, rankings and advantages are the very functions that
the OpenRLHF adapter calls; sampling and update are plain torch. research/tests/test_agrees_with_the_stack.py compares the
update with the real stack's on the same rollouts. The run directory is that of `r3 train`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.algorithms import MAKERS, overlong_penalty
from r3_openrlhf.config.words import LossAggregation
from r3_openrlhf.method.core.batch_metrics import trained_tokens
from r3_openrlhf.method.core.distill import DISTILL_LOSSES, Support
from r3_openrlhf.method.core.groups import GroupState, group_state
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.core.rewards import outcome_reward
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.problems.held_out import (
    evaluation_line,
    prepare_held_out,
)
from r3_openrlhf.problems.prompts import RunPrompts, r3_of
from r3_openrlhf.problems.training_file import Label, prepare, read_prompts
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.functions import combined, make_worker
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.models.locate import resolve_model
from research.sampling import Sample, sample
from research.successes import begin
from research.sums import is_right
from research.teacher import teach
from research.trunk import Trunk, kept_of, num_frozen_layers
from research.update import Target, TrainedRow, accumulate_gradient, make_optimizer, step

MAX_GRAD_NORM = 1.0  # OpenRLHF's default


@dataclass(slots=True)
class Sampled:
    """One rollout of the step, with what the store does not keep."""

    rollout: Rollout
    group: tuple  # rollouts with the same value are one group
    entropies: np.ndarray  # nats, per token


class Update(NamedTuple):
    """The results of a step's passes."""

    loss: float  # mean over the passes
    ratio_max: float  # the largest ratio of a recalled token in the first pass
    least_likely_weight: float  # the smallest ratio of each recalled success there, on average
    grad_norm: float  # before clipping, of the last pass
    grad_norm_max: float  # of all passes


class Lab:
    """One run. `train` does everything; the parts are methods so that experiments can use them on their own."""

    r3_class: type[R3] = R3  # a control may have another
    pauses = False  # does this loop know rollout.partial (research/partial.py)?

    def __init__(self, config: R3Config, *, model_dir: str | None = None) -> None:
        check(config)
        if config.rollout.partial and not self.pauses:
            raise ConfigError(
                f"rollout.partial is {config.rollout.partial}, but {type(self).__name__} waits for all responses; use rollout.partial=0"
            )
        self.config = config
        directory = model_dir or resolve_model(config.model.path)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        # a world's model says what of it is trained, by beginnings of names
        trained = getattr(self.model.config, "r3_trained", "")
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(
                name.startswith(trained if isinstance(trained, str) else tuple(trained))
            )
        if frozen := num_frozen_layers(self.model):
            self.model.trunk = Trunk(self.model, frozen, kept=kept_of(directory, frozen))
        self.generator = torch.Generator().manual_seed(config.train.seed)
        self.rng = random.Random(config.train.seed)
        self.optimizer = make_optimizer(self.model, learning_rate=config.train.learning_rate)
        self.step = 0
        self.epoch = 1
        self.tokens = 0  # response tokens sampled for training so far
        self.render = RunPrompts(config, self.tokenizer)
        self._prompt_ids: dict[str, np.ndarray] = {}
        self._asked: dict[str, Label] = {}  # uid -> the problem
        # (uid, response) -> text, is it right
        self._judged: dict[tuple[str, bytes], tuple[str, bool]] = {}
        self._grade = (
            make_worker([(config.reward.function, config.reward.function_args)])
            if config.reward.function
            else None
        )

    # ── sampling ──

    def encode(self, prompt: str) -> np.ndarray:
        """Token ids of a rendered prompt, int32 [T]. Kept: a problem is asked again and again."""
        if prompt not in self._prompt_ids:
            ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
            self._prompt_ids[prompt] = np.array(ids, dtype=np.int32)
        return self._prompt_ids[prompt]

    def r3_with(self, history: HistoryStore | None) -> R3:
        """The method as the configuration says, on this history."""
        return r3_of(self.config, history, kind=self.r3_class)

    def plain_prompt(self, label: Label) -> str:
        """The problem in the templates of `data`."""
        return self.render.plain(label)

    def ask(
        self,
        questions: list[tuple[Label, str, Context]],
        *,
        n: int,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
        generator: torch.Generator | None = None,
    ) -> list[Sampled]:
        """`n` graded rollouts of each (problem, prompt, context), prompt by prompt."""
        self._asked.update((label.uid, label) for label, _, _ in questions)
        samples = sample(
            self.model,
            [self.encode(prompt) for _, prompt, _ in questions],
            n=n,
            max_new_tokens=max_new_tokens or self.config.rollout.max_new_tokens,
            temperature=temperature or self.config.rollout.temperature,
            eos=self.tokenizer.eos_token_id,
            generator=generator or self.generator,
        )
        return [
            self._graded(drawn, *questions[drawn.prompt], number=drawn.prompt)
            for drawn in samples
        ]

    def _graded(
        self, drawn: Sample, label: Label, prompt: str, context: Context, *, number: int
    ) -> Sampled:
        response_ids = drawn.response_ids
        known = label.uid, response_ids.tobytes()
        if known not in self._judged:
            text = self.tokenizer.decode(response_ids.tolist(), skip_special_tokens=True)
            self._judged[known] = (
                text,
                self.is_right(
                    label, text, num_tokens=len(response_ids), truncated=drawn.truncated
                ),
            )
        text, correct = self._judged[known]
        rollout = Rollout(
            uid=label.uid,
            context=context,
            prompt_ids=self.encode(prompt),
            response_ids=response_ids,
            response_logprobs=drawn.logprobs,
            verdict=Verdict.CORRECT if correct else Verdict.WRONG,
            reward=outcome_reward(
                float(correct),
                len(response_ids),
                max_tokens=self.config.reward.length_reward_max_tokens,
            ),
            truncated=drawn.truncated,
            finish_reason="length" if drawn.truncated else "stop",
            policy_step=self.step,
            epoch=self.epoch,
            text=text,
        )
        return Sampled(
            rollout=rollout, group=(label.uid, context, number), entropies=drawn.entropies
        )

    def is_right(self, label: Label, text: str, **of_response) -> bool:
        """The verdict of `reward.function`, or of the task `exact`. R3Error: the function gives none."""
        if self._grade is None:
            return is_right(text, tuple(label.references))
        rewards = self.config.reward
        parts = self._grade(GradeRequest.about(label, text, **of_response))
        outcome = combined(parts, [1.0], correct_from=rewards.correct_from)
        if outcome.score is None:
            raise R3Error(
                f"reward.function {rewards.function} gives no value for {label.problem!r}: {outcome.reason}; repair it"
            )
        return outcome.verdict == Verdict.CORRECT

    # ── one step ──

    def sample_step(
        self, labels: list[Label], r3: R3
    ) -> tuple[list[Sampled], dict[str, float]]:
        """The groups that R3 asks for these problems, and its metrics of them."""
        prompts = r3.prompts(labels, step=self.step, epoch=self.epoch, render=self.render)
        questions = [(prompt.problem, prompt.prompt, prompt.context) for prompt in prompts]
        sampled = self.ask(questions, n=self.config.rollout.n_samples_per_prompt)
        self.tokens += sum(response.rollout.num_sampled_tokens for response in sampled)
        return sampled, prompts.metrics()

    def mixed_batch(self, sampled: list[Sampled], r3: R3) -> MixedBatch:
        """Recall, choose lessons, rank, advantages, as on the whole stack."""
        batch = r3.recall(
            [response.rollout for response in sampled],
            step=self.step,
            groups=[response.group for response in sampled],
        )
        r3.lessons(
            batch,
            step=self.step,
            problems=lambda rollout: self._asked[rollout.uid],
            render=self.render,
        )
        if self.config.algorithm.overlong_penalty:  # the stack's is OpenRLHF's own
            for row in batch.rows:
                row.outcome_reward -= overlong_penalty(
                    row.rollout.num_tokens, max_tokens=self.config.rollout.max_new_tokens
                )
        r3.assign_advantages(batch, [response.entropies for response in sampled])
        return batch

    def prepare_history(self, labels: list[Label], r3: R3) -> None:
        """Prepare the history before the first step. Does nothing here; a control overrides it."""

    def teach(self, batch: MixedBatch, r3: R3) -> tuple[dict[int, Target], dict[str, float]]:
        """Set the token advantages of taught rows, or return their targets; and metrics. See research/teacher.py."""
        return teach(self, batch, r3)

    def trained_rows(
        self, batch: MixedBatch, targets: Mapping[int, Target]
    ) -> list[TrainedRow]:
        """Return a row for each of `batch.trained`, in their order; further rows may follow.
        targets: of taught rows, by their index."""
        rows = []
        for row in batch.trained:
            advantage: float | np.ndarray = row.advantage
            if row.token_advantages is not None:
                advantage = row.token_advantages
            rows.append(
                TrainedRow(
                    prompt_ids=batch.prompt_ids_of(row),
                    response_ids=row.rollout.response_ids,
                    advantage=advantage,
                    old_logprobs=row.old_logprobs,
                    recalled=row.recalled,
                    target=targets.get(row.index),
                )
            )
        return rows

    def update(
        self, batch: MixedBatch, targets: Mapping[int, Target] = MappingProxyType({})
    ) -> Update:
        """train.inner_epochs passes over the trained rows of the mixed groups, one optimizer step each.

        A row without stored log-probs has ratio 1 in the first pass. In the others its ratio is taken against the log-probs
        from before the first one, as OpenRLHF's is (ppo_actor.py:175, 244).
        """
        config = self.config
        rows = self.trained_rows(batch, targets)
        losses, norms, ratio_max = [], [], 0.0
        smallest: list[float] = []
        for number in range(config.train.inner_epochs):
            gradient = accumulate_gradient(
                self.model,
                rows,
                temperature=config.rollout.temperature,
                micro_batch_size=config.train.micro_batch_size,
                settings=config.loss_settings,
                loss=config.loss,
                by_token=config.train.loss_aggregation == LossAggregation.TOKEN_MEAN,
                distill_loss=DISTILL_LOSSES[config.distill.loss],
            )
            of_batch = gradient.logprobs[: len(batch.trained)]
            if number == 0:
                ratio_max = gradient.ratio_max
                smallest = [
                    float(np.exp(logprobs - row.rollout.response_logprobs).min())
                    for row, logprobs in zip(batch.trained, of_batch, strict=True)
                    if row.recalled
                    and not row.rehearsed
                    and row.rollout.verdict is Verdict.CORRECT
                    if logprobs is not None and batch.has_own_prompt(row)
                ]
                for trained, logprobs in zip(rows, gradient.logprobs, strict=True):
                    trained.old_logprobs = (
                        logprobs if trained.old_logprobs is None else trained.old_logprobs
                    )
            losses.append(gradient.loss)
            norms.append(step(self.model, self.optimizer, max_grad_norm=MAX_GRAD_NORM))
        least = fmean(smallest) if smallest else 0.0
        return Update(
            fmean(losses), ratio_max, least, grad_norm=norms[-1], grad_norm_max=max(norms)
        )

    # ── the run ──

    def train(self, *, progress=None) -> RunDirectory:
        """Train until train.num_epochs, max_steps or max_generated_tokens is reached; a run directory remembers it.

        A finished run is left as it is; an unfinished one starts again from nothing (it takes minutes).
        `progress(tokens)` is called after every step. RunBusy: another process trains in this directory.
        """
        run = RunDirectory(self.config.run_dir)
        if run.is_finished(self.config):
            return run
        with lock.held(run):
            return self._train(run, progress)

    def _train(self, run: RunDirectory, progress) -> RunDirectory:
        config = self.config
        for leftover in (run.metrics, run.evaluations, run.history):
            leftover.unlink(missing_ok=True)
        run.create(config)
        held_out = held_out_problems(config, self.tokenizer, run)
        labels = [Label.from_json(label) for label in read_prompts(run.data)[1]]
        history = None
        if config.keeps_history:
            history = HistoryStore.open(
                ":memory:", limits=config.history, seed=config.train.seed
            )
        r3 = self.r3_with(history)
        if history is not None:
            self.prepare_history(labels, r3)
        of_start = begin(self, labels, history)
        self._evaluate(run, held_out)
        for batch_labels in self._batches(labels):
            started = time.perf_counter()
            before = self.tokens
            sampled, of_prompts = self.sample_step(batch_labels, r3)
            sampled, dropped = self.complete(sampled, labels)
            sampling_s = time.perf_counter() - started
            batch = self.mixed_batch(sampled, r3)
            metrics = r3.metrics(batch, step=self.step) | of_prompts
            targets, of_lessons = self.teach(batch, r3)
            metrics |= of_lessons
            metrics["trained_tokens"] = trained_tokens(batch, passes=config.train.inner_epochs)
            update = self.update(batch, targets)
            r3.remember(
                [response.rollout for response in sampled], step=self.step, epoch=self.epoch
            )
            self.step += 1
            entropies = np.concatenate([response.entropies for response in sampled])
            run.append_metrics(
                {
                    "step": self.step,
                    "epoch": self.epoch,
                    **metrics,
                    **of_start,
                    "r3/replay/ratio_max": update.ratio_max,
                    "r3/replay/least_likely_weight": update.least_likely_weight,
                    "loss": update.loss,
                    "grad_norm": update.grad_norm,
                    "grad_norm_max": update.grad_norm_max,
                    "r3/entropy/estimate": float(entropies.mean()),
                    "r3/filter/dropped_groups": dropped,
                    "generated_tokens": self.tokens - before,
                    "generated_tokens_total": self.tokens,
                    "time/sampling_s": sampling_s,
                    "time/step_s": time.perf_counter() - started,
                }
            )
            of_start = {}
            last = self._is_last()
            if last or self.step % config.held_out.every_steps == 0:
                self._evaluate(run, held_out)
            if progress is not None:
                progress(self.tokens)
            if last:
                break
        else:
            if self.step % config.held_out.every_steps:
                self._evaluate(run, held_out)
        if history is not None:
            history.close()
        self.model.save_pretrained(run.final_model)
        self.tokenizer.save_pretrained(run.final_model)
        run.mark_finished()
        return run

    def _is_last(self) -> bool:
        train = self.config.train
        return (train.max_steps is not None and self.step >= train.max_steps) or (
            train.max_generated_tokens is not None and self.tokens >= train.max_generated_tokens
        )

    def _batches(self, labels: list[Label]) -> Iterator[list[Label]]:
        """Every problem once an epoch, in an order of the seed and the epoch; an incomplete last batch is dropped."""
        size = self.config.rollout.batch_size
        self._spare: list[Label] = []
        for epoch in range(1, self.config.train.num_epochs + 1):
            self.epoch = epoch
            order = list(labels)
            random.Random(f"{self.config.train.seed}/epoch/{epoch}").shuffle(order)
            while len(order) >= size:
                batch, order = order[:size], order[size:]
                self._spare = order  # dynamic sampling takes from here
                yield batch
                order = self._spare

    def complete(
        self, sampled: list[Sampled], labels: list[Label]
    ) -> tuple[list[Sampled], int]:
        """Return what a step trains on, and how many groups were dropped: under dynamic sampling (`dapo`), else all that was sampled.
        labels: all training problems."""
        return (
            self._filtered(sampled, labels)
            if self.config.algorithm.filters_groups
            else (sampled, 0)
        )

    def further_problems(self, count: int, labels: list[Label]) -> list[Label]:
        """The epoch's next ones, and any where it has no more."""
        further, self._spare = self._spare[:count], self._spare[count:]
        return further + self.rng.sample(labels, count - len(further))

    def _filtered(
        self, sampled: list[Sampled], labels: list[Label]
    ) -> tuple[list[Sampled], int]:
        """Dynamic sampling: groups whose verdicts are all equal give way to groups of further problems until the
        batch is full. Every token is counted. Upstream ends an epoch that runs out of problems with a short batch;
        here problems are asked again, so that every batch is full."""
        wanted, dropped = self.config.rollout.batch_size, 0
        kept: list[list[Sampled]] = []
        while True:
            for group in by_group(sampled):
                if (
                    group_state([response.rollout.verdict for response in group])
                    is GroupState.MIXED
                ):
                    kept.append(
                        [
                            replace_group(response, (*response.group, len(kept)))
                            for response in group
                        ]
                    )
                else:
                    dropped += 1
            missing = wanted - len(kept)
            out_of_budget = self._is_last()
            if missing <= 0 or (out_of_budget and kept):
                return [response for group in kept[:wanted] for response in group], dropped
            sampled, _ = self.sample_step(
                self.further_problems(missing, labels), R3(self.config)
            )

    def _evaluate(self, run: RunDirectory, labels: list[Label]) -> None:
        if labels:
            run.append_evaluation(self.evaluate(labels))

    def evaluate(self, labels: list[Label]) -> dict[str, float | int | str | None]:
        """Accuracy on these problems. The random state is the same every time, and apart from the training's."""
        settings = self.config.held_out
        sampled = self.ask(
            [(label, self.plain_prompt(label), Context.PLAIN) for label in labels],
            n=settings.n_samples,
            temperature=settings.temperature,
            generator=torch.Generator().manual_seed(0),
        )
        return evaluation_line(
            [response.rollout for response in sampled],
            config=self.config,
            step=self.step,
            epoch=self.epoch,
            generated_tokens=self.tokens,
        )


def by_group(sampled: list[Sampled]) -> list[list[Sampled]]:
    """The groups, in the order in which they were sampled."""
    groups: dict[tuple, list[Sampled]] = {}
    for response in sampled:
        groups.setdefault(response.group, []).append(response)
    return list(groups.values())


def replace_group(response: Sampled, group: tuple) -> Sampled:
    """The same rollout in another group."""
    return Sampled(rollout=response.rollout, group=group, entropies=response.entropies)


def held_out_problems(config: R3Config, tokenizer, run: RunDirectory) -> list[Label]:
    """The problems of `held_out`, less those that are trained on; the run's two data files are written.

    Raises DataError as data.prepare and held_out.prepare_held_out do.
    """
    prepare(config, tokenizer, run.data)
    if config.held_out.path is None:
        return []
    prepare_held_out(config, tokenizer, run.data, run.held_out)
    return [Label.from_json(label) for label in read_prompts(run.held_out)[1]]


def check(config: R3Config) -> None:
    """ConfigError for what the light loop does not do; the real stack does it all."""
    algorithm = config.algorithm
    own_maker = not algorithm.experience_maker.startswith(f"{MAKERS}:")
    for is_so, why in (
        (algorithm.has_critic, "trains a critic"),
        (algorithm.environment, "plays in an environment"),
        (own_maker, f"has an experience maker of its own, {algorithm.experience_maker}"),
        (
            not algorithm.own_advantages and algorithm.group_estimator is None,
            f"has OpenRLHF's estimator {algorithm.estimator}",
        ),
    ):
        if is_so:
            raise ConfigError(
                f"algo is {config.algo}, which {why}; the lab's loop has none, so use r3 train"
            )
    if config.reward.functions or config.reward.reads_groups:
        raise ConfigError(
            "the lab's loop has one reward function that is called with one response; use r3 train for others"
        )
    if config.data.task != "exact" and config.reward.function is None:
        raise ConfigError(
            f"data.task is {config.data.task}; the lab grades in its own process, so use data.task=exact or reward.function=..."
        )
    if config.train.batch_size is not None or config.train.kl_coef > 0:
        raise ConfigError(
            "the lab's loop does one update a pass over the step's rollouts, without KL; use r3 train for other settings"
        )
    distill = config.distill
    if distill.support != Support.TEACHER or distill.max_ratio is not None or distill.averages:
        raise ConfigError(
            "the lab's teacher is today's policy and compares its own likeliest tokens, without a ratio; use r3 "
            "train for distill.support=student, distill.max_ratio or distill.teacher=average"
        )
    flags = {"actor": {"dual_clip": config.dual_clip}}
    if config.openrlhf not in ({}, flags) or set(algorithm.flags) - {"actor.policy_loss_type"}:
        raise ConfigError(
            "the lab's loop has no flag of OpenRLHF's but actor.dual_clip; use r3 train for others"
        )
