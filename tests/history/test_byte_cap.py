"""The file stays below its byte cap, whatever is committed, and never at the price of a roll-back or a counter."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r3_openrlhf.history import HistoryLimits, HistoryStore
from r3_openrlhf.history.verification import verify
from r3_openrlhf.types import Context, Verdict

from .samples import dump, make_rollout

CAP = 1_000_000
rng = np.random.default_rng(0)


def noisy_rollout(uid, num_tokens, **options):
    """Incompressible: 4 bytes a token for the log-probs, about 2.2 for the token ids."""
    return make_rollout(
        uid,
        ids=rng.integers(0, 150_000, num_tokens),
        logprobs=rng.standard_normal(num_tokens, dtype=np.float32),
        **options,
    )


def open_store(path, **options):
    limits = HistoryLimits(max_bytes=CAP, max_per_problem_and_verdict=8, **options)
    return HistoryStore.open(path, limits=limits, journal="delete")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([0, 5, 60, 300, 1000, 3000]), min_size=1, max_size=4),
    problems=st.integers(1, 60),
    rows=st.integers(1, 24),
    every=st.integers(1, 6),
    prompt=st.sampled_from([1, 400]),
)
def test_the_file_stays_below_the_cap(quick_path, sizes, problems, rows, every, prompt):
    path = Path(tempfile.mkdtemp(dir=quick_path)) / "history.sqlite"
    sampled = 0
    with open_store(path) as store:
        for step in range(24):
            batch = [
                noisy_rollout(f"p{rng.integers(problems)}", int(rng.choice(sizes)), prompt=rng.integers(0, 9, prompt))
                for _ in range(rows)
            ]
            store.commit_step(step, 1, batch, state={"step": step})
            sampled += rows
            if step % every == 0:
                store.set_rollback_floor(step)
            assert path.stat().st_size <= CAP
        assert sum(store.summary(f"p{n}").seen for n in range(problems)) == sampled
    assert verify(path).findings == []


def test_the_oldest_rows_of_the_whole_store_leave(quick_path):
    with open_store(quick_path / "history.sqlite") as store:
        for step in range(40):
            store.commit_step(step, 1, [noisy_rollout(f"p{step}", 5000, policy_step=step)])
            store.set_rollback_floor(step)
        kept = [step for step in range(40) if store.recall(f"p{step}", Verdict.WRONG, k=1, step=40, max_policy_lag=99)]
        assert kept == list(range(40 - len(kept), 40))
        assert 20 < len(kept) < 30  # about 34 kB each: 1 MB holds 29, less room for the next
        assert store.mean_reward("p0") == 0.0  # still known


def test_a_step_much_larger_than_those_before_it_does_not_close_the_store(quick_path):
    """It may not fit at once, but from then on there is room for its like."""
    with open_store(quick_path / "history.sqlite") as store:
        kept = []
        for step in range(90):
            tokens = 5000 if step % 30 < 27 else 40_000
            store.commit_step(step, 1, [noisy_rollout(f"p{step}", tokens, policy_step=step)])
            store.set_rollback_floor(step)
            kept.append(bool(store.recall(f"p{step}", Verdict.WRONG, k=1, step=step, max_policy_lag=0)))
        refused = [step for step in range(90) if not kept[step]]
        assert len(refused) <= 3 and all(step % 30 == 27 for step in refused)


def test_without_room_the_newest_rows_are_counted_but_not_kept(quick_path):
    """A roll-back may still need everything: nothing may go, so nothing more can come."""
    path = quick_path / "history.sqlite"
    with open_store(path) as store:
        store.commit_step(0, 1, [noisy_rollout("first", 5000)])
        before = dump(path)
        for step in range(1, 60):
            store.commit_step(step, 1, [noisy_rollout(f"p{step}", 5000)])
        assert path.stat().st_size <= CAP
        assert store.summary("p59").count(Context.PLAIN, Verdict.WRONG) == 1
        assert store.recall("p59", Verdict.WRONG, k=1, step=60, max_policy_lag=99) == []
        assert len(store.recall("p20", Verdict.WRONG, k=1, step=60, max_policy_lag=99)) == 1  # half is kept
        store.roll_back(0)
        assert dump(path) == before
        store.commit_step(1, 1, [noisy_rollout("again", 5000)])
        assert len(store.recall("again", Verdict.WRONG, k=1, step=60, max_policy_lag=99)) == 1


def test_moving_the_floor_makes_room(quick_path):
    path = quick_path / "history.sqlite"
    with open_store(path) as store:
        for step in range(60):
            store.commit_step(step, 1, [noisy_rollout(f"p{step}", 5000)])
        store.set_rollback_floor(59)
        store.commit_step(60, 1, [noisy_rollout("new", 5000)])
        assert len(store.recall("new", Verdict.WRONG, k=1, step=60, max_policy_lag=99)) == 1
        assert path.stat().st_size <= CAP
    assert verify(path).findings == []


def test_without_room_for_a_newer_sample_the_older_one_stays(quick_path):
    with open_store(quick_path / "history.sqlite") as store:
        for step in range(60):
            store.commit_step(step, 1, [noisy_rollout(f"p{step}", 5000)])
        (old,) = store.recall("p20", Verdict.WRONG, k=1, step=60, max_policy_lag=99)
        store.commit_step(60, 1, [old.rollout])
        (still,) = store.recall("p20", Verdict.WRONG, k=1, step=60, max_policy_lag=99)
        assert still.row == old.row
        assert store.summary("p20").seen == 2
    assert verify(quick_path / "history.sqlite").findings == []
