"""Paused responses (rollout.partial) in the lab, whose responses take no time of their own.

Each response is given a pace, lognormal over responses, as lengths are at full size: by `benchmarks/partial_rollouts.py`,
5% of them are at the limit. The loop that decides what is paused and what is trained is the stack's own
(r3_openrlhf/stack/partial_rollouts.py). Tokens after a pause are sampled by the weights of that step, behind the tokens
before it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.stack.partial_rollouts import (
    Answer,
    Drawn,
    Group,
    PartialSampler,
    Piece,
    Response,
    Sample,
    SampledStep,
    num_sampled,
    run_lengths,
)
from research import sampling
from research.loop import Lab, Sampled

SIGMA = 1.0  # of the logarithm of the iterations that a response takes
SLOWEST = 1.645  # standard deviations of the slowest 5%, which are at the limit of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPiece(Piece):
    """A piece with the entropies of its tokens, float32 [T], nats."""

    entropies: np.ndarray


@dataclass(slots=True)
class _Running:
    """A response in a step: what its weights would add to it, and when."""

    before: list[LabPiece]
    rest: sampling.Sample  # all tokens that are left
    pace: float  # iterations a token
    begin: float

    @property
    def end(self) -> float:
        return self.begin + self.pace * len(self.rest.response_ids)

    def tokens_at(self, clock: float) -> int:
        """Return how many of the tokens that are left are there at this iteration."""
        return min(int((clock - self.begin) / self.pace), len(self.rest.response_ids))


class LabEngines:
    """One engine with room for all, on the clock of played iterations (the protocol `Engines`).

    All that is left of a response is sampled as soon as it goes on. A pause throws away what would not be there yet:
    the distribution of a token does not depend on those after it."""

    def __init__(self, lab: PartialLab) -> None:
        self.lab = lab
        self.clock = 0.0
        self._asked: list[Group] = []  # nothing of them is sampled yet
        self._groups: dict[int, Group] = {}
        self._running: dict[int, dict[int, _Running]] = {}  # of each group, by place

    def ask(self, group: Group) -> None:
        """Begin with a group, or go on with it."""
        self._asked.append(group)

    def answers(self) -> list[Answer]:
        """Iterate until a group is whole."""
        self._sample_asked()
        ends = {
            number: max(running.end for running in rows.values())
            for number, rows in self._running.items()
        }
        self.clock = min(ends.values())
        return [self._answer(number) for number, end in ends.items() if end <= self.clock]

    def pause(self) -> list[Answer]:
        """End the sampling of all others."""
        self._sample_asked()
        return [self._answer(number) for number in list(self._running)]

    def _sample_asked(self) -> None:
        rows = [
            (group, place)
            for group in self._asked
            for place, sample in enumerate(group.samples)
            if isinstance(sample, list)
        ]
        by_length: dict[int, list[tuple[Group, int]]] = {}
        for group, place in rows:
            by_length.setdefault(num_sampled(group.samples[place]), []).append((group, place))
        for length, of_length in sorted(by_length.items()):
            self._sample_rows(of_length, num_before=length)
        self._asked = []

    def _sample_rows(self, rows: list[tuple[Group, int]], *, num_before: int) -> None:
        prompts = [
            np.concatenate(
                [self.lab.encode(group.prompt), _ids_of(pieces_of(group.samples[place]))]
            )
            for group, place in rows
        ]
        rollout = self.lab.config.rollout
        rests = sampling.sample(
            self.lab.model,
            prompts,
            n=1,
            max_new_tokens=rollout.max_new_tokens - num_before,
            temperature=rollout.temperature,
            eos=self.lab.tokenizer.eos_token_id,
            generator=self.lab.generator,
        )
        for (group, place), rest in zip(rows, rests, strict=True):
            self._groups[group.number] = group
            self._running.setdefault(group.number, {})[place] = _Running(
                before=pieces_of(group.samples[place]),
                rest=rest,
                pace=self.pace_of(group.number, place),
                begin=self.clock,
            )

    def pace_of(self, number: int, place: int) -> float:
        """Return the iterations that a token of this response takes; the slowest 5% take 1 and more."""
        seed = [self.lab.config.train.seed, number, place]
        drawn = np.random.default_rng(seed).normal(-SLOWEST * SIGMA, SIGMA)
        return min(float(np.exp(drawn)), 1.0)

    def _answer(self, number: int) -> Answer:
        group, rows = self._groups.pop(number), self._running.pop(number)
        samples: list[Sample | None] = [None] * len(group.samples)
        for place, running in rows.items():
            samples[place] = self._sample_of(running)
        return group, samples

    def _sample_of(self, running: _Running) -> Sample:
        rest = running.rest
        count = running.tokens_at(self.clock)
        is_whole = running.end <= self.clock
        if is_whole:
            count = len(rest.response_ids)
        pieces = list(running.before)
        if count:
            piece = LabPiece(
                ids=rest.response_ids[:count].tolist(),
                logprobs_TK=rest.logprobs[:count, None],
                policy_step=self.lab.step,
                entropies=rest.entropies[:count],
            )
            pieces.append(piece)
        if is_whole:
            return whole_response(pieces, truncated=rest.truncated)
        return list[Piece](pieces)


def pieces_of(sample: Sample) -> list[LabPiece]:
    """Return the pieces of a response that is not whole."""
    assert isinstance(sample, list)
    return cast("list[LabPiece]", sample)


def response_of(sample: Sample) -> Response:
    """Return a response that is whole."""
    assert not isinstance(sample, list)
    return sample


def _ids_of(pieces: list[LabPiece]) -> np.ndarray:
    return np.array([token for piece in pieces for token in piece.ids], dtype=np.int32)


def whole_response(pieces: list[LabPiece], *, truncated: bool) -> Response:
    """Return a response of these pieces: what `Group` counts, and what a rollout is made of."""
    ids = _ids_of(pieces)
    return {
        "action_ranges": [(0, len(ids))],
        "ids": ids,
        "logprobs": np.concatenate([piece.logprobs_TK[:, 0] for piece in pieces]),
        "entropies": np.concatenate([piece.entropies for piece in pieces]),
        "truncated": truncated,
        "pieces": tuple(run_lengths(pieces, given=0)),
    }


class PartialLab(Lab):
    """The loop with paused responses. What is in flight when the run ends is not trained; its tokens count."""

    pauses = True

    def __init__(self, config: R3Config, *, model_dir: str | None = None) -> None:
        check_partial(config)
        super().__init__(config, model_dir=model_dir)
        rollout = config.rollout
        self.sampler = PartialSampler(
            batch_size=rollout.batch_size,
            partial=rollout.partial,
            max_pauses=rollout.max_pauses,
        )
        self.engines = LabEngines(self)

    def _batches(self, labels: list[Label]) -> Iterator[list[Label]]:
        """Yield nothing for each step until all problems are drawn and trained: sample_step draws them."""
        self._further = deque(self._problems(labels))
        while self._further or self.sampler.groups:
            yield []

    def _problems(self, labels: list[Label]) -> Iterator[tuple[int, Label]]:
        """Yield (epoch, problem): every problem once an epoch, in an order of the seed and the epoch."""
        for epoch in range(1, self.config.train.num_epochs + 1):
            order = list(labels)
            random.Random(f"{self.config.train.seed}/epoch/{epoch}").shuffle(order)
            for label in order:
                yield epoch, label

    def sample_step(
        self, labels: list[Label], r3: R3
    ) -> tuple[list[Sampled], dict[str, float]]:
        """Sample until the groups of a step are whole, and pause the others."""
        del labels
        step = self.sampler.sample(
            self.engines,
            draw=lambda count: self._draw(count, r3),
            keeps=lambda group: True,
            most=None,
        )
        self.tokens += step.tokens
        sampled = [
            self._rollout_of(group, response_of(response))
            for group in step.trained
            for response in group.samples
        ]
        return sampled, {"partial/paused": float(step.paused), **ages(step, now=self.step)}

    def _draw(self, count: int, r3: R3) -> Drawn:
        labels: list[Label] = []
        while self._further and len(labels) < count:
            self.epoch, label = self._further.popleft()
            labels.append(label)
        prompts = r3.prompts(labels, step=self.step, epoch=self.epoch, render=self.render)
        groups = []
        for prompt in prompts:
            self._asked[prompt.problem.uid] = prompt.problem
            groups.append(
                Group(
                    number=-1,
                    prompt=prompt.prompt,
                    label=prompt.problem.uid,
                    context=prompt.context,
                    is_plain=prompt.context is Context.PLAIN,
                    samples=[[] for _ in range(self.config.rollout.n_samples_per_prompt)],
                )
            )
        return Drawn(groups, is_all=not self._further)

    def _rollout_of(self, group: Group, response: Response) -> Sampled:
        drawn = sampling.Sample(
            prompt=group.number,
            response_ids=response["ids"],
            logprobs=response["logprobs"],
            entropies=response["entropies"],
            truncated=response["truncated"],
        )
        sampled = self._graded(
            drawn, self._asked[group.label], group.prompt, group.context, number=group.number
        )
        pieces = response["pieces"]
        sampled.rollout = replace(
            sampled.rollout,
            policy_step=pieces[0][1],
            pieces=pieces if len(pieces) > 1 else (),
        )
        return sampled

    def mixed_batch(self, sampled: list[Sampled], r3: R3) -> MixedBatch:
        """Take the ratios of paused responses against the log-probs of the weights that sampled them,
        as the stack does."""
        batch = super().mixed_batch(sampled, r3)
        for row in batch.rows:
            if not row.recalled and row.rollout.policy_step < self.step:
                row.old_logprobs = row.rollout.response_logprobs
        return batch


def ages(step: SampledStep, *, now: int) -> dict[str, float]:
    """Return the mean age of the tokens that a step trains, in optimizer steps, and the largest."""
    runs = [
        run
        for group in step.trained
        for sample in group.samples
        for run in response_of(sample)["pieces"]
    ]
    tokens = sum(count for count, _ in runs)
    return {
        "partial/mean_age": sum(count * (now - sampled) for count, sampled in runs) / tokens,
        "partial/max_age": float(max(now - sampled for _, sampled in runs)),
    }


def check_partial(config: R3Config) -> None:
    """ConfigError for what the lab does not pause; the stack does."""
    for is_so, why in (
        (config.algorithm.filters_groups, f"algo is {config.algo}, which drops groups"),
        (config.reflection.enabled, "reflection.enabled is true"),
    ):
        if is_so:
            raise ConfigError(
                f"rollout.partial is {config.rollout.partial} and {why}; the lab pauses neither dropped nor reflecting groups, "
                "so use r3 train, or rollout.partial=0"
            )
