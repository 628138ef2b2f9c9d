"""Draws prompts, adds those of R3.prompts, and keeps a record and a count of every rollout.

Answers trainer/ppo_utils/samples_generator.py: it has no problem id, returns groups in order of
completion, and slices its output to batch_size * n_samples_per_prompt rows (:128-130), which would
push the additional groups of reflection prompts into the next step. Dynamic filtering (:171-195)
compares the mean *score* with 0 and 1, which partial credit keeps above 0 in an all-wrong group,
drops groups without a trace, and asks until the problems run out."""

import dataclasses
import functools
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from types import SimpleNamespace
from typing import NamedTuple, Self
from unittest.mock import patch

import ray
import torch
from openrlhf.trainer.ppo_utils import samples_generator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.deepspeed import DeepspeedStrategy

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.prompts import ChosenStates, Prefix, PromptMaker, StepPrompts
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, Rollout, Verdict
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.stack.batching import effective_ranks, num_windows
from r3_openrlhf.stack.convert import rollout_from_response
from r3_openrlhf.stack.expert_routing import experts_tensor
from r3_openrlhf.stack.partial_generator import PartialSteps
from r3_openrlhf.stack.recorded_rollouts import PLAYBACK, RECORD
from r3_openrlhf.stack.step_metrics import GIVEN_UP, REPETITION, TOOL_COUNTS
from r3_openrlhf.stack.work import work_of

GENERATED, COLLECTED, WARM_START = (
    "generated_tokens_total",
    "collected_tokens_total",
    "warm_start_tokens_total",
)
TOTALS = (GENERATED, COLLECTED, WARM_START)  # over all resumes
ASKS_EVERY_S = 1.0  # held-out problems: is the run to end?
GIVING_UP_S = 30.0  # an engine's step, and a grader that is busy
NO_PROMPTS = StepPrompts([], reflection=[])
NO_STATES = ChosenStates([], {})
COUNTS = (
    "generated_tokens",
    "r3/filter/dropped_groups",
    "r3/filter/dropped_tokens",
    "r3/filter/left_over_groups",
    "r3/filter/left_over_tokens",
    GIVEN_UP,
    REPETITION,
)


def keep_order(strategy: DeepspeedStrategy, config: R3Config) -> None:
    """Ask the problems in the training file's order. ppo_trainer.py:42 always shuffles."""
    if config.data.order == "shuffled":
        return
    make = strategy.setup_dataloader

    def in_order(
        dataset: object,
        batch_size: int,
        pin_memory: bool,
        _shuffle: bool,
        *more: object,
        **others: object,
    ) -> object:
        return make(dataset, batch_size, pin_memory, False, *more, **others)

    strategy.setup_dataloader = in_order


class BatchFacts(NamedTuple):
    """Metrics of one batch of rollouts, its epoch among them, and the epoch of the next one.

    is_drawn_out: has the epoch no problem left, while groups of it are in flight? paused: those, for
    a checkpoint, where the generator is ahead of the trainer (rollout.partial)."""

    metrics: dict[str, float]
    next_epoch: int
    is_drawn_out: bool = False
    paused: bytes | None = None


class R3SamplesGenerator(PartialSteps, SamplesGenerator):
    """The trainer sets `step`, optimizer steps so far, and `epoch`, 1 for the first pass."""

    _sample_buffer: list[Experience]  # upstream's: what an epoch has sampled beyond its batches

    def __init__(self, *args, config: R3Config, r3: R3, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.config = config
        self.r3 = r3
        self.step = 0
        self.epoch = 1
        self.epoch_of_batch = 1  # the epoch that the last batch came from
        self.prompts = NO_PROMPTS
        self.seconds = 0.0  # of this step, on what R³ adds
        self.states = NO_STATES  # those that this step's batch starts from
        self._contexts: dict[str, Context] = {}  # of this step's reflection prompts
        # of this step, by the label that carries its ids
        self._prefixes: dict[str, Prefix] = {}
        self.before_sampling: Callable[[], None] = lambda: None
        # by today's critic (experience_values.py)
        self.values_of_prefixes: Callable | None = None
        self._order: dict[tuple[str, str], int] = {}
        self._training = False
        self._cut_short = False  # did the budget end the last epoch before its time?
        # response tokens sampled for training since the run began, whatever became of them; others of TOTALS
        self.totals = {GENERATED: 0.0}
        self._occasion = "held out"  # of sampling that is not for training
        self._counts: Counter[str] = Counter()  # since the last step
        self._start_partial()

    @classmethod
    def instead_of(cls, upstream: SamplesGenerator, config: R3Config, r3: R3) -> Self:
        """Make one with the data and the engines of `upstream`."""
        return cls(
            strategy=upstream.strategy,
            prompts_dataloader=upstream.prompts_dataloader,
            eval_dataloader=upstream.eval_dataloader,
            tokenizer=upstream.tokenizer,
            vllm_engines=upstream.vllm_engines,
            config=config,
            r3=r3,
        )

    def generate_samples(self, **generate_kwargs):
        """Sample the rollouts of the next step, group by group, in the order of their prompts.

        Returns, as upstream's (samples_generator.py:89): rows, none at train.max_steps or when the
        token budget is spent; the percentage of groups that dynamic filtering kept, or None;
        prompts taken; is the epoch over?"""
        self.prompts = NO_PROMPTS
        started = time.perf_counter()
        self.states = self.r3.states(
            count=self.config.rollout.batch_size,
            step=self.step,
            values_of=self.values_of_prefixes,
        )
        self.seconds = time.perf_counter() - started
        self.epoch_of_batch = self.epoch
        self._contexts.clear()
        self._prefixes.clear()
        self._order.clear()
        max_steps = self.config.train.max_steps
        if max_steps is not None and self.step >= max_steps:
            return [], None, 0, True
        if self._budget_is_spent() and not self._is_in_flight():
            return [], None, 0, True
        self.before_sampling()
        if self.partial is not None:
            return self._generate_partial(self.partial, **generate_kwargs)
        before = self._counts.copy()
        if getattr(self, "_dataloader_iter", None) is None:
            self._seed_epoch()
        self._training = True
        try:
            rows, pass_rate, consumed, _ = super().generate_samples(**generate_kwargs)
        finally:
            self._training = False
        rows = rows + self._sample_buffer
        self._sample_buffer = []
        # results arrive in order of completion; a run must not depend on it
        rows.sort(key=lambda row: self._order[row.prompts[0], row.labels[0]])
        exhausted = self._dataloader_iter is None
        if exhausted and not self._cut_short:
            self.epoch += 1
        sampled = self._counts - before
        size = self.config.rollout.n_samples_per_prompt
        if pass_rate is not None:
            # upstream's (:118) is rows per prompt
            pass_rate = 100 * len(rows) / size / consumed
        self._counts["r3/filter/dropped_groups"] += (sampled["responses"] - len(rows)) // size
        self._counts["r3/filter/dropped_tokens"] += sampled["generated_tokens"] - num_tokens(
            rows
        )
        kept = self._rows_that_divide(rows)
        self._counts["r3/filter/left_over_groups"] += (len(rows) - len(kept)) // size
        self._counts["r3/filter/left_over_tokens"] += num_tokens(rows) - num_tokens(kept)
        return kept, pass_rate, consumed, exhausted

    def _generate_partial(self, partial, **generate_kwargs):
        """Sample a step that does not wait for its longest responses; returns what generate_samples does."""
        size = self.config.rollout.n_samples_per_prompt
        self._training = True
        try:
            rows, pass_rate, consumed, exhausted = self._sample_partial(
                partial, **generate_kwargs
            )
        finally:
            self._training = False
        if exhausted:
            self.epoch += 1
        kept = self._rows_that_divide(rows)
        self._counts["r3/filter/left_over_groups"] += (len(rows) - len(kept)) // size
        self._counts["r3/filter/left_over_tokens"] += num_tokens(rows) - num_tokens(kept)
        return kept, pass_rate, consumed, exhausted

    @torch.no_grad()
    def generate_held_out(
        self,
        prompts: list[str],
        labels: list[str],
        *,
        asked_to_end: Callable[[], str | None] = lambda: None,
        **generate_kwargs,
    ) -> list[Rollout] | None:
        """Sample every response to these prompts, for no buffer, history or count of tokens.

        Args:
            asked_to_end: Asked every second; a reason stops the sampling.
        Returns: None if it was stopped: a part of the responses measures nothing.

        Upstream's generate_eval_samples (:61) waits for the last of each rollout.batch_size
        prompts, and no one can stop it."""
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        rollouts: list[Rollout] = []
        try:
            waiting = self._dispatch_prompts_to_vllm(
                prompts, labels, images=None, **generate_kwargs
            )
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=ASKS_EVERY_S)
                for responses in ray.get(ready):
                    rows = [
                        self._process_response_into_experience(response, **generate_kwargs)
                        for response in responses
                    ]
                    rollouts += [row.r3_rollout for row in rows]
                if waiting and asked_to_end() is not None:
                    give_up(waiting)
                    return None
        finally:
            if self.args.vllm.enable_sleep:
                batch_vllm_engine_call(self.vllm_engines, "sleep")
        return rollouts

    def collect(self, solved: Iterable[str], **generate_kwargs) -> list[Rollout]:
        """Ask every problem but the solved ones once, round after round, until rollout.collect.share of
        the tokens is spent or each has a success. Returns the successes as imported rows."""
        settings = self.config.rollout
        budget = settings.collect.share * (self.config.train.max_generated_tokens or 0)
        size = settings.batch_size * settings.n_samples_per_prompt
        collected: list[Rollout] = []
        is_solved = set(solved)
        round_number = 0
        waiting = self._unsolved(is_solved)
        while waiting and self.totals[GENERATED] < budget:
            # with seeds each round has its own
            self._occasion = f"collect {round_number}"
            successes = self._collect_batch(waiting[:size], **generate_kwargs)
            collected += successes
            is_solved.update(one.uid for one in successes)
            waiting = waiting[size:]
            if not waiting:
                waiting = self._unsolved(is_solved)
                round_number += 1
        self._occasion = "held out"
        self.totals[COLLECTED] = self.totals[GENERATED]
        return collected

    def _unsolved(self, solved: Container[str]) -> list[str]:
        """Return the uids of the problems without a success."""
        return [uid for uid in self._problems if uid not in solved]

    def _collect_batch(self, uids: Sequence[str], **generate_kwargs) -> list[Rollout]:
        """Ask these problems once, and count the tokens. Returns the successes as imported rows."""
        problems = [self._problems[uid] for uid in uids]
        prompts = [prompt for prompt, _ in problems]
        labels = [label for _, label in problems]
        rollouts = self.generate_held_out(prompts, labels, **generate_kwargs) or []
        self.totals[GENERATED] += sum(one.num_sampled_tokens for one in rollouts)
        return [
            dataclasses.replace(one, context=Context.IMPORTED, origin="collected")
            for one in rollouts
            if one.verdict is Verdict.CORRECT
        ]

    def take_counts(self) -> dict[str, float]:
        """Take the counts of rows sampled, or not trained on, since the last call, for metrics."""
        counts, self._counts = self._counts, Counter()
        keys = (*COUNTS, *(TOOL_COUNTS if self.config.agents.tools else ()))
        return {key: float(counts[key]) for key in keys} | self.totals

    def take_facts(self) -> BatchFacts:
        """Return metrics of the last batch; counts as take_counts."""
        own = {"epoch": float(self.epoch_of_batch), "r3/time/generator_s": self.seconds}
        return BatchFacts(
            self.take_counts() | own | self.prompts.metrics() | self.partial_metrics,
            next_epoch=self.epoch,
            is_drawn_out=self.is_drawn_out,
        )

    def _budget_is_spent(self) -> bool:
        budget = self.config.train.max_generated_tokens
        return budget is not None and self.totals[GENERATED] >= budget

    def _generate_vllm(
        self, dataloader_iter, num_prompts, dynamic_filtering, **generate_kwargs
    ):
        self._cut_short = False
        if dynamic_filtering:  # it may ask for replacements up to the end of the epoch
            dataloader_iter = self._while_budget_lasts(dataloader_iter)
        if self._training:
            num_prompts -= len(self.states.prefixes)  # whose groups take the places of others
        return super()._generate_vllm(
            dataloader_iter, num_prompts, dynamic_filtering, **generate_kwargs
        )

    def _while_budget_lasts(self, items):
        while not self._budget_is_spent():
            try:
                yield next(items)
            except StopIteration:
                return
        self._cut_short = True

    def _rows_that_divide(self, rows: list[Experience]) -> list[Experience]:
        """Return a stock algorithm's short batch at an epoch's end without the groups that would give
        ranks different numbers of rows. R³ and agents add fillers instead (experience_maker.py)."""
        if self.config.algorithm.own_advantages or len(rows) == self.config.rows_per_step:
            return rows
        ranks, most = effective_ranks(self.args), self.config.train.rows_per_update
        size = self.config.rollout.n_samples_per_prompt
        end = len(rows)
        while end % (ranks * num_windows(self.args, num_rows=end, rows_per_update=most)):
            end -= size
        return rows[:end]

    def _seed_epoch(self) -> None:
        """Order an epoch by the seed and the epoch, so that a resumed run finds it again. The
        loader's sampler has a generator of its own, which would continue from epoch to epoch."""
        seed = stable_seed(self.config.train.seed, "epoch", self.epoch)
        torch.manual_seed(seed)
        if self.config.data.order == "shuffled":
            self.prompts_dataloader.sampler.generator.manual_seed(seed)

    def _dispatch_prompts_to_vllm(self, prompts, labels, *, images=None, **generate_kwargs):
        if self._training:
            started = time.perf_counter()
            further = self._further(prompts, labels)
            self.seconds += time.perf_counter() - started
            prompts = prompts + [prompt for prompt, _ in further]
            labels = labels + [label for _, label in further]
            images = None  # text only
            for pair in zip(prompts, labels, strict=True):
                self._order.setdefault(pair, len(self._order))
        # a seed for each request slows a GPU sampler down
        if not (
            self.config.train.deterministic or RECORD in os.environ or PLAYBACK in os.environ
        ):
            return super()._dispatch_prompts_to_vllm(
                prompts, labels, images=images, **generate_kwargs
            )
        # samples_generator.py:234 makes the sampling parameters and knows no seed
        occasion = "step" if self._training else self._occasion
        seed = stable_seed(self.config.train.seed, occasion, self.step)
        params = functools.partial(samples_generator.SamplingParams, seed=seed)
        with patch.multiple(samples_generator, SamplingParams=params):
            return super()._dispatch_prompts_to_vllm(
                prompts, labels, images=images, **generate_kwargs
            )

    def _further(self, prompts: list[str], labels: list[str]) -> list[tuple[str, str]]:
        """(prompt, label) of groups besides the plain: from a state, then reflection groups."""
        found = [self._problems[uid] for uid in self.states.uids]
        prompts, labels = (
            prompts + [prompt for prompt, _ in found],
            labels + [label for _, label in found],
        )
        records = [Label.from_json(label) for label in labels]
        first = len(records) - len(found)
        # the plain prompts are the loader's
        loaded = dict(zip(map(id, records), prompts, strict=True))
        render = SimpleNamespace(
            plain=lambda problem: loaded[id(problem)], reflection=self._render.reflection
        )
        self.prompts = self.r3.prompts(
            records[:first],
            step=self.step,
            epoch=self.epoch,
            render=render,
            states=self.states,
            of_states=records[first:],
        )
        further = []
        for asked in self.prompts:
            label = labels[asked.place]
            if asked.prefix is not None:  # the label carries the ids to the executor
                label = dataclasses.replace(
                    records[asked.place], prefix=asked.prefix.ids.tolist()
                ).to_json()
                self._prefixes[label] = asked.prefix
            if asked.context in (Context.REFLECTION, Context.HINT):
                self._contexts[asked.prompt] = asked.context
            if asked.context is not Context.PLAIN:
                further.append((asked.prompt, label))
        return further

    @functools.cached_property
    def _problems(self) -> dict[str, tuple[str, str]]:
        """uid -> (prompt, label) of all training problems; a state's need not be the step's."""
        data = self.prompts_dataloader.dataset
        return {
            Label.from_json(label).uid: (prompt, label)
            for prompt, label in zip(data.prompts, data.labels, strict=True)
        }

    @functools.cached_property
    def _render(self) -> PromptMaker:
        return work_of(self.config).prompts(self.config, self.tokenizer)

    # ── records ──

    def _process_response_into_experience(self, response, **generate_kwargs) -> Experience:
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        prefix = self._prefixes.get(response["label"])
        experience.r3_rollout = rollout_from_response(
            response,
            context=Context.PREFIX
            if prefix
            else self._contexts.get(response["prompt"], Context.PLAIN),
            step=self.step
            if (sampled_by := response["r3"].get("policy_step")) is None
            else sampled_by,
            epoch=self.epoch,
            prefix_logprobs=prefix.logprobs if prefix else None,
        )
        experience.r3_seconds = response["r3"]["seconds"]
        # a turn's own
        experience.r3_prompt = response["r3"].get("turn_prompt", response["prompt"])
        experience.r3_payload = response["r3"]
        if self.config.rollout.routing_replay:
            # upstream's field for what else a row's pass needs; nothing of it is logged or padded
            experience.mm_train_inputs = [experts_tensor(experience.r3_rollout.experts)]
            del response["r3"]["experts"]
        # upstream's is from the first action to the last, given tokens between them included
        experience.response_length = experience.action_mask.sum(-1)
        if experience.scores is not None:  # dynamic filtering looks at verdicts, not credit
            experience.scores = torch.tensor(
                [float(experience.r3_rollout.verdict is Verdict.CORRECT)]
            )
        if self._training:
            if self.partial is None:  # else counted in the step that sampled them
                self._count_tokens(experience.r3_rollout.num_sampled_tokens)
            self._counts["responses"] += 1
            self._counts.update(response["r3"].get("tools", {}))
            self._counts[GIVEN_UP] += bool(response["r3"].get("fault"))
            self._counts[REPETITION] += response["r3"]["finish_reason"] == "repetition"
        return experience


def give_up(waiting: list[ray.ObjectRef]) -> None:
    """Cancel calls of the engines, and wait until they have ended, for GIVING_UP_S at most.

    The engine then aborts their requests (vllm/v1/engine/async_llm.py, `generate`)."""
    for ref in waiting:
        ray.cancel(ref)
    ray.wait(waiting, num_returns=len(waiting), timeout=GIVING_UP_S)


def num_tokens(rows: list[Experience]) -> int:
    """Response tokens of these rows that were sampled."""
    return sum(row.r3_rollout.num_sampled_tokens for row in rows)


def stable_seed(*parts) -> int:
    """Return a seed that is the same on every machine and in every process; below 2**56, which torch and vLLM take."""
    return int.from_bytes(
        hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7], "big"
    )
