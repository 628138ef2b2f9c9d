"""Who leaves, by hand and by law; and the file stays below its byte cap, whatever is committed."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.history.drafts import VERDICT_CODES
from r3_openrlhf.method.history.eviction import Candidate, richest_first, rows_over
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Context, PromisingState, Verdict
from r3_openrlhf.operations.store.verification import verify

from .samples import counts, dump, make_rollout, noisy_rollout

GRADED = (Verdict.CORRECT, Verdict.WRONG)
CAP = 1_000_000


def open_store(path):
    return HistoryStore.open(
        path, limits=HistorySettings(max_bytes=CAP, max_per_problem_and_verdict=8)
    )


def kept(store, uid, verdict=Verdict.WRONG):
    return len(
        store.recall(
            uid, verdict, k=99, step=10**6, max_policy_lag=10**6, contexts=tuple(Context)
        )
    )


def leaving(rollouts, *, surplus_share):
    """Every row of a store that holds `rollouts`, in the order in which they leave, with what tells them apart."""
    with HistoryStore.open(":memory:") as store:
        for step, of_step in enumerate(rollouts):
            store.commit_step(step, 1, of_step)
        connection = store._connection
        total = connection.execute("SELECT sum(bytes) FROM rollouts").fetchone()[0] or 0
        order = []
        for row, size in richest_first(
            connection, surplus=int(total * surplus_share), live=total
        ):
            assert size > 0
            order.append(row)
            connection.execute("UPDATE rollouts SET evicted_at = 99 WHERE id = ?", (row,))
        columns = "r.id, r.problem, r.verdict, r.context, r.step, r.content"
        rows = {row[0]: row for row in connection.execute(f"SELECT {columns} FROM rollouts r")}
        return [rows[row] for row in order]


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
    surplus_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_row_by_row_a_largest_set_gives_the_row_that_leaves_it_first(rollouts, surplus_share):
    """The plainest way: look at all sets, take from a largest one the row that `rows_over` names, the oldest of those; where every
    set has one row, an error."""
    contexts = dict(enumerate(Context))
    order = leaving(rollouts, surplus_share=surplus_share)
    sets = {}
    for row, problem, verdict, context, step, content in order:
        candidate = Candidate(row, contexts[context], step, content)
        is_imported = candidate.context is Context.IMPORTED
        sets.setdefault((problem, verdict, is_imported), []).append(candidate)
    expected = []
    while any(sets.values()):
        largest = max(map(len, sets.values()))
        first = [
            (
                largest == 1 and verdict == VERDICT_CODES[Verdict.CORRECT],
                rows_over(rows, cap=largest - 1, max_states=1)[0],
                rows,
            )
            for (_, verdict, _), rows in sets.items()
            if len(rows) == largest
        ]
        _, chosen, rows = min(
            first, key=lambda one: (one[0], one[1].step, one[1].content, one[1].row)
        )
        rows.remove(chosen)
        expected.append(chosen.row)
    assert [row for row, *_ in order] == expected


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    # a blob of 1,100 tokens is a little larger than a page of the file
    sizes=st.lists(
        st.sampled_from([1, 5, 60, 300, 970, 1000, 1100, 3000]), min_size=1, max_size=4
    ),
    problems=st.integers(1, 60),
    rows=st.integers(1, 24),
    every=st.integers(1, 6),
    prompt=st.sampled_from([1, 400]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_file_stays_below_the_cap(quick_path, sizes, problems, rows, every, prompt, seed):
    rng = np.random.default_rng(seed)
    path = Path(tempfile.mkdtemp(dir=quick_path)) / "history.sqlite"
    sampled = 0
    with open_store(path) as store:
        for step in range(24):
            batch = [
                noisy_rollout(
                    f"p{rng.integers(problems)}",
                    int(rng.choice(sizes)),
                    prompt=rng.integers(0, 9, prompt),
                )
                for _ in range(rows)
            ]
            store.commit_step(step, 1, batch)
            sampled += rows
            if step % every == 0:
                store.set_rollback_floor(step)
            assert path.stat().st_size <= CAP
        assert (
            sum(
                sum(count for count, _ in counts(store, f"p{n}").values())
                for n in range(problems)
            )
            == sampled
        )
    assert verify(path).findings == []


def test_a_step_much_larger_than_those_before_it_does_not_close_the_store(quick_path):
    """It may not fit at once, but from then on there is room for its like."""
    with open_store(quick_path / "history.sqlite") as store:
        found = []
        for step in range(90):
            tokens = 5000 if step % 30 < 27 else 40_000
            store.commit_step(step, 1, [noisy_rollout(f"p{step}", tokens, policy_step=step)])
            store.set_rollback_floor(step)
            found.append(
                bool(store.recall(f"p{step}", Verdict.WRONG, k=1, step=step, max_policy_lag=0))
            )
        refused = [step for step in range(90) if not found[step]]
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
        assert counts(store, "p59")[Context.PLAIN, Verdict.WRONG][0] == 1
        assert store.recall("p59", Verdict.WRONG, k=1, step=60, max_policy_lag=99) == []
        # half is kept
        assert len(store.recall("p20", Verdict.WRONG, k=1, step=60, max_policy_lag=99)) == 1
        store.roll_back(0)
        assert dump(path) == before
        store.commit_step(1, 1, [noisy_rollout("again", 5000)])
        assert len(store.recall("again", Verdict.WRONG, k=1, step=60, max_policy_lag=99)) == 1


def test_without_room_for_a_newer_sample_the_older_one_stays(quick_path):
    with open_store(quick_path / "history.sqlite") as store:
        for step in range(60):
            store.commit_step(step, 1, [noisy_rollout(f"p{step}", 5000)])
        (old,) = store.recall("p20", Verdict.WRONG, k=1, step=60, max_policy_lag=99)
        store.commit_step(60, 1, [old.rollout])
        (still,) = store.recall("p20", Verdict.WRONG, k=1, step=60, max_policy_lag=99)
        assert still.row == old.row
        assert sum(count for count, _ in counts(store, "p20").values()) == 2
    assert verify(quick_path / "history.sqlite").findings == []


# ── exploration.rrl ──


def test_no_state_is_lost_before_its_problem_is_visited_again():
    """Groups of 16 under a cap of 6, as where 124 of 200 states went in the commit that brought them."""
    limits = HistorySettings(max_per_problem_and_verdict=6)
    with HistoryStore.open(":memory:", limits=limits) as store:
        for problem in range(200):
            group = [make_rollout(f"p{problem}", ids=[row, problem, 5]) for row in range(16)]
            earlier = (PromisingState(num_tokens=1, value=0.25),)
            group[problem % 16].state = PromisingState(num_tokens=2, value=0.5, earlier=earlier)
            store.commit_step(problem + 1, 1, group)
        states = store.states(step=200)
        assert {(one.uid, one.num_tokens) for one in states} == {
            (f"p{n}", size) for n in range(200) for size in (1, 2)
        }
        # a state is one more
        assert max(kept(store, f"p{problem}") for problem in range(200)) == 7
