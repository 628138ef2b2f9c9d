"""The store's promises, one by one, on examples that can be followed by hand."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf.method.errors import ConfigError, HistoryError
from r3_openrlhf.method.history import HistoryStore
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Context, HardBy, Verdict
from r3_openrlhf.operations.store.verification import verify

from .samples import counts, dump, make_rollout, values


def open_memory(**options):
    limits = HistorySettings(**{"max_per_problem_and_verdict": 4, **options})
    return HistoryStore.open(":memory:", limits=limits)


def wrong_ids(store, *, step=100, lag=100, k=99, **options):
    """First token of every recallable wrong rollout of problem p."""
    found = store.recall("p", Verdict.WRONG, k=k, step=step, max_policy_lag=lag, **options)
    return sorted(int(stored.rollout.response_ids[0]) for stored in found)


# -0.0, denormals
any_logprob = st.integers(0, 0x7E000000).map(lambda bits: -np.uint32(bits).view(np.float32))


@settings(max_examples=50)
@given(
    uid=st.text(max_size=20),
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40),
    prompt=st.lists(st.integers(0, 2**31 - 1), max_size=40),
    reward=st.floats(-1e6, 1e6),
    verdict=st.sampled_from([Verdict.CORRECT, Verdict.WRONG]),
    context=st.sampled_from(Context),
    entropy=st.none() | st.tuples(st.floats(0, 20), st.floats(0, 20)),
    texts=st.tuples(st.text(max_size=8), st.text(max_size=8)),
    data=st.data(),
)
def test_a_rollout_comes_back_bit_for_bit(
    uid, ids, prompt, reward, verdict, context, entropy, texts, data
):
    logprobs = data.draw(st.lists(any_logprob, min_size=len(ids), max_size=len(ids)))
    rollout = make_rollout(
        uid,
        ids=ids,
        logprobs=logprobs,
        prompt=prompt,
        reward=reward,
        verdict=verdict,
        context=context,
        entropy=entropy,
        policy_step=3,
        epoch=2,
        truncated=data.draw(st.booleans()),
        finish_reason=texts[0],
        reason=texts[1],
    )
    with open_memory() as store:
        store.commit_step(5, 2, [rollout])
        (stored,) = store.recall(
            uid, verdict, k=1, step=5, max_policy_lag=2, contexts=(context,)
        )
    assert values(stored.rollout) == values(rollout)
    assert (stored.step, stored.copies, stored.evicted_at) == (5, 1, None)


def test_counters_and_mean_reward_by_hand():
    store = open_memory()
    store.commit_step(
        1,
        1,
        [
            make_rollout(ids=[1], verdict=Verdict.CORRECT, reward=1.5),
            make_rollout(ids=[2], verdict=Verdict.CORRECT, reward=1.75),
            make_rollout(ids=[3]),
            make_rollout(ids=[4], verdict=Verdict.UNGRADED),
            make_rollout(
                ids=[5], verdict=Verdict.CORRECT, reward=2.0, context=Context.REFLECTION
            ),
            make_rollout("q", ids=[6], verdict=Verdict.UNGRADED),
        ],
    )
    assert counts(store, "p") == {
        (Context.PLAIN, Verdict.CORRECT): (2, 3.25),
        (Context.PLAIN, Verdict.WRONG): (1, 0.0),
        (Context.PLAIN, Verdict.UNGRADED): (1, 0.0),
        (Context.REFLECTION, Verdict.CORRECT): (1, 2.0),
    }
    assert store.means(HardBy.REWARD) == {"p": 3.25 / 3}  # the ungraded one is no zero
    assert store.means(HardBy.SUCCESS_RATE) == {"p": 2 / 3}


def best_two_first(candidates, k, rng):
    return sorted(candidates, key=lambda one: (one.reward, one.num_tokens), reverse=True)[:k]


def worst(candidates, k, rng):
    return candidates[0].no_such_thing if candidates[0].reward > 1.5 else candidates[:k]


def test_an_order_of_a_user_sees_reward_and_length():
    store = open_memory()
    rollouts = [
        make_rollout(ids=[n] * n, verdict=Verdict.CORRECT, reward=1.5 + n % 3 / 10)
        for n in (1, 2, 3, 5)
    ]
    store.commit_step(1, 1, rollouts)
    request = {"verdict": Verdict.CORRECT, "k": 2, "step": 1, "max_policy_lag": 9}
    found = store.recall("p", order=f"{__name__}:best_two_first", **request)
    assert [stored.rollout.num_tokens for stored in found] == [5, 2]
    with pytest.raises(
        HistoryError,
        match="replay.order .*worst failed on 4 candidates of problem 'p': AttributeError",
    ):
        store.recall("p", order=f"{__name__}:worst", **request)


def test_recall_depends_on_seed_and_step_and_nothing_else(tmp_path):
    rollouts = [make_rollout(ids=[n]) for n in range(16)]
    answers = []
    for seed, order in ((1, rollouts), (1, rollouts[::-1]), (2, rollouts)):
        store = HistoryStore.open(":memory:", seed=seed)
        for part in (order[:5], order[5:]):
            store.commit_step((store.last_step or 0) + 1, 1, part)
        answers.append([wrong_ids(store, step=step, k=2) for step in range(20)])
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]
    assert len({tuple(answer) for answer in answers[0]}) > 10


def test_the_order_of_arrival_leaves_no_trace(tmp_path):
    rng = random.Random(5)
    steps = [
        [
            make_rollout(
                rng.choice("pq"),
                ids=[rng.randrange(6)],
                logprobs=[-rng.randrange(3)],
                verdict=rng.choice(list(Verdict)),
                context=rng.choice(list(Context)),
                policy_step=step - rng.randrange(2),
            )
            for _ in range(20)
        ]
        for step in range(1, 6)
    ]
    dumps = []
    for name in ("one", "two"):
        with HistoryStore.open(
            tmp_path / name, limits=HistorySettings(max_per_problem_and_verdict=3)
        ) as store:
            for step, rollouts in enumerate(steps, start=1):
                store.commit_step(step, 1, rng.sample(rollouts, len(rollouts)))
        dumps.append(dump(tmp_path / name))
    assert dumps[0] == dumps[1]


def test_below_the_floor_space_is_reused(quick_path):
    """With the floor at every step the file stops growing; without it every row stays for a roll-back."""
    sizes = {}
    for moves in (True, False):
        path = quick_path / str(moves)
        with HistoryStore.open(
            path, limits=HistorySettings(max_per_problem_and_verdict=4)
        ) as store:
            for step in range(60):
                store.commit_step(
                    step, 1, [make_rollout(ids=[step, n] * 2000) for n in range(4)]
                )
                if moves:
                    store.set_rollback_floor(step)
                if step == 10:
                    sizes[moves, "early"] = path.stat().st_size
        sizes[moves, "late"] = path.stat().st_size
    assert sizes[True, "late"] <= 1.2 * sizes[True, "early"]
    assert sizes[False, "late"] > 3 * sizes[False, "early"]


def test_the_floor_only_rises():
    store = open_memory()
    store.set_rollback_floor(0)  # an empty store has nothing to promise
    for step in (1, 2, 3):
        store.commit_step(step, 1, [make_rollout(ids=[step])])
    store.set_rollback_floor(2)
    store.set_rollback_floor(1)
    with pytest.raises(HistoryError, match="resume from step 2"):
        store.roll_back(1)
    with pytest.raises(HistoryError, match="floor 9 is after the newest step"):
        store.set_rollback_floor(9)
    # before everything is not below the floor: nothing remains that it could have promised
    store.roll_back(0)
    assert (store.last_step, store.rollback_floor, wrong_ids(store)) == (None, None, [])


def test_a_lower_cap_binds_from_the_next_commit_on(tmp_path):
    path = tmp_path / "history.sqlite"
    with HistoryStore.open(path) as store:
        store.commit_step(1, 1, [make_rollout(uid, ids=[n]) for uid in "pq" for n in range(6)])
    with HistoryStore.open(
        path, limits=HistorySettings(max_per_problem_and_verdict=2)
    ) as store:
        store.commit_step(2, 1, [make_rollout(ids=[9])])  # does not touch q
        for uid in "pq":
            assert len(store.recall(uid, Verdict.WRONG, k=99, step=2, max_policy_lag=9)) == 2
        store.roll_back(1)
        assert len(store.recall("q", Verdict.WRONG, k=99, step=2, max_policy_lag=9)) == 6
    assert verify(path).findings == []


def test_a_reason_with_broken_unicode_is_kept():
    store = open_memory()
    store.commit_step(1, 1, [make_rollout(reason="a\ud800")])
    assert (
        store.recall("p", Verdict.WRONG, k=1, step=1, max_policy_lag=1)[0].rollout.reason
        == "a\\ud800"
    )


def test_an_order_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="'best', which does not exist; did you mean newest"):
        open_memory().recall("p", Verdict.WRONG, k=1, step=1, max_policy_lag=1, order="best")


def test_a_closed_store_says_so():
    store = open_memory()
    store.close()
    store.close()
    with pytest.raises(HistoryError, match="is closed"):
        store.commit_step(1, 1, [])
    with pytest.raises(HistoryError, match="is closed"):
        store.means(HardBy.REWARD)
