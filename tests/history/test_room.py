"""What leaves when the whole file is full: by hand, against the plainest way to say it, and over three epochs."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r3_openrlhf.history import HistoryLimits, HistoryStore
from r3_openrlhf.history.eviction import Candidate, rows_to_evict
from r3_openrlhf.history.room import richest_first
from r3_openrlhf.history.verification import verify
from r3_openrlhf.types import Context, Verdict

from .samples import make_rollout
from .test_byte_cap import noisy_rollout, open_store

POLICIES = ("oldest", "reservoir", "shortest_correct")
GRADED = (Verdict.CORRECT, Verdict.WRONG)


def kept(store, uid, verdict, *, contexts=tuple(Context)):
    return len(store.recall(uid, verdict, k=99, step=10**6, max_policy_lag=10**6, contexts=contexts))


def test_the_only_success_outlives_hundreds_of_newer_failures(quick_path):
    """1 MB holds 29 rows of 34 kB. First in, first out would let the successes of steps 0 to 4 go before step 40."""
    with open_store(quick_path / "history.sqlite") as store:
        for step in range(60):
            verdict = Verdict.CORRECT if step < 5 else Verdict.WRONG
            store.commit_step(step, 1, [noisy_rollout(f"p{step % 5}", 5000, verdict=verdict, policy_step=step)])
            store.set_rollback_floor(step)
        for problem in range(5):
            assert kept(store, f"p{problem}", Verdict.CORRECT) == 1
            assert kept(store, f"p{problem}", Verdict.WRONG) >= 3
    assert verify(quick_path / "history.sqlite").findings == []


def leaving(rollouts, *, policy, seed, surplus_share):
    """Every row of a store that holds `rollouts`, in the order in which room.py gives them, as (uid, verdict, ids)."""
    limits = HistoryLimits(eviction=policy)
    with HistoryStore.open(":memory:", limits=limits, seed=seed) as store:
        for step, of_step in enumerate(rollouts):
            store.commit_step(step, 1, of_step)
        connection = store._connection
        total = connection.execute("SELECT sum(bytes) FROM rollouts").fetchone()[0] or 0
        order = []
        for row, size in richest_first(
            connection, policy=policy, seed=seed, surplus=int(total * surplus_share), live=total
        ):
            assert size > 0
            order.append(row)
            connection.execute("UPDATE rollouts SET evicted_at = 99 WHERE id = ?", (row,))
        columns = "r.id, r.problem, r.verdict, r.context, r.step, r.num_tokens, r.content"
        rows = {row[0]: row[1:] for row in connection.execute(f"SELECT {columns} FROM rollouts r")}
        return [(row, *rows[row]) for row in order]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rollouts=st.lists(
        st.lists(
            st.builds(
                make_rollout,
                st.sampled_from("abc"),
                ids=st.lists(st.integers(0, 50), min_size=1, max_size=4),
                verdict=st.sampled_from(GRADED),
                context=st.sampled_from(Context),
            ),
            max_size=8,
        ),
        min_size=1,
        max_size=5,
    ),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 3),
    surplus_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_row_by_row_the_largest_set_gives_the_row_that_its_policy_lets_go_first(rollouts, policy, seed, surplus_share):
    """The plainest way: look at all sets, take from a largest one the row that eviction.py names, the oldest of those."""
    contexts, verdicts = dict(enumerate(Context)), dict(enumerate(GRADED))
    order = leaving(rollouts, policy=policy, seed=seed, surplus_share=surplus_share)
    sets = {}
    for row, problem, verdict, context, step, num_tokens, content in order:
        candidate = Candidate(row, contexts[context], step, num_tokens, content)
        sets.setdefault((problem, verdict), []).append(candidate)
    expected = []
    while any(sets.values()):
        largest = max(map(len, sets.values()))
        first = [
            (
                rows_to_evict(rows, cap=largest - 1, policy=policy, verdict=verdicts[verdict], seed=seed)[0]
                if largest > 1
                else rows[0],
                rows,
            )
            for (_, verdict), rows in sets.items()
            if len(rows) == largest
        ]
        chosen, rows = min(first, key=lambda pair: (pair[0].step, pair[0].content, pair[0].row))
        rows.remove(chosen)
        expected.append(chosen.row)
    assert [row for row, *_ in order] == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_no_set_is_emptied_while_another_has_two_rows(policy, quick_path):
    """And what was evicted is what the byte cap asked for, whatever the policy."""
    draw = random.Random(1)
    with open_store(quick_path / "history.sqlite", eviction=policy) as store:
        ever = set()
        for step in range(120):
            uid, verdict = f"p{draw.randrange(6)}", draw.choices(GRADED, [1, 6])[0]
            store.commit_step(step, 1, [noisy_rollout(uid, 3000, verdict=verdict, policy_step=step)])
            store.set_rollback_floor(step)
            ever.add((uid, verdict))
            sizes = [kept(store, *key) for key in ever]
            assert min(sizes) >= 1
        assert sum(sizes) > 20
