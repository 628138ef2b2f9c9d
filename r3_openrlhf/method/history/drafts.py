"""One step's rollouts, checked, duplicates merged, in an order free of arrival. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from r3_openrlhf.method.history.codec import digest
from r3_openrlhf.method.history.trajectories import encoded_turns
from r3_openrlhf.method.types import Context, PromisingState, Rollout, Verdict

# What the file holds instead of the names.
CONTEXT_CODES = {Context.PLAIN: 0, Context.REFLECTION: 1, Context.PREFIX: 2, Context.IMPORTED: 3, Context.HINT: 4}
VERDICT_CODES = {Verdict.CORRECT: 0, Verdict.WRONG: 1, Verdict.UNGRADED: 2}
CONTEXTS = {code: context for context, code in CONTEXT_CODES.items()}
VERDICTS = {code: verdict for verdict, code in VERDICT_CODES.items()}


@dataclass(frozen=True, slots=True)
class Draft:
    """A row to be written: one response, sampled `samples` times in this step."""

    rollout: Rollout  # the sample that is kept
    prompt_digest: bytes
    response_digest: bytes
    content: bytes
    samples: int
    reward_sum: float
    turns: bytes | None = None  # of a whole trajectory
    state: PromisingState | None = None


def merge_duplicates(rollouts: Iterable[Rollout]) -> list[Draft]:
    """Graded rollouts as drafts, ordered by uid, verdict, context and content.

    Duplicates have the same uid, context, prompt, response and verdict. The sample of the newest
    weights is kept; among equals a fixed order of their contents decides, so that the choice does
    not depend on arrival. The rollouts come from `read_rollouts` (method/values.py).
    """
    same: dict[tuple[Any, ...], list[Draft]] = {}
    for rollout in rollouts:
        draft = _read(rollout)
        same.setdefault((rollout.uid, rollout.verdict, rollout.context, draft.content), []).append(draft)
    ordered = sorted(same, key=lambda key: (key[0], VERDICT_CODES[key[1]], CONTEXT_CODES[key[2]], key[3]))
    return [_merge(same[key]) for key in ordered]


def _read(rollout: Rollout) -> Draft:
    prompt_digest = digest(rollout.prompt_ids.tobytes())
    response_digest = digest(rollout.response_ids.tobytes())
    turns = encoded_turns(rollout)
    context, verdict = rollout.context.value.encode(), rollout.verdict.value.encode()
    return Draft(
        rollout=rollout,
        prompt_digest=prompt_digest,
        response_digest=response_digest,
        content=digest(context, prompt_digest, response_digest, verdict, *([turns] if turns else [])),
        samples=1,
        reward_sum=rollout.graded_reward,
        turns=turns,
        state=rollout.state,
    )


def _merge(drafts: Sequence[Draft]) -> Draft:
    kept = max(drafts, key=_preference)
    # any sample's state is the response's; the largest, so that arrival does not matter
    states = [draft.state for draft in drafts if draft.state is not None]
    return replace(
        kept,
        samples=len(drafts),
        reward_sum=math.fsum(draft.reward_sum for draft in drafts),
        state=max(states, key=lambda one: (one.value, one.num_tokens), default=None),
    )


def _preference(draft: Draft) -> tuple[Any, ...]:
    rollout = draft.rollout
    entropy = rollout.entropy
    return (
        rollout.policy_step,
        rollout.response_logprobs.tobytes(),
        rollout.given,
        rollout.reward,
        rollout.epoch,
        rollout.truncated,
        rollout.finish_reason,
        rollout.reason,
        (entropy.peak, entropy.global_, entropy.source) if entropy else (),
    )
