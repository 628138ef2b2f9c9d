"""Imported successes: when they join, what their ratio is taken against, and what they never count in."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf.method.core.batch_metrics import batch_metrics
from r3_openrlhf.method.errors import InvalidValue
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.prompts import ChatPrompts
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.types import Context, HardBy
from tests.method.steps import C, W, rollout, settings_of


def imported(uid="a", *, number=50):
    made = rollout(C, uid=uid, number=number, context=Context.IMPORTED)
    return replace(made, origin="teacher T", response_logprobs=np.zeros(0, np.float32))


def begun(*rows):
    store = HistoryStore.open(":memory:")
    store.commit_step(0, 1, rows)
    return store


@pytest.mark.parametrize(
    ("use", "joins"), [("recall", [1, 0]), ("rehearse", [0, 1]), ("both", [1, 1])]
)
def test_they_join_all_wrong_groups_and_rehearsal_however_old(use, joins):
    r3 = R3(
        settings_of(replay__imported__use=use, replay__rehearse__share=1.0),
        history=begun(imported(), imported("b")),
    )
    batch = r3.mix([rollout(W, number=i, step=10**6) for i in range(4)], step=10**6)
    rows = [row for row in batch.rows if row.recalled]
    assert [sum(row.rehearsed is place for row in rows) for place in (False, True)] == joins
    assert all(row.old_logprobs is None for row in rows)  # ratio 1: nothing is known
    numbers = batch_metrics(batch, step=10**6)
    assert numbers["r3/replay/imported"] == sum(joins) and numbers["r3/replay/max_lag"] == 0.0
    if use != "rehearse":  # rewards 0 0 0 0 1: mean .2, std .4472
        assert batch.rows[4].advantage == pytest.approx(1.788854, abs=1e-6)
    # after its own prompt alone
    for verdict, context in (
        (C, Context.PLAIN),
        (W, Context.REFLECTION),
        (W, Context.HINT),
    ):
        batch = r3.mix([rollout(verdict, number=i, context=context) for i in range(4)], step=5)
        assert not any(row.recalled and not row.rehearsed for row in batch.rows)


@given(
    num_own=st.integers(0, 12),
    num_imported=st.integers(0, 3),
    k=st.integers(1, 4),
    places=st.integers(1, 4),
    same=st.booleans(),
)
def test_imported_rows_have_places_that_own_successes_never_take(
    num_own, num_imported, k, places, same
):
    """Law: however many successes the run finds, and whatever the cap evicts of them."""
    places = min(places, k)
    settings = settings_of(
        replay__k=k, replay__imported__k=places, history__max_per_problem_and_verdict=6
    )
    traces = [imported(number=number + 50) for number in range(num_imported)]
    store = HistoryStore.open(":memory:", limits=settings.history)
    store.commit_step(0, 1, traces)
    for step in range(num_own):
        number = 50 + step if same else step  # own successes may equal the traces
        store.commit_step(step + 1, 1, [rollout(C, number=number, step=step + 1)])
    batch = R3(settings, history=store).mix(
        [rollout(W, number=100 + i, step=20) for i in range(4)], step=20
    )
    recalled = [bool(row.rollout.origin) for row in batch.rows if row.recalled]
    assert sum(recalled) == min(places, num_imported)
    assert recalled.count(False) == min(k - places, num_own, 6)


def test_without_places_of_their_own_they_are_drawn_with_the_others():
    own = [rollout(C, number=number) for number in range(9)]
    r3 = R3(settings_of(replay__k=1), history=begun(imported(), *own))
    drawn = [bool(r3.stored("a", C, step=step)[0].origin) for step in range(200)]
    assert 5 <= sum(drawn) <= 40  # a tenth of 200


def test_a_falling_share_spreads_supervised_rows_over_the_run():
    """Of eight problems four successes join four rows at first, one less each step; at ratio 1 and advantage 1 each is NLL."""
    settings = settings_of(
        replay__rehearse__share=1.0,
        replay__rehearse__until=4,
        replay__imported__weight="ratio1",
    )
    r3 = R3(settings, history=begun(*(imported(uid) for uid in "bcdefghi")))
    batches = [
        r3.mix([rollout(W, number=i) for i in range(4)], step=step).trained[4:]
        for step in range(6)
    ]
    found = [[(one.advantage, one.old_logprobs) for one in rows] for rows in batches]
    assert found == [[(1.0, None)] * number for number in (4, 3, 2, 1, 0, 0)]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([C, W]), st.integers(0, 5)),
        max_size=12,
    ),
    st.booleans(),
)
def test_no_rate_knows_them(own, same):
    """Law: whatever the run samples, every rate is that of a store without imports (test_model.py: eviction and roll-back)."""
    rows = [rollout(verdict, uid=uid, number=number) for uid, verdict, number in own]
    with begun(imported(number=0 if same else 50)) as store, begun() as plain:
        for one in (store, plain):
            one.commit_step(1, 1, rows)
        assert all(store.means(by) == plain.means(by) for by in HardBy)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (replace(imported(), origin=""), "origin"),
        (replace(rollout(C), origin="run x"), "origin"),
        (replace(rollout(C), response_logprobs=np.zeros(0, np.float32)), "response_logprobs"),
        (replace(imported(), response_logprobs=np.zeros(1, np.float32)), "response_logprobs"),
        (
            replace(imported(), response_logprobs=np.full(2, np.nan)),
            r"response_logprobs\[0\] is nan",
        ),
    ],
)
def test_absence_is_no_number(made, field):
    with begun() as store, pytest.raises(InvalidValue, match=field):
        store.commit_step(1, 1, [made])


def test_a_success_after_a_hint_is_the_problem_s_and_no_rate_s():
    """Step 0: three failures of a plain prompt, and after the answer one success. It is recalled into the all-wrong group, and
    rehearsed, both after the plain prompt; the hint's own group is no part of a pass rate."""
    told = replace(
        rollout(C, number=7, context=Context.HINT), prompt_ids=np.array([1, 9, 9], np.int32)
    )
    plain = [rollout(W, number=i) for i in range(3)]
    r3 = R3(
        settings_of(reflection__hint=True, replay__rehearse__share=1.0),
        history=HistoryStore.open(":memory:"),
    )
    r3.remember([*plain, told], step=0, epoch=1)
    assert [r3.history.means(by) for by in HardBy] == [{"a": 0.0}] * 2
    for uid, joins in (("a", [1, 0]), ("b", [0, 1])):
        batch = r3.mix([rollout(W, uid=uid, number=i) for i in range(3)], step=1)
        rows = [row for row in batch.rows if row.recalled]
        assert [sum(row.rehearsed is place for row in rows) for place in (False, True)] == joins
        assert (
            rows[0].old_logprobs is None
            and rows[0].rollout.response_ids.tolist() == told.response_ids.tolist()
        )
        assert batch.prompt_ids_of(rows[0]).tolist() == plain[0].prompt_ids.tolist()
    numbers = batch_metrics(r3.mix([*plain, told, told], step=1), step=1)
    assert (numbers["fresh/accuracy"], numbers["fresh/score"], numbers["r3/hint/accuracy"]) == (
        0.0,
        0.0,
        1.0,
    )
    assert (numbers["r3/hint/groups"], numbers["r3/hint/recalled"]) == (1.0, 1.0)


def test_a_hint_shows_the_reference_to_hard_problems_alone(byte_tokenizer):
    problems = [
        SimpleNamespace(uid=uid, problem=f"What is {uid}?", references=refs)
        for uid, refs in (("a", ["42"]), ("b", []))
    ]
    r3 = R3(
        settings_of(reflection__hint=True, reflection__max_share=1.0),
        history=HistoryStore.open(":memory:"),
    )
    r3.remember([rollout(W, uid=one.uid) for one in problems], step=0, epoch=1)
    render = ChatPrompts(byte_tokenizer, max_prompt_tokens=2000, render=str)
    *plain, told = r3.prompts(problems, step=1, epoch=2, render=render)
    assert [one.context for one in plain] == [Context.PLAIN] * 2 and (
        told.context,
        told.place,
    ) == (Context.HINT, 0)
    assert told.prompt.startswith(
        "What is a?\n\nThe final answer of this problem is known: 42\n\nSolve the problem"
    )
    assert [
        len(list(r3.prompts(problems, step=1, epoch=epoch, render=render))) for epoch in (1, 2)
    ] == [2, 3]
    render.max_prompt_tokens = 40
    assert (
        r3.prompts(problems, step=1, epoch=2, render=render).metrics()[
            "r3/reflection/without_room"
        ]
        == 2.0
    )


def test_a_group_that_begins_with_a_success_is_given_less_once_it_solves_it():
    """Eight tokens: 6, then 4 when a quarter of the continuations are right, then 2, then none. Nobody else gets one: problem b has no
    success, c was solved, d was never asked."""
    success = replace(imported(), response_ids=np.arange(50, 58, dtype=np.int32))
    history = begun(success, replace(success, uid="c"), replace(success, uid="d"))
    r3 = R3(
        settings_of(
            replay__imported__use="prefix",
            reflection__enabled=False,
            replay__imported__prefix_share=1.0,
        ),
        history=history,
    )
    problems = [SimpleNamespace(uid=uid) for uid in "abcd"]
    lengths = []
    for step in range(1, 8):
        sampled = [
            rollout(W, uid="a"),
            rollout(W, uid="b"),
            rollout(C if step == 1 else W, uid="c"),
        ]
        prompts = r3.prompts(
            problems,
            step=step,
            epoch=1,
            render=SimpleNamespace(plain=lambda problem: problem.uid),
        )
        extra = [one for one in prompts if one.context is Context.PREFIX]
        assert [(one.prompt, one.place) for one in extra] == (
            [] if step in (1, 6, 7) else [("a", 0)]
        )
        for one in extra:
            lengths.append(len(one.prefix.ids))
            assert (
                one.prefix.ids.tolist() == list(range(50, 50 + lengths[-1]))
                and not one.prefix.logprobs.any()
            )
            # step 2 has no success, later ones have one of two
            for verdict in (
                C if step > 2 else W,
                W,
            ):
                ids = np.array([*one.prefix.ids, 7, int(verdict is C)], np.int32)
                given = {
                    "response_ids": ids,
                    "response_logprobs": np.zeros(len(ids), np.float32),
                    "given": ((0, lengths[-1]),),
                }
                sampled.append(
                    replace(rollout(verdict, uid="a", context=Context.PREFIX), **given)
                )
        r3.remember(sampled, step=step, epoch=1)
    assert lengths == [6, 6, 4, 2]  # 0 of 2, then 1 of 4
    assert r3.stored("a", C, step=8) == []  # nothing else is asked of the import
