"""A history with successes of rarely solved problems, and a step that rehearses them."""

import contextlib

from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from tests.method.steps import C, W, rollout, settings_of

ON = {"replay__rehearse__share": 1.0, "replay__enabled": False}
NUM_RIGHT = {"a": 1, "b": 4, "c": 0, "d": 1}  # of 8


@contextlib.contextmanager
def rehearsal_history():
    """After two steps: a 1 of 8 right, twice; b 4 of 8; c none; d 1 of 8."""
    with HistoryStore.open(":memory:") as store:
        for step in (1, 2):
            rows = []
            for uid, num_right in NUM_RIGHT.items():
                rows += [
                    rollout(
                        C if i < num_right else W,
                        number=10 * step + i,
                        uid=uid,
                        step=step - 1,
                        prompt=(3, ord(uid)),
                    )
                    for i in range(8)
                ]
            store.commit_step(step, 1, rows)
        yield store


def mixed(history, *, step=2, seed=0, **keys):
    r3 = R3(settings_of(**ON | keys), history=history, seed=seed)
    return r3.mix([rollout(C, uid="d"), rollout(W, uid="d")], step=step)
