"""Small rollouts for the tests of the history store."""

import sqlite3

import numpy as np

from r3_openrlhf.method.history.drafts import CONTEXTS, VERDICTS
from r3_openrlhf.method.types import (
    Context,
    EntropyStatistics,
    PlayedTurn,
    PromisingState,
    Rollout,
    Verdict,
)

noise = np.random.default_rng(0)
TURN_FIELDS = ("num_tokens", "state", "observation", "action", "reward", "valid", "truncated")


def make_rollout(
    uid="p",
    *,
    ids=(1, 2, 3),
    logprobs=None,
    verdict=Verdict.WRONG,
    context=Context.PLAIN,
    prompt=(7, 8),
    reward=None,
    entropy=None,
    prefix_tokens=0,
    turns=None,
    state=None,
    **more,
):
    """`turns`: how many of the ids are the response of each turn of a trajectory."""
    if reward is None and verdict is not Verdict.UNGRADED:
        reward = 1.5 if verdict is Verdict.CORRECT else 0.0
    more = {
        "policy_step": 0,
        "epoch": 1,
        "truncated": False,
        "finish_reason": "stop",
        "reason": "wrong",
    } | more
    if prefix_tokens:
        more["given"] = ((0, prefix_tokens),)
    if logprobs is None:
        logprobs = [-0.125 * (place + 1) for place in range(len(ids))]
    return Rollout(
        origin="file x" if context is Context.IMPORTED else "",
        uid=uid,
        context=context,
        prompt_ids=np.array(prompt, dtype=np.int32),
        response_ids=np.array(ids, dtype=np.int32),
        response_logprobs=np.array(logprobs, dtype=np.float32),
        verdict=verdict,
        reward=reward,
        entropy=None
        if entropy is None
        else EntropyStatistics(peak=entropy[0], global_=entropy[1], source="exact"),
        state=None if state is None else PromisingState(num_tokens=state[0], value=state[1]),
        turns=None
        if turns is None
        else tuple(make_turn(place, tokens) for place, tokens in enumerate(turns)),
        **more,
    )


def noisy_rollout(uid, num_tokens, **options):
    """Incompressible: 4 bytes a token for the log-probs, about 2.2 for the token ids."""
    return make_rollout(
        uid,
        ids=noise.integers(0, 150_000, num_tokens),
        logprobs=-noise.integers(0, 0x7F000000, num_tokens, dtype=np.uint32).view(np.float32),
        **options,
    )


def make_turn(place, tokens, *, reward=None):
    return PlayedTurn(
        prompt_ids=np.array([7, *range(place + 1)], dtype=np.int32),
        num_tokens=tokens,
        state=f"state {place}",
        observation=f"you see {place}\ud800",  # a lone surrogate, which no file of text holds
        action="go",
        reward=float(place) if reward is None else reward,
        valid=place != 1,
        truncated=place == 2,
    )


def values(rollout):
    """A rollout as something that can be hashed, and that == compares bit for bit."""
    return (
        rollout.uid,
        rollout.origin,
        rollout.context,
        rollout.prompt_ids.dtype.str,
        rollout.prompt_ids.tobytes(),
        rollout.response_ids.dtype.str,
        rollout.response_ids.tobytes(),
        rollout.response_logprobs.dtype.str,
        rollout.response_logprobs.tobytes(),
        rollout.verdict,
        rollout.reward,
        rollout.truncated,
        rollout.finish_reason,
        rollout.policy_step,
        rollout.epoch,
        rollout.entropy,
        rollout.reason,
        rollout.given,
        None
        if rollout.turns is None
        else tuple(
            (
                turn.prompt_ids.dtype.str,
                turn.prompt_ids.tobytes(),
                *map(turn.__getattribute__, TURN_FIELDS),
            )
            for turn in rollout.turns
        ),
    )


def dump(path):
    """Everything in the file but when it was written, in an order of its own."""
    connection = sqlite3.connect(path)
    try:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
        content = {}
        for (table,) in tables:
            columns = [
                row[1]
                for row in connection.execute(f"PRAGMA table_info({table})")
                if row[1] != "committed_at"
            ]
            content[table] = connection.execute(
                f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2"
            ).fetchall()
        return content
    finally:
        connection.close()


def counts(store, uid):
    """A problem's numbers of rollouts and sums of rewards, by context and verdict."""
    with store._reading() as connection:
        rows = connection.execute(
            "SELECT context, verdict, count, reward_sum FROM counters JOIN problems p ON p.id = problem WHERE uid = ?",
            (uid,),
        )
        return {
            (CONTEXTS[context], VERDICTS[verdict]): (count, total)
            for context, verdict, count, total in rows
        }
