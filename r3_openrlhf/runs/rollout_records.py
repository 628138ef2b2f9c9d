"""The rollouts of one step as the lines of rollouts.jsonl."""

from __future__ import annotations

from typing import Any

from r3_openrlhf.core.mixed_batch import MixedBatch, Row
from r3_openrlhf.types import Rollout


def records_of(batch: MixedBatch, *, step: int, texts: bool = True) -> list[dict[str, Any]]:
    """One dict per rollout of the step, ungraded and recalled ones included, for rollouts.jsonl."""
    records = []
    placed = set()
    for row in batch.rows:
        if row.source is not None:
            placed.add(row.source)
        records.append(record_of(row.rollout, step=step, row=row))
    records += [record_of(r, step=step, row=None) for i, r in enumerate(batch.rollouts) if i not in placed]
    if not texts:
        for record in records:
            del record["text"]
    return records


def record_of(rollout: Rollout, *, step: int, row: Row | None) -> dict[str, Any]:
    """One line of rollouts.jsonl. `row` is None for a rollout that is in no group."""
    entropy, bounds = rollout.entropy, rollout.entropy_bounds
    recalled = row is not None and row.recalled
    return {
        "step": step,
        "uid": rollout.uid,
        "context": rollout.context.value,
        "group": None if row is None else row.group,
        "verdict": rollout.verdict.value,
        "reason": rollout.reason,
        "outcome_reward": rollout.reward,
        "reward": rollout.reward if row is None else row.reward,
        "ranked": row is not None and row.ranked,
        "advantage": row.advantage if row is not None and row.trained else None,
        "recalled_from": rollout.policy_step + 1 if recalled else None,  # the step that sampled it
        "truncated": rollout.truncated,
        "num_tokens": rollout.num_tokens,
        "entropy": None if entropy is None else [entropy.peak, entropy.global_, entropy.source],
        "entropy_bounds": None
        if bounds is None
        else [bounds.peak_lower, bounds.peak_upper, bounds.global_lower, bounds.global_upper],
        "text": rollout.text,
    }
