"""Which rows leave when a problem has more rollouts of one verdict than the cap allows. Pure.

All three orders look at content, never at row ids or arrival, so every rank order of the same rollouts evicts the
same ones. Rows that began behind a reflection prompt or a prefix leave before rows of the plain prompt: recall into a
plain group prefers the latter, and a hard problem's further groups would otherwise push them out.

    oldest            the smallest step leaves first
    reservoir         keeps the `cap` smallest values of hash(seed, content): a uniform sample, without replacement, of
                      all different responses ever seen, whatever came when
    shortest_correct  of correct rollouts the longest leaves first; of wrong ones the oldest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r3_openrlhf.history.codec import digest
from r3_openrlhf.types import Context, Eviction, Verdict


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a policy may look at. `row` is None for a rollout that is not stored yet."""

    row: int | None
    context: Context
    step: int
    num_tokens: int
    content: bytes  # digest of context, prompt, response and verdict


def rows_to_evict(
    candidates: Sequence[Candidate], *, cap: int, policy: str, verdict: Verdict, seed: int
) -> list[Candidate]:
    """The candidates (all of one problem and verdict) that have to leave, first to leave first.

    ValueError: a policy that does not exist.
    """
    surplus = len(candidates) - cap
    if surplus <= 0:
        return []
    return sorted(candidates, key=_leaves_first(policy, verdict, seed))[:surplus]


def _leaves_first(policy: str, verdict: Verdict, seed: int) -> Callable[[Candidate], tuple[Any, ...]]:
    def is_plain(candidate: Candidate) -> bool:
        return candidate.context is Context.PLAIN

    policy = Eviction.checked("policy", policy)
    if policy is Eviction.RESERVOIR:
        prefix = b"reservoir", str(seed).encode()
        return lambda c: (is_plain(c), -int.from_bytes(digest(*prefix, c.content), "big"))
    if policy is Eviction.SHORTEST_CORRECT and verdict is Verdict.CORRECT:
        return lambda c: (is_plain(c), -c.num_tokens, c.step, c.content)
    return lambda c: (is_plain(c), c.step, c.content)
