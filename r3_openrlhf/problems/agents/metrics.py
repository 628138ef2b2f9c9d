"""Count events in the trajectories of a step, as numbers for metrics.jsonl (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from r3_openrlhf.problems.agents.advantages import steps_alone
from r3_openrlhf.problems.agents.trajectory import End, Trajectory


def trajectory_metrics(trajectories: Sequence[Trajectory], *, depth: int) -> dict[str, float]:
    """Compute counts, and means over the trajectories that were not lost; 0.0 where there is none.

    `depth`: of `r3/agents/alone_k`, the share of turns whose group of level k holds no
    other turn."""
    played = [one for one in trajectories if one.end is not End.LOST]
    turns = [turn for one in played for turn in one.turns]
    lengths = [len(one.turns) for one in played] or [0]
    alone = steps_alone(trajectories, depth=depth)
    return {
        "r3/agents/trajectories": float(len(trajectories)),
        "r3/agents/lost": float(len(trajectories) - len(played)),
        "r3/agents/success_rate": fmean([bool(one.success) for one in played] or [0]),
        "r3/agents/reward_mean": fmean([sum(one.rewards()) for one in played] or [0]),
        "r3/agents/turns_mean": fmean(lengths),
        "r3/agents/turns_max": float(max(lengths)),
        "r3/agents/turn_limit": float(sum(one.end is End.TURN_LIMIT for one in played)),
        "r3/agents/prompt_limit": float(sum(one.end is End.PROMPT_LIMIT for one in played)),
        "r3/agents/invalid_rate": fmean([not turn.valid for turn in turns] or [0]),
        "r3/agents/truncated_rate": fmean([turn.truncated for turn in turns] or [0]),
        **{f"r3/agents/alone_{k}": share for k, share in enumerate(alone)},
    }
