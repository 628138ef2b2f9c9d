"""Whole trajectories in and out of a history: what a step keeps, and what joins an equal task.

A trajectory is kept as one Rollout: its response is its turns' in a row, and `turns` has the begin,
prompt and reply of each. So a history counts, bounds and recalls trajectories as responses.
A recalled one is again a row per turn, with prompt, tokens and log-probs of its own.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.method.types import Rollout, TurnFacts, Verdict
from r3_openrlhf.problems.agents.trajectory import End, Trajectory


def kept_rollouts(
    trajectories: Iterable[Trajectory], turns: Iterable[Rollout]
) -> list[Rollout]:
    """One Rollout per trajectory of a step, in their order, of the rollouts of its turns.

    A lost one is ungraded, which a history counts and does not keep. One without any turn (no
    prompt fits) is left out: there is nothing of it to train on."""
    rows = _by_trajectory(turns)
    kept = []
    for trajectory in trajectories:
        own, played = rows.get((trajectory.task_uid, trajectory.uid), []), None
        if trajectory.end is not End.LOST:
            played = tuple(
                replace(turn, prompt_ids=rollout.prompt_ids, num_tokens=rollout.num_tokens)
                for rollout, turn in zip(own, trajectory.turns, strict=True)
            )
        if own:
            kept.append(replace(_whole(own), turn=None, turns=played, text="", answer=None))
    return kept


def whole_trajectories(turns: Iterable[Rollout]) -> list[Rollout]:
    """Join turns: one record per trajectory, with the response tokens of all its turns."""
    return list(map(_whole, _by_trajectory(turns).values()))


def _by_trajectory(turns: Iterable[Rollout]) -> dict[tuple[str, str], list[Rollout]]:
    """(task, trajectory) -> its turns, in order."""
    rows: dict[tuple[str, str], list[Rollout]] = {}
    played = [(rollout.turn, rollout) for rollout in turns if rollout.turn is not None]
    for turn, rollout in sorted(played, key=lambda pair: pair[0].index):
        rows.setdefault((rollout.uid, turn.trajectory), []).append(rollout)
    return rows


def _whole(turns: Sequence[Rollout]) -> Rollout:
    return replace(
        turns[0],
        response_ids=np.concatenate([rollout.response_ids for rollout in turns]),
        response_logprobs=np.concatenate([rollout.response_logprobs for rollout in turns]),
        truncated=any(rollout.truncated for rollout in turns),
        finish_reason=turns[-1].finish_reason,
    )


def recalled_trajectory(
    stored: Rollout, settings: AgentsConfig, *, name: str
) -> tuple[Trajectory, list[Rollout]]:
    """Return a kept trajectory as one of a step again, and the rollout of each of its turns.

    Its returns are those that today's agents.gamma and agents.invalid_penalty give. `name`: of no
    other trajectory of the task in this step."""
    assert stored.turns is not None  # an agentic run keeps nothing else
    succeeded = stored.verdict is Verdict.CORRECT
    trajectory = Trajectory(
        task_uid=stored.uid, uid=name, turns=stored.turns, end=End.DONE, success=succeeded
    )
    returns = trajectory.returns(gamma=settings.gamma, invalid_penalty=settings.invalid_penalty)
    ends = list(itertools.accumulate((turn.num_tokens for turn in stored.turns), initial=0))
    rollouts = [
        replace(
            stored,
            prompt_ids=turn.prompt_ids,
            response_ids=stored.response_ids[begin:end],
            response_logprobs=stored.response_logprobs[begin:end],
            truncated=turn.truncated,
            answer=turn.action or None,
            turns=None,
            turn=TurnFacts(
                trajectory=name,
                index=index,
                state=turn.state,
                reward=turn.reward,
                step_return=returns[index],
                valid=turn.valid,
            ),
        )
        for index, (turn, begin, end) in enumerate(
            zip(stored.turns, ends, ends[1:], strict=False)
        )
    ]
    return trajectory, rollouts
