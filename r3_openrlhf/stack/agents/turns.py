"""The responses of a trajectory as OpenRLHF's generator takes them (executor.py samples them).

Every dict has the upstream keys; everything else is under "r3".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.method.types import Rollout, TurnFacts, Verdict
from r3_openrlhf.problems.agents.trajectory import End, Trajectory
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.convert import Run, response_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One response of the engine."""

    prompt: str
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs_T: np.ndarray  # float32
    text: str
    finish_reason: str
    state: str  # what it acts in

    @property
    def truncated(self) -> bool:
        """True if the token limit stopped it."""
        return self.finish_reason == "length"


def lost_at_reset(task_uid: str, uid: str, reason: str) -> Trajectory:
    """Return the result of an environment that never began."""
    return Trajectory(task_uid=task_uid, uid=uid, turns=(), end=End.LOST, reason=reason, success=None)


def grade_of(trajectory: Trajectory) -> Grade:
    """Return the verdict on a trajectory, shared by its turns; the reward is the environment's sum.

    Without a word for success a positive sum is one. A lost trajectory is ungraded.
    """
    if trajectory.end is End.LOST:
        return Grade(verdict=Verdict.UNGRADED, reason=f"environment: {trajectory.reason}", score=None, reward=None)
    reward = sum(trajectory.rewards())
    success = reward > 0 if trajectory.success is None else trajectory.success
    return Grade(
        verdict=Verdict.CORRECT if success else Verdict.WRONG,
        reason="success" if success else "failure" if trajectory.end is End.DONE else str(trajectory.end),
        score=float(success),
        reward=reward,
    )


def whole_trajectories(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Join turns: one record per trajectory, with the response tokens of all its turns."""
    by_trajectory: dict[tuple[str, str], list[Rollout]] = {}
    for rollout in rollouts:
        assert rollout.turn is not None  # executor.py gives every response its turn
        by_trajectory.setdefault((rollout.uid, rollout.turn.trajectory), []).append(rollout)
    return [
        replace(
            turns[0],
            response_ids=np.concatenate([turn.response_ids for turn in turns]),
            response_logprobs=np.concatenate([turn.response_logprobs for turn in turns]),
            truncated=any(turn.truncated for turn in turns),
        )
        for turns in by_trajectory.values()
    ]


def responses_of(
    trajectory: Trajectory, sampled: list[Sampled], settings: AgentsConfig, *, prompt: str, label: str, pad: int
) -> list[dict[str, Any]]:
    """One dict per sampled response, for OpenRLHF's generator; the first has the trajectory.

    A trajectory without a response (lost, or no prompt fits) has two padding tokens and no action.
    """
    grade = grade_of(trajectory)
    lost = trajectory.end is End.LOST
    returns = [] if lost else trajectory.returns(gamma=settings.gamma, invalid_penalty=settings.invalid_penalty)
    found = []
    for index, one in enumerate(sampled):
        # None: the environment gave no answer
        turn = trajectory.turns[index] if index < len(trajectory.turns) else None
        facts = TurnFacts(
            trajectory=trajectory.uid,
            index=index,
            state=one.state,
            reward=None if turn is None else turn.reward,
            step_return=None if lost else returns[index],
            valid=None if turn is None else turn.valid,
        )
        found.append(
            _response(one, facts, grade, prompt=prompt, label=label, action=None if turn is None else turn.action)
        )
    if not found:
        nothing = Sampled(
            prompt="",
            prompt_ids=[pad, pad],
            response_ids=[],
            logprobs_T=np.zeros(0, dtype=np.float32),
            text="",
            finish_reason=str(trajectory.end),
            state="",
        )
        facts = TurnFacts(trajectory=trajectory.uid, index=0, state="", reward=None, step_return=None, valid=None)
        found.append(_response(nothing, facts, grade, prompt=prompt, label=label, action=None))
    found[0]["r3"]["trajectory"] = trajectory
    return found


def _response(
    one: Sampled, facts: TurnFacts, grade: Grade, *, prompt: str, label: str, action: str | None
) -> dict[str, Any]:
    return response_of(
        one.prompt_ids,
        [Run(one.response_ids, one.logprobs_T)],
        replace(grade, extracted=action or None),
        prompt=prompt,
        label=label,
        truncated=one.truncated,
        text=one.text,
        turn_prompt=one.prompt,
        finish_reason=one.finish_reason,
        entropy_bounds=None,
        seconds=0.0,
        turn=facts,
    )
