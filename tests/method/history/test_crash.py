"""A writer killed at random moments. Afterwards the store is what its acknowledged calls made it."""

import os
import random
import signal
import struct
import time
import traceback

import pytest

from r3_openrlhf.method.history import HistoryStore, lease
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.operations.store.verification import verify

from .samples import counts, make_rollout, values

LIMITS = HistorySettings(max_per_problem_and_verdict=3)
LAST_STEP = 60  # then a new store is begun
NUM_KILLS = 50


def sampled_in(step):
    """What step `step` samples: always the same, with duplicates, evictions and ungraded ones."""
    rng = random.Random(step)

    def one():
        ids = [rng.randrange(6)] * rng.randrange(1, 2000)
        context = rng.choice([Context.PLAIN, Context.PLAIN, Context.REFLECTION, Context.PREFIX])
        return make_rollout(
            rng.choice("abcdef"),
            ids=ids,
            verdict=rng.choice(
                [Verdict.CORRECT, Verdict.WRONG, Verdict.WRONG, Verdict.UNGRADED]
            ),
            context=context,
            policy_step=step,
            prefix_tokens=rng.randrange(1, 4) % len(ids) if context is Context.PREFIX else 0,
        )

    return [one() for _ in range(12)]


def contents(store):
    """All that a run can see of a store."""
    found = [
        (stored.step, stored.copies, values(stored.rollout))
        for uid in "abcdef"
        for verdict in (Verdict.CORRECT, Verdict.WRONG)
        for stored in store.recall(
            uid, verdict, k=99, step=0, max_policy_lag=99, contexts=tuple(Context)
        )
    ]
    return (
        store.last_step,
        [counts(store, uid) for uid in "abcdef"],
        store.continuations(),
        store.states(step=0),
        sorted(found, key=repr),
    )


@pytest.fixture(scope="module")
def expected():
    """contents() after each step of a run that nobody kills."""
    with HistoryStore.open(":memory:", limits=LIMITS) as store:
        after = [contents(store)]
        for step in range(1, LAST_STEP + 1):
            store.commit_step(step, 1, sampled_in(step))
            after.append(contents(store))
    return after


def run(path, acknowledge):
    """A training run: resume two steps back, go on, move the floor now and then. Says what is done, and what begins."""
    with HistoryStore.open(path, limits=LIMITS) as store:
        last = store.last_step or 0
        resume = max(last - 2, store.rollback_floor or 0)
        acknowledge(resume, last)
        store.roll_back(resume)
        for step in range(resume + 1, LAST_STEP + 1):
            acknowledge(step - 1, step)
            store.commit_step(step, 1, sampled_in(step))
            acknowledge(step, step)
            if step % 5 == 3:
                store.set_rollback_floor(step - 3)


def killed_run(path, delay_s, *, while_opening):
    """Run in a child that the kernel ends after delay_s of its own processor time from its first word on, so that load
    moves no kill; while opening, SIGKILL ends it delay_s after its start. Returns the bounds of the step that it reached."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:

        def acknowledge(*steps):
            os.write(writer, struct.pack("=qq", *steps))
            if not any(signal.getitimer(signal.ITIMER_PROF)):
                # SIGPROF ends a process that has no handler
                signal.setitimer(signal.ITIMER_PROF, delay_s)

        try:
            run(path, acknowledge)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    if while_opening:
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader, "rb", buffering=0) as stream:
        said = b"".join(iter(lambda: stream.read(65536), b""))
    assert os.waitpid(child, 0)[1] in (0, signal.SIGKILL, signal.SIGPROF)
    return struct.unpack_from("=qq", said, len(said) - 16) if said else None


def test_a_kill_at_random_moments(tmp_path, expected, monkeypatch):
    # who is killed before it has written its name is waited for
    monkeypatch.setattr(lease, "LEASE_S", 0.5)
    monkeypatch.setattr(lease, "BEAT_S", 0.1)
    rng = random.Random(20)
    moments = {"while committing": 0, "between": 0, "before the first word": 0}
    path, fresh = tmp_path / "0.sqlite", 0
    for kill in range(NUM_KILLS):
        bounds = killed_run(path, rng.uniform(0, 0.04), while_opening=kill % 5 == 0)
        if bounds is None:
            moments["before the first word"] += 1
        else:
            moments["between" if bounds[0] == bounds[1] else "while committing"] += 1
        if bounds is not None:
            assert verify(path).findings == [], f"kill {kill}"
        with HistoryStore.open(path, limits=LIMITS) as store:
            last = store.last_step or 0
            if bounds is not None:
                assert bounds[0] <= last <= bounds[1], f"kill {kill}"
            assert contents(store) == expected[last], f"kill {kill}"
        if last == LAST_STEP:
            fresh += 1
            path = tmp_path / f"{fresh}.sqlite"
    # the kills did hit the interesting places
    assert moments["while committing"] > NUM_KILLS // 10, moments
