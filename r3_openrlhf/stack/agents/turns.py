"""The responses of a trajectory as OpenRLHF's generator takes them (executor.py samples them).

Every dict has the upstream keys; everything else is under "r3".
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.method.types import TurnFacts, Verdict
from r3_openrlhf.problems.agents.trajectory import End, Trajectory
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.stack.convert import Run, response_of


class Sampled(NamedTuple):
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


def grade_of(trajectory: Trajectory) -> Grade:
    """Return the verdict on a trajectory, shared by its turns; the reward is the environment's sum.
    A lost trajectory is ungraded."""
    if trajectory.end is End.LOST:
        return Grade(verdict=Verdict.UNGRADED, reason=f"environment: {trajectory.reason}", score=None, reward=None)
    reward = sum(trajectory.rewards())
    success = bool(trajectory.success)
    return Grade(
        verdict=Verdict.CORRECT if success else Verdict.WRONG,
        reason="success" if success else "failure" if trajectory.end is End.DONE else str(trajectory.end),
        score=float(success),
        reward=reward,
    )


def responses_of(
    trajectory: Trajectory, sampled: list[Sampled], settings: AgentsConfig, *, prompt: str, label: str, pad: int
) -> list[dict[str, Any]]:
    """One dict per sampled response, for OpenRLHF's generator; the first has the trajectory.

    A trajectory without a response (lost, or no prompt fits) has two padding tokens and no action.
    """
    grade = grade_of(trajectory)
    returns = []
    if trajectory.end is not End.LOST:
        returns = trajectory.returns(gamma=settings.gamma, invalid_penalty=settings.invalid_penalty)
    nothing = Sampled("", [pad, pad], [], np.zeros(0, dtype=np.float32), "", str(trajectory.end), "")
    responses = []
    # of a lost trajectory the last response has no turn: the environment gave no answer
    for index, (one, turn, step_return) in enumerate(
        itertools.zip_longest(sampled or [nothing], trajectory.turns, returns)
    ):
        facts = TurnFacts(
            trajectory=trajectory.uid,
            index=index,
            state=one.state,
            reward=None if turn is None else turn.reward,
            step_return=step_return,
            valid=None if turn is None else turn.valid,
        )
        response = response_of(
            one.prompt_ids,
            [Run(one.response_ids, one.logprobs_T)],
            replace(grade, extracted=(turn.action or None) if turn is not None else None),
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
        responses.append(response)
    responses[0]["r3"]["trajectory"] = trajectory
    return responses
