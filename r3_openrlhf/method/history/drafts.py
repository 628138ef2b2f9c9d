"""One step's rollouts, checked, duplicates merged, in an order free of arrival. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from r3_openrlhf.method.history.codec import digest
from r3_openrlhf.method.history.trajectories import encoded_turns
from r3_openrlhf.method.types import Context, PromisingState, Rollout, Verdict

# What the file holds instead of the names.
CONTEXT_CODES = {
    Context.PLAIN: 0,
    Context.REFLECTION: 1,
    Context.PREFIX: 2,
    Context.IMPORTED: 3,
    Context.HINT: 4,
}
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
    turns: bytes | None  # of a whole trajectory
    state: PromisingState | None


def merge_duplicates(rollouts: Iterable[Rollout]) -> list[Draft]:
    """Graded rollouts as drafts, ordered by uid, verdict, context and content.

    Duplicates have the same uid, context, prompt, response and verdict. The sample of the newest
    weights is kept; among equals a fixed order of their contents decides, so that the choice does
    not depend on arrival. The rollouts come from `read_rollouts` (method/values.py).
    """
    same: dict[tuple[Any, ...], list[Rollout]] = {}
    for rollout in rollouts:
        prompt, response = (
            digest(ids.tobytes()) for ids in (rollout.prompt_ids, rollout.response_ids)
        )
        turns = encoded_turns(rollout)
        context, verdict = rollout.context.value.encode(), rollout.verdict.value.encode()
        content = digest(context, prompt, response, verdict, *([turns] if turns else []))
        order = (
            rollout.uid,
            VERDICT_CODES[rollout.verdict],
            CONTEXT_CODES[rollout.context],
            content,
        )
        same.setdefault((*order, prompt, response, turns), []).append(rollout)
    return [_merged(same[key], *key[3:]) for key in sorted(same, key=lambda key: key[:4])]


def _merged(
    rollouts: Sequence[Rollout],
    content: bytes,
    prompt: bytes,
    response: bytes,
    turns: bytes | None,
) -> Draft:
    # any sample's state is the response's; the largest, so that arrival does not matter
    states = [rollout.state for rollout in rollouts if rollout.state is not None]
    return Draft(
        rollout=max(rollouts, key=_preference),
        prompt_digest=prompt,
        response_digest=response,
        content=content,
        samples=len(rollouts),
        reward_sum=math.fsum(rollout.graded_reward for rollout in rollouts),
        turns=turns,
        state=max(states, key=lambda one: (one.value, one.num_tokens), default=None),
    )


def _preference(rollout: Rollout) -> tuple[Any, ...]:
    entropy = rollout.entropy
    return (
        rollout.policy_step,
        rollout.response_logprobs.tobytes(),
        b"" if rollout.experts is None else rollout.experts.tobytes(),
        rollout.given,
        rollout.pieces,
        rollout.reward,
        rollout.epoch,
        rollout.truncated,
        rollout.finish_reason,
        rollout.reason,
        (entropy.peak, entropy.global_, entropy.source) if entropy else (),
    )
