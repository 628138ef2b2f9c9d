"""Rollouts, groups and stored rollouts for the tests of a mixed batch."""

import random

from r3_openrlhf.method.types import Context, Verdict
from tests.method.history.samples import make_rollout

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED


def rollout(verdict=W, *, uid="a", reward=None, truncated=False, step=0, context=Context.PLAIN):
    return make_rollout(
        uid,
        ids=(3, 4, 5),
        prompt=(1, 2),
        verdict=verdict,
        reward=reward,
        truncated=truncated,
        policy_step=step,
        context=context,
    )


def recall(batch, function, mode="add"):
    batch.recall(function, mode=mode, rng=random.Random(0))
