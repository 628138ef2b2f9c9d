"""Steps that do not wait for their longest responses (rollout.partial).

A step has more groups in flight than it trains. When as many as it trains are whole, the engines
pause what is unfinished. Its tokens stay, with their log-probs and the policy step of each piece,
and go on in the next step, first in line.

Two laws keep short responses from being trained more often than long ones. A group is trained when
it is whole, never its early finishers alone. And every group that is drawn is trained: an epoch, and
a run with train.max_steps or a budget of tokens, end when nothing is in flight any more.

No OpenRLHF and no Ray in here: benchmarks/partial_rollouts.py plays the same loop on made-up engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from r3_openrlhf.method.types import Context

PAUSED = "paused"  # in the place of a finish reason
Response = dict[str, Any]  # as response_of makes it (convert.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive tokens of a response that the same weights sampled."""

    ids: list[int]
    logprobs_TK: np.ndarray  # float32 [T, 1 + k]: of the sampled token, then of the likeliest
    policy_step: int  # optimizer steps of the weights


# of each response of a group: whole, or its pieces so far
Sample = Response | list[Piece]


def num_sampled(sample: Sample) -> int:
    """Return the number of tokens that were sampled of a response, whole or not."""
    if isinstance(sample, list):
        return sum(len(piece.ids) for piece in sample)
    return sum(end - begin for begin, end in sample["action_ranges"])


def run_lengths(pieces: Sequence[Piece], *, given: int) -> list[tuple[int, int]]:
    """Return (tokens, policy step of the weights that sampled them) of a response, in order.

    given: tokens before the first piece, which count with it. At least one piece."""
    runs: list[tuple[int, int]] = []
    for piece in pieces:
        if runs and runs[-1][1] == piece.policy_step:
            runs[-1] = (runs[-1][0] + len(piece.ids), piece.policy_step)
        else:
            runs.append((len(piece.ids), piece.policy_step))
    runs[0] = (runs[0][0] + given, runs[0][1])
    return runs


@dataclass(slots=True, kw_only=True)
class Group:
    """The responses to one prompt, from the draw of the prompt to the step that trains them.

    Attributes:
        number: groups are numbered in the order in which they are drawn.
        is_plain: drawn from the problems; False: added to a drawn one (reflection).
        samples: of each response what there is so far.
        pauses: steps at whose end it was not whole."""

    number: int
    prompt: str
    label: str
    context: Context
    is_plain: bool
    samples: list[Sample]
    pauses: int = 0

    @property
    def is_whole(self) -> bool:
        """True if no response is unfinished."""
        return not any(isinstance(sample, list) for sample in self.samples)

    @property
    def num_unfinished(self) -> int:
        """Responses that are unfinished."""
        return sum(isinstance(sample, list) for sample in self.samples)

    @property
    def num_tokens(self) -> int:
        """Tokens that were sampled of all of its responses."""
        return sum(map(num_sampled, self.samples))

    def take(self, samples: Sequence[Sample | None]) -> int:
        """Keep what engines made of the responses (None: as it was). Returns the tokens they sampled."""
        before = self.num_tokens
        for place, sample in enumerate(samples):
            if sample is not None:
                self.samples[place] = sample
        return self.num_tokens - before


Answer = tuple[Group, Sequence[Sample | None]]


class Engines(Protocol):
    """Sample the unfinished responses of groups. Who is asked first goes first."""

    def ask(self, group: Group) -> None:
        """Begin with a group, or go on with it."""

    def answers(self) -> list[Answer]:
        """Wait until at least one of the groups asked is whole; return those."""

    def pause(self) -> list[Answer]:
        """End the sampling of all other groups asked; return what there is of them."""


class Drawn(NamedTuple):
    """New groups, and whether the epoch has no problem left."""

    groups: list[Group]
    is_all: bool


@dataclass(slots=True)
class SampledStep:
    """Groups that a step trains, in the order of their draw, and those that it drops; all are whole.

    tokens: sampled in this step, for whatever group. paused: unfinished responses at its end."""

    trained: list[Group] = field(default_factory=list)
    dropped: list[Group] = field(default_factory=list)
    tokens: int = 0
    paused: int = 0


class PartialSampler:
    """Holds what is in flight between steps.

    Args:
        batch_size: plain groups of a step.
        partial: plain groups in flight beyond these, as a share of batch_size; above 0.
        max_pauses: a group that was paused so often is waited for."""

    def __init__(self, *, batch_size: int, partial: float, max_pauses: int) -> None:
        self.batch_size = batch_size
        self.in_flight = batch_size + math.ceil(partial * batch_size)
        self.max_pauses = max_pauses
        self.groups: list[Group] = []  # drawn and not trained yet
        self.is_drawn_out = False  # has the epoch no problem left?
        self.num_drawn = 0

    def sample(
        self,
        engines: Engines,
        *,
        draw: Callable[[int], Drawn],
        keeps: Callable[[Group], bool],
        most: int | None,
    ) -> SampledStep:
        """Sample until a step's groups are whole, and pause the others.

        Args:
            draw: returns this many new plain groups, or fewer, with the groups that belong to them.
            keeps: False: a whole group is dropped and another one drawn (dynamic sampling).
            most: plain groups that may be in flight at most: all that the run will still train."""
        step = SampledStep()
        for group in self.groups:
            if not group.is_whole:
                engines.ask(group)
        self._draw(engines, draw, most)
        while not self._is_enough():
            for group, samples in engines.answers():
                self._take(group, samples, step, keeps)
            self._draw(engines, draw, most)
        for group, samples in engines.pause():
            self._take(group, samples, step, keeps)
        step.trained = self._trained()
        numbers = {group.number for group in step.trained}
        self.groups = [group for group in self.groups if group.number not in numbers]
        for group in self.groups:
            group.pauses += not group.is_whole
            step.paused += group.num_unfinished
        return step

    def _plain(self) -> list[Group]:
        return [group for group in self.groups if group.is_plain]

    def _draw(self, engines: Engines, draw: Callable[[int], Drawn], most: int | None) -> None:
        wanted = self.in_flight if most is None else min(self.in_flight, most)
        count = wanted - len(self._plain())
        if count <= 0 or self.is_drawn_out:
            return
        drawn = draw(count)
        self.is_drawn_out = drawn.is_all
        for group in drawn.groups:
            group.number = self.num_drawn
            self.num_drawn += 1
            self.groups.append(group)
            engines.ask(group)

    def _take(
        self,
        group: Group,
        samples: Sequence[Sample | None],
        step: SampledStep,
        keeps: Callable[[Group], bool],
    ) -> None:
        step.tokens += group.take(samples)
        if group.is_whole and not keeps(group):
            self.groups.remove(group)
            step.dropped.append(group)

    def _is_enough(self) -> bool:
        unfinished = [group for group in self.groups if not group.is_whole]
        if not unfinished:
            return True
        plain = self._plain()
        if len(plain) <= self.batch_size:  # nothing is left to draw: the last step waits
            return False
        if any(group.pauses >= self.max_pauses for group in unfinished):
            return False
        return sum(group.is_whole for group in plain) >= self.batch_size

    def _trained(self) -> list[Group]:
        """Choose the whole groups of a step: as many plain ones, drawn first, and all others."""
        whole = [group for group in self.groups if group.is_whole]
        plain = [group for group in whole if group.is_plain][: self.batch_size]
        others = [group for group in whole if not group.is_plain]
        return sorted([*plain, *others], key=lambda group: group.number)
