"""Groups that start in the middle of a stored response: which states, and how far in (docs/method.md, section 10).

A *state* is a prefix of a stored response to a hard problem. n continuations of it are a group of their own: its mean is
the baseline, and only the sampled tokens are trained, so nothing in it is off-policy. RRL (core/states.py) finds its states
with PPO's critic; without one the value of a state is the success rate of its continuations, and what follows is ours:

    from a success   the cut starts late and moves backwards while the continuations succeed (a reverse curriculum)
    from failures    the state with the largest draw from its posterior (Thompson sampling)

Pure: tokens are counted, never decoded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from r3_openrlhf.method.core.checks import finite_value, whole_number
from r3_openrlhf.method.types import CutRule

PRIOR = 1.0  # Beta(1, 1) before the first continuation

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuations:
    """What became of the graded continuations of one state."""

    tries: int = 0
    successes: int = 0

    @property
    def posterior(self) -> tuple[float, float]:
        """(a, b) of the Beta posterior of their success rate."""
        return PRIOR + self.successes, PRIOR + self.tries - self.successes

    @property
    def mean(self) -> float:
        """Posterior mean of the success rate: a / (a + b)."""
        right, wrong = self.posterior
        return right / (right + wrong)


def cut_points(
    response_ids: Sequence[int] | np.ndarray,
    logprobs: Sequence[float] | np.ndarray,
    *,
    rule: CutRule | str,
    count: int,
    max_prefix: int,
    delimiters: Collection[int] = (),
) -> list[int]:
    """Lengths of the prefixes of a response that are its states, at most `count` of them, ascending.

        fractions    i T / (count + 1) for i = 1 .. count, rounded down: 25, 50 and 75% for a count of 3
        uncertain    before the tokens that were least likely when they were sampled
        delimiters   after tokens of `delimiters` (ids of tokens that end a step); of too many, spread evenly

    At least one token is before a cut and one after it, and a prefix has at most `max_prefix` tokens.

    Args:
        response_ids: [T]
        logprobs: [T], of the sampled tokens, natural log

    Raises:
        ValueError: a rule that does not exist, lengths that differ, a count below 1.
    """
    rule = CutRule.checked("rule", rule)
    count = whole_number("count", count, minimum=1)
    length = len(response_ids)
    if len(logprobs) != length:
        raise ValueError(f"{length} tokens but {len(logprobs)} log-probs")
    last = min(length - 1, max_prefix)
    if rule is CutRule.FRACTIONS:
        found = {length * i // (count + 1) for i in range(1, count + 1)}
        return sorted(cut for cut in found if 1 <= cut <= last)
    if rule is CutRule.UNCERTAIN:
        inside = range(1, last + 1)
        return sorted(sorted(inside, key=lambda cut: (float(logprobs[cut]), cut))[:count])
    ends = [place + 1 for place in range(last) if int(response_ids[place]) in delimiters]
    return [ends[i] for i in sorted({len(ends) * i // (count + 1) for i in range(1, count + 1)})] if ends else []


def state_of_success(
    states: Sequence[StateT], value: Callable[[StateT], Continuations], *, easy: float
) -> StateT | None:
    """The state of a success to continue from: the last one, and an earlier one for each that is easy.

    A state is easy when the posterior mean of its continuations' success rate is `easy` or more. None without states.

    states: prefixes of one response, the shortest first. ValueError: `easy` outside (0, 1].
    """
    if not 0 < finite_value("easy", easy) <= 1:
        raise ValueError(f"easy is {easy}; it must be above 0 and at most 1")
    for state in reversed(states):
        if value(state).mean < easy:
            return state
    return states[0] if states else None


def state_of_failures(
    states: Sequence[StateT], value: Callable[[StateT], Continuations], *, rng: random.Random
) -> StateT | None:
    """The state of stored failures to continue from, by Thompson sampling: the largest draw from
    Beta(1 + successes, 1 + failures). None without states."""
    if not states:
        return None
    draws = [rng.betavariate(*value(state).posterior) for state in states]
    return states[draws.index(max(draws))]
