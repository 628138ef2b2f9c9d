"""Trajectories into a history and back, by hand."""

import numpy as np

from r3_openrlhf.config import AgentsConfig
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.types import Context, PlayedTurn, Rollout, TurnFacts, Verdict
from r3_openrlhf.problems.agents.replay import kept_rollouts, recalled_trajectory
from r3_openrlhf.problems.agents.trajectory import NO_TOKENS, End, Trajectory

SETTINGS = AgentsConfig(estimator="grpo", gamma=0.5, invalid_penalty=0.25)


def trajectory(uid, rewards, *, end=End.DONE, valid=None, task="vault/3"):
    valid = valid or [True] * len(rewards)
    turns = tuple(
        PlayedTurn(
            prompt_ids=NO_TOKENS,
            num_tokens=0,
            state=f"s{index}",
            observation=f"you are at {index}",
            action="go" if fits else "",
            truncated=index == 1,
            valid=fits,
            reward=reward,
        )
        for index, (reward, fits) in enumerate(zip(rewards, valid, strict=True))
    )
    lost = end is End.LOST
    return Trajectory(
        task_uid=task,
        uid=uid,
        turns=turns,
        end=end,
        reason="timeout" if lost else "",
        success=None if lost else sum(rewards) > 0,
    )


def responses(played, *, step=4, verdict=None):
    """Of turn t: the prompt [1] * (t + 1), the response [10 t, 10 t + 1], log-probs -t and -t - 1/2."""
    verdict = verdict or (Verdict.CORRECT if played.success else Verdict.WRONG)
    graded = verdict is not Verdict.UNGRADED
    return [
        Rollout(
            uid=played.task_uid,
            context=Context.PLAIN,
            prompt_ids=np.ones(t + 1, dtype=np.int32),
            response_ids=np.array([10 * t, 10 * t + 1], dtype=np.int32),
            response_logprobs=np.array([-t, -t - 0.5], dtype=np.float32),
            verdict=verdict,
            reward=sum(turn.reward for turn in played.turns) if graded else None,
            truncated=t == 1,
            finish_reason="stop",
            policy_step=step,
            epoch=1,
            text="<action>go</action>",
            reason="success" if graded else "environment: timeout",
            answer="go",
            turn=TurnFacts(
                trajectory=played.uid,
                index=t,
                state=turn.state,
                reward=turn.reward,
                step_return=0.0,
                valid=turn.valid,
            ),
        )
        for t, turn in enumerate(played.turns)
    ]


def test_a_trajectory_is_kept_as_one_rollout():
    one, other = trajectory("0", [0.0, 0.0, 1.0]), trajectory("1", [0.0])
    rows = responses(one) + responses(other)
    # rows come in any order
    first, second = kept_rollouts([one, other], [rows[2], rows[0], rows[3], rows[1]])
    assert first.response_ids.tolist() == [0, 1, 10, 11, 20, 21]
    assert first.response_logprobs.tolist() == [0, -0.5, -1, -1.5, -2, -2.5]
    assert first.prompt_ids.tolist() == [1]
    assert [turn.prompt_ids.tolist() for turn in first.turns] == [[1], [1, 1], [1, 1, 1]]
    assert (
        [turn.num_tokens for turn in first.turns] == [2, 2, 2]
        and first.truncated
        and first.reward == 1.0
    )
    assert (first.verdict, second.verdict) == (Verdict.CORRECT, Verdict.WRONG) and len(
        second.turns
    ) == 1
    assert [(turn.state, turn.observation, turn.action) for turn in first.turns][2] == (
        "s2",
        "you are at 2",
        "go",
    )


def test_what_has_no_returns_is_counted_and_what_has_no_turns_is_left_out():
    lost, empty = (
        trajectory("0", [0.0, 0.0], end=End.LOST),
        trajectory("1", [], end=End.PROMPT_LIMIT),
    )
    (found,) = kept_rollouts([lost, empty], responses(lost, verdict=Verdict.UNGRADED))
    assert found.verdict is Verdict.UNGRADED and found.turns is None and found.num_tokens == 4


def test_what_was_kept_joins_a_task_as_it_was_played():
    """Rewards 0, -1 (an invalid action, 1/4 less) and 1; gamma is 1/2: R = 1, -5/4 + 1/2 = -3/4, 0 - 3/8 = -3/8."""
    played = trajectory("7", [0.0, -1.0, 1.0], valid=[True, False, True])
    (kept,) = kept_rollouts([played], responses(played))
    with HistoryStore.open(":memory:") as store:
        store.commit_step(5, 1, [kept])
        (stored,) = [
            found.rollout
            for found in store.recall("vault/3", kept.verdict, k=1, step=6, max_policy_lag=9)
        ]
    name = "0@5"
    again, turns = recalled_trajectory(stored, SETTINGS, name=name)
    assert again.uid == name and again.success is False
    assert again.anchors == played.anchors and again.rewards() == played.rewards()
    for mine, original in zip(turns, responses(played), strict=True):
        assert mine.prompt_ids.tolist() == original.prompt_ids.tolist()
        assert mine.response_ids.tolist() == original.response_ids.tolist()
        assert mine.response_logprobs.tolist() == original.response_logprobs.tolist()
        assert (mine.policy_step, mine.verdict, mine.truncated) == (
            4,
            Verdict.WRONG,
            original.truncated,
        )
    assert [mine.turn.step_return for mine in turns] == [-0.375, -0.75, 1.0]
    assert [mine.turn.index for mine in turns] == [0, 1, 2] and {
        mine.turn.trajectory for mine in turns
    } == {name}
    assert [mine.answer for mine in turns] == ["go", None, "go"]
