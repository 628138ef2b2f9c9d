"""Which problems of a batch get a group that starts in the middle of a stored response, and where it starts."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from r3_openrlhf.core.prefix import Continuations, cut_points, state_of_failures, state_of_success
from r3_openrlhf.history.codec import state_digest
from r3_openrlhf.problems.reflection_prompts import drawn_hard_problems
from r3_openrlhf.problems.training_file import Label
from r3_openrlhf.types import Context, CutRule, RecallOrder, Rollout, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r3_openrlhf.config import R3Config
    from r3_openrlhf.history.store import HistoryStore

CONTEXTS = (Context.PLAIN, Context.PREFIX)  # responses that began behind the plain prompt


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first tokens of a stored response. ids: int32 [n]; logprobs: float32 [n], as they were once sampled with."""

    ids: np.ndarray
    logprobs: np.ndarray


def step_delimiters(config: R3Config, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of the tokens whose text has the end of a line; empty where exploration.prefix.cuts asks for none."""
    settings = config.exploration.prefix
    if not settings.enabled or CutRule.checked("exploration.prefix.cuts", settings.cuts) is not CutRule.DELIMITERS:
        return frozenset()
    return frozenset(token for token in range(len(tokenizer)) if "\n" in tokenizer.decode([token]))


def prefixes(
    labels: Sequence[Label],
    *,
    history: HistoryStore,
    config: R3Config,
    step: int,
    epoch: int,
    delimiters: Collection[int],
) -> dict[int, Prefix]:
    """Place in `labels` -> where its additional group starts, for the hard problems that have a state to start from.

    Hard as in ISR, by exploration.prefix.threshold. Nothing where it is off, and before exploration.prefix.first_epoch.
    A function of the store, train.seed and `step`.
    """
    settings = config.exploration.prefix
    if not settings.enabled or epoch < settings.first_epoch:
        return {}
    _, places = drawn_hard_problems(
        labels,
        history=history,
        threshold=settings.threshold,
        max_per_step=settings.max_per_step,
        rng=random.Random(f"{config.train.seed}/prefix/{step}"),
    )
    found = {
        place: prefix_of(labels[place].uid, history=history, config=config, step=step, delimiters=delimiters)
        for place in places
    }
    return {place: prefix for place, prefix in found.items() if prefix is not None}


def prefix_of(
    uid: str, *, history: HistoryStore, config: R3Config, step: int, delimiters: Collection[int]
) -> Prefix | None:
    """The state of one problem to go on from: of the stored success that was gone on from most often, else of stored
    failures. None: nothing is stored that can be cut."""
    settings = config.exploration.prefix
    known = history.continuations(uid)

    def value(prefix: Prefix) -> Continuations:
        return known.get(state_digest(prefix.ids), Continuations())

    def stored(verdict: Verdict, *, k: int, order: RecallOrder) -> list[list[Prefix]]:
        found = history.recall(
            uid,
            verdict,
            k=k,
            step=step,
            max_policy_lag=config.replay.max_policy_lag,
            order=order,
            contexts=CONTEXTS,
        )
        return [states for one in found if (states := _states(one.rollout, config, delimiters))]

    successes = stored(
        Verdict.CORRECT, k=config.history.max_per_problem_and_verdict, order=RecallOrder.NEWEST
    )  # the newest first, so that of equals it is the newest
    if successes:
        states = max(successes, key=lambda states: sum(value(state).tries for state in states))
        return state_of_success(states, value, easy=settings.easy)
    if not settings.from_failures:
        return None
    failures = stored(Verdict.WRONG, k=settings.num_failures, order=RecallOrder.UNIFORM)
    rng = random.Random(f"{config.train.seed}/prefix/{step}/{uid}")
    every = [state for states in failures for state in states]
    return state_of_failures(every, value, choice=settings.choice, rng=rng)


def _states(rollout: Rollout, config: R3Config, delimiters: Collection[int]) -> list[Prefix]:
    settings = config.exploration.prefix
    cuts = cut_points(
        rollout.response_ids,
        rollout.response_logprobs,
        rule=settings.cuts,
        count=settings.num_cuts,
        max_prefix=config.rollout.max_new_tokens - 1,
        delimiters=delimiters,
    )
    return [Prefix(rollout.response_ids[:cut], rollout.response_logprobs[:cut]) for cut in cuts]
