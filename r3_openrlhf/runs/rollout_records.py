"""The rollouts of one step as the rows of its file in rollouts/ (runs/rollout_files.py has the columns)."""

from __future__ import annotations

from typing import Any

from r3_openrlhf.core.mixed_batch import MixedBatch, Row
from r3_openrlhf.types import Rollout


def records_of(batch: MixedBatch, *, step: int, texts: bool = True) -> list[dict[str, Any]]:
    """One dict per rollout of the step, ungraded and recalled ones included."""
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
    """One row. `row` is None for a rollout that is in no group."""
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
        "entropy_peak": entropy and entropy.peak,
        "entropy_global": entropy and entropy.global_,
        "entropy_source": entropy and entropy.source,
        "entropy_peak_lower": bounds and bounds.peak_lower,
        "entropy_peak_upper": bounds and bounds.peak_upper,
        "entropy_global_lower": bounds and bounds.global_lower,
        "entropy_global_upper": bounds and bounds.global_upper,
        "text": rollout.text,
    }
