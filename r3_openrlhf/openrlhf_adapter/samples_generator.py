"""Draws prompts, adds reflection prompts for hard problems (ISR), and keeps a record of every rollout.

Answers trainer/ppo_utils/samples_generator.py: it has no problem id, returns groups in order of completion, and
slices its output to batch_size * n_samples_per_prompt rows (:128-130), which would push the additional groups of
reflection prompts into the next step.
"""

from __future__ import annotations

import functools
import hashlib
import time
from typing import TYPE_CHECKING

import torch
from openrlhf.trainer.ppo_utils import samples_generator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from r3_openrlhf.config import R3Config
from r3_openrlhf.data import Label
from r3_openrlhf.openrlhf_adapter.convert import rollout_from_response
from r3_openrlhf.reflection_prompts import hard_problems, reflection_prompt
from r3_openrlhf.types import Context

if TYPE_CHECKING:
    from r3_openrlhf.history.store import HistoryStore


class R3SamplesGenerator(SamplesGenerator):
    """`step` and `epoch` are set by the trainer: optimizer steps done so far, and 1 for the first pass."""

    def __init__(self, *args, config: R3Config, history: HistoryStore | None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.config = config
        self.history = history
        self.step = 0
        self.epoch = 1
        self.epoch_of_batch = 1  # the epoch that the last batch came from
        self.hard_prompts = 0
        self.reflections_without_room = 0
        self.seconds = 0.0  # of this step, on what R³ adds
        self._reflection_prompts: set[str] = set()
        self._order: dict[tuple[str, str], int] = {}
        self._training = False

    def generate_samples(self, **generate_kwargs):
        self.hard_prompts = self.reflections_without_room = 0
        self.seconds = 0.0
        self.epoch_of_batch = self.epoch
        self._reflection_prompts.clear()
        self._order.clear()
        max_steps = self.config.train.max_steps
        if max_steps is not None and self.step >= max_steps:
            return [], None, 0, True
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
        if exhausted:
            self.epoch += 1
        return rows, pass_rate, consumed, exhausted

    def _seed_epoch(self) -> None:
        """The order of an epoch is a function of the seed and the epoch, so that a resumed run finds it again. The
        loader's sampler has a generator of its own, which would go on from epoch to epoch."""
        seed = stable_seed(self.config.train.seed, "epoch", self.epoch)
        torch.manual_seed(seed)
        self.prompts_dataloader.sampler.generator.manual_seed(seed)

    def _dispatch_prompts_to_vllm(self, prompts, labels, *, images=None, **generate_kwargs):
        if self._training:
            started = time.perf_counter()
            reflections = self._reflections(labels)
            self.seconds += time.perf_counter() - started
            prompts = prompts + [prompt for prompt, _ in reflections]
            labels = labels + [label for _, label in reflections]
            images = None  # text only
            for pair in zip(prompts, labels, strict=True):
                self._order.setdefault(pair, len(self._order))
        if not self._seed_needed():
            return super()._dispatch_prompts_to_vllm(prompts, labels, images=images, **generate_kwargs)
        # samples_generator.py:234 makes the sampling parameters and knows no seed
        seed = stable_seed(self.config.train.seed, "step", self.step if self._training else -1)
        params = samples_generator.SamplingParams
        samples_generator.SamplingParams = functools.partial(params, seed=seed)
        try:
            return super()._dispatch_prompts_to_vllm(prompts, labels, images=images, **generate_kwargs)
        finally:
            samples_generator.SamplingParams = params

    def _seed_needed(self) -> bool:
        """A seed for each request slows a GPU sampler down, so only where it is asked for."""
        return self.config.train.deterministic or bool(self.config.rollout.record or self.config.rollout.playback)

    # ── ISR ──

    def _reflections(self, labels: list[str]) -> list[tuple[str, str]]:
        """(prompt, label) of one reflection group for each hard problem of the batch (METHOD section 5)."""
        settings = self.config.reflection
        if not settings.enabled or self.epoch < settings.first_epoch or self.history is None:
            return []
        records = [Label.from_json(label) for label in labels]
        self.hard_prompts, places = hard_problems(records, history=self.history, config=self.config, step=self.step)
        reflections = []
        for place in places:
            prompt = reflection_prompt(
                records[place],
                history=self.history,
                config=self.config,
                tokenizer=self.tokenizer,
                step=self.step,
            )
            if prompt is None:
                self.reflections_without_room += 1
                continue
            self._reflection_prompts.add(prompt)
            reflections.append((prompt, labels[place]))
        return reflections

    # ── records ──

    def _process_response_into_experience(self, response, **generate_kwargs) -> Experience:
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        reflection = response["prompt"] in self._reflection_prompts
        experience.r3_rollout = rollout_from_response(
            response,
            context=Context.REFLECTION if reflection else Context.PLAIN,
            step=self.step,
            epoch=self.epoch,
            peak_fraction=self.config.ranking.peak_fraction,
        )
        experience.r3_seconds = response["r3"]["seconds"]
        return experience


def stable_seed(*parts) -> int:
    """The same on every machine and in every process; below 2**56, which torch and vLLM take."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7], "big")
