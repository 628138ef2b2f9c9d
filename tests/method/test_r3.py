"""The step that every loop makes: what the settings decide, on rows that can be worked out by hand."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.batch_metrics import batch_metrics, trained_tokens
from r3_openrlhf.method.core.groups import RankingFate, RecallFate
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import (
    Context,
    EntropyStatistics,
    PromisingState,
    Verdict,
)
from tests.method.steps import C, Storing, W, bounds, rollout, settings_of


@pytest.fixture
def history():
    """Of problem "a": successes of the steps 0, 4 and 5, the last from a reflection prompt."""
    with HistoryStore.open(":memory:") as store:
        store.commit_step(1, 1, [rollout(C, number=1)])
        store.commit_step(5, 1, [rollout(C, number=2, step=4)])
        store.commit_step(
            6, 1, [rollout(C, number=3, step=5, context=Context.REFLECTION, prompt=(1, 2, 3))]
        )
        yield store


def numbers(found):
    return sorted(int(one.response_ids[1]) for one in found)


def test_what_is_recalled_follows_the_section_replay(history):
    def recalled(verdict=C, **keys):
        settings = settings_of(**{f"replay__{name}": value for name, value in keys.items()})
        return numbers(R3(settings, history=history).stored("a", verdict, step=6))

    assert recalled() == [1, 2]
    assert recalled(k=1, order="newest") == [2]
    assert recalled(max_policy_lag=2) == [2]
    assert recalled(include_reflection=True, k=5) == [1, 2, 3]
    assert recalled(W) == recalled(enabled=False) == []


def of_rows(rows):
    return sorted((int(row.response_ids[1]), row.policy_step) for row in rows)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("old_logprobs", ["behaviour", "recompute"])
def test_no_response_is_recalled_twice_and_no_failure_without_a_bound(include, old_logprobs):
    """Of each verdict one response from both prompts and from two shown errors, and one from an error alone."""
    errors = dict(context=Context.REFLECTION, prompt=(1, 2, 4))
    with HistoryStore.open(":memory:") as store:
        for verdict, number in ((C, 7), (W, 17)):
            made = [rollout(verdict, number=n, step=3, **errors) for n in (number, number + 1)]
            made += [
                rollout(
                    verdict, number=number, step=2, context=Context.REFLECTION, prompt=(1, 2, 3)
                )
            ]
            store.commit_step(number, 1, [rollout(verdict, number=number, step=1), *made])
        settings = settings_of(
            replay__k=9, replay__include_reflection=include, replay__old_logprobs=old_logprobs
        )
        for state, number in ((W, 7), (C, 17)):  # all wrong: a success joins
            fresh = [
                rollout(state, number=i, context=where)
                for where in ("plain", "reflection")
                for i in range(2)
            ]
            batch = R3(settings, history=store).recall(fresh, step=30)
            plain, reflection = (
                [batch.rows[i] for i in group.recalled] for group in batch.groups
            )
            both = include and (state == W or old_logprobs == "recompute")
            whole = [(number, 1), (number + 1, 3)] if both else [(number, 1)]
            assert of_rows(row.rollout for row in plain) == whole
            assert of_rows(row.rollout for row in reflection) == (whole if state == W else [])
            assert (batch.groups[1].replay is RecallFate.STARTS_ELSEWHERE) == (state == C)
            assert batch_metrics(batch, step=30)["r3/replay/starts_elsewhere"] == (state == C)
            if state == C and old_logprobs == "behaviour":
                assert all(row.old_logprobs is not None for row in plain)
        found = store.recall(
            "a", C, k=9, step=30, max_policy_lag=30, contexts=(Context.REFLECTION,)
        )
        assert of_rows(one.rollout for one in found) == [(7, 3), (8, 3)]


def test_what_a_step_remembers_is_recalled_in_the_next_and_forgotten_when_it_is_rolled_back(
    history,
):
    r3 = R3(settings_of(replay__k=9), history=history)
    r3.remember([rollout(C, number=7, step=6)], step=6, epoch=2)
    assert numbers(r3.stored("a", C, step=7)) == [1, 2, 7] and history.last_step == 7
    r3.roll_back(6)
    assert numbers(r3.stored("a", C, step=6)) == [1, 2] and history.last_step == 6
    without = R3()
    without.remember([rollout(C)], step=0, epoch=1)
    without.roll_back(0)
    assert without.stored("a", C, step=1) == []


def test_every_group_says_what_became_of_it():
    """Five collapsed groups: one with a stored success, one whose successes were evicted, one whose are too old, one that
    never had any, and one that is all right and has a stored failure. The sixth is mixed and asks for nothing."""
    limits = HistorySettings(max_per_problem_and_verdict=1)
    with HistoryStore.open(":memory:", limits=limits) as store:
        store.commit_step(1, 1, [rollout(C, uid=uid, step=7) for uid in ("stored", "evicted")])
        store.commit_step(
            2, 1, [rollout(C, uid="too old", step=1), rollout(W, uid="right", step=7)]
        )
        store.set_rollback_floor(2)
        with store._transaction("evict from") as connection:  # as a full file does
            connection.execute(
                "UPDATE rollouts SET evicted_at = 2 WHERE problem = (SELECT id FROM problems WHERE uid = 'evicted')"
            )
        uids = ("stored", "evicted", "too old", "never")
        fresh = [
            rollout(W, uid=uid, number=i, truncated=True) for uid in uids for i in range(2)
        ]
        fresh += [rollout(C, uid="right", number=i) for i in range(2)] + [
            rollout(C, uid="m"),
            rollout(W, uid="m"),
        ]
        r3 = R3(settings_of(replay__max_policy_lag=5), history=store)
        # the second row of each problem has the higher peak and the lower mean
        sharp = [np.array([1.0, 1.0]), np.array([0.0, 1.75])]
        batch = r3.mix(fresh, step=9, entropy=sharp * (len(fresh) // 2))
        assert [(group.replay, group.ranking) for group in batch.groups] == [
            (RecallFate.RECALLED, RankingFate.RANKED),
            (RecallFate.EVICTED, RankingFate.RANKED),
            (RecallFate.TOO_OLD, RankingFate.RANKED),
            (RecallFate.NEVER_SAMPLED, RankingFate.RANKED),
            (RecallFate.RECALLED, RankingFate.NOT_ALL_WRONG),
            (RecallFate.NOT_COLLAPSED, RankingFate.NOT_ALL_WRONG),
        ]
        metrics = r3.metrics(batch, step=9)
        assert {key: value for key, value in metrics.items() if "/history/" in key} == {
            "r3/history/coverage": 2 / 5,
            "r3/history/never_sampled": 1.0,
            "r3/history/evicted": 1.0,
            "r3/history/too_old": 1.0,
        }
        assert metrics["r3/replay/hits"] == 2
        off = R3(settings_of(replay__enabled=False), history=store).recall(fresh, step=9)
        assert {group.replay for group in off.groups} == {RecallFate.OFF}
        assert R3(settings_of(replay__enabled=False), history=store).coverage(off) == {}
        successes = R3(settings_of(replay__recall_failures=False), history=store)
        batch = successes.recall(fresh, step=9)
        assert batch.groups[4].replay is RecallFate.FAILURES_OFF
        assert successes.coverage(batch)["r3/history/never_sampled"] == 1.0
        none = r3.recall([rollout(C), rollout(W)], step=9)
        assert r3.coverage(none)["r3/history/coverage"] == 1.0


def test_an_order_that_chooses_nothing_is_told_from_an_empty_store(history, tmp_path):
    orders = tmp_path / "orders.py"
    orders.write_text("def none(candidates, k, rng):\n    return []\n")
    r3 = R3(settings_of(replay__order=f"{orders}:none"), history=history)
    batch = r3.recall([rollout(W, number=i) for i in range(2)], step=6)
    assert (batch.groups[0].replay, batch.groups[0].absence) == (RecallFate.NOT_CHOSEN, None)


def test_nothing_is_recalled_or_ranked_where_it_is_switched_off():
    rows = [rollout(W, number=i, truncated=True) for i in range(2)]
    batch = Storing(lambda uid, verdict: [rollout(C)], replay__enabled=False).recall(
        rows, step=0
    )
    assert len(batch.rows) == 2
    for keys, ranked, fate in (
        ({"ranking__enabled": False}, {}, RankingFate.OFF),
        ({}, {0: [0, 1]}, RankingFate.TOO_FEW),  # until it is ranked
        ({"ranking__scope": "failed"}, {0: [0, 1]}, RankingFate.TOO_FEW),
    ):
        r3 = R3(settings_of(**keys))
        batch = r3.recall(rows, step=0)
        assert (r3.rows_to_rank(batch), batch.groups[0].ranking) == (ranked, fate)


def test_trained_tokens_are_prompt_and_response_of_every_trained_row_in_every_pass():
    fresh = [rollout(W, number=i) for i in range(3)]  # two and two tokens each
    r3 = Storing(
        lambda uid, verdict: [rollout(C, number=9, prompt=(1, 2, 3, 4))], replay__mode="replace"
    )
    # one row gave way; the recalled one is trained with the prompt of the group, two tokens long
    assert trained_tokens(r3.recall(fresh, step=1), passes=2) == 2 * 3 * 4


def test_which_rows_give_way_depends_on_seed_and_step_alone():
    def given_way(seed, step):
        r3 = Storing(
            lambda uid, verdict: [rollout(C, number=9)], seed=seed, replay__mode="replace"
        )
        batch = r3.recall([rollout(W, number=i) for i in range(8)], step=step)
        return [row.index for row in batch.rows if not row.trained]

    assert given_way(1, 1) == given_way(1, 1) and len(given_way(1, 1)) == 1
    assert len({tuple(given_way(seed, step)) for seed in range(6) for step in range(6)}) > 3


def test_stored_logprobs_need_the_same_prompt_and_the_key():
    fresh = [rollout(W), rollout(W, number=1)]

    def old(**keys):
        r3 = Storing(lambda uid, verdict: [rollout(C), rollout(C, prompt=(9,))], **keys)
        return [row.old_logprobs is not None for row in r3.recall(fresh, step=1).rows]

    assert old() == [False, False, True, False]
    assert not any(old(replay__old_logprobs="recompute"))


@pytest.mark.parametrize(
    ("source", "width", "exact"),
    [
        ("auto", 0.1, set()),
        ("auto", 9.0, {0, 1}),
        ("auto", None, {0, 1}),
        ("exact", 0.1, {0, 1}),
        ("topk", 9.0, set()),
    ],
)
def test_exact_entropy_is_asked_for_where_bounds_do_not_decide(source, width, exact):
    """Bounds that do not overlap decide; with a width of None the second row has none."""
    rows = [
        rollout(W, number=i, truncated=True, bounds=bounds(1.0 + i, width or 0.1))
        for i in range(2)
    ]
    rows[1].entropy_bounds = width and rows[1].entropy_bounds
    r3 = R3(settings_of(ranking__entropy_source=source))
    batch = r3.recall(rows, step=0)
    assert r3.rows_to_measure(batch) == exact
    r3.assign_advantages(
        batch, dict.fromkeys(exact, EntropyStatistics(peak=1.0, global_=0.5, source="exact"))
    )
    assert batch.groups[0].entropy_source == ("exact" if exact else "topk")


def test_a_ranked_row_without_any_entropy_is_told():
    with pytest.raises(
        TrainingStopped, match="problem a has neither token entropies nor bounds"
    ):
        R3().mix([rollout(W, number=i, truncated=True) for i in range(2)], step=0)


@pytest.mark.parametrize("as_tokens", [False, True])
def test_a_row_keeps_its_three_rewards(as_tokens):
    """Two truncated failures, ranked 0.5 and 0, centred to 0.25 and -0.25, not scaled: nobody verified a difference."""
    rows = [rollout(W, number=i, truncated=True) for i in range(2)]
    statistics = [(2.0, 0.1), (1.0, 0.2)]
    entropy = [
        EntropyStatistics(peak=peak, global_=mean, source="exact") for peak, mean in statistics
    ]
    if as_tokens:  # peaks 2 and 1.5, means 1 and 1.5
        entropy = [np.array([2.0, 0.0]), np.array([1.5, 1.5])]
    batch = R3().mix(rows, step=0, entropy=entropy)
    assert [row.outcome_reward for row in batch.rows] == [0.0, 0.0]
    assert [row.ranking_reward for row in batch.rows] == [0.5, 0.0]
    assert [row.reward for row in batch.rows] == [0.25, -0.25]
    assert [row.advantage for row in batch.rows] == approx([0.25, -0.25])


def test_a_ranking_by_logprob_asks_for_no_entropy():
    """Mean log-probs -0.5 and -0.1: the second ranks first. No bound, no exact entropy, no engine's top-k is needed."""
    rows = [rollout(W, number=i, truncated=True) for i in range(2)]
    rows[1].response_logprobs = np.full(2, -0.1, dtype=np.float32)
    r3 = R3(settings_of(ranking__score="logprob"))
    batch = r3.recall(rows, step=0)
    assert r3.rows_to_measure(batch) == set()
    r3.assign_advantages(batch)
    assert [row.ranking_reward for row in batch.rows] == [0.0, 0.5]
    assert [row.advantage for row in batch.rows] == approx([-0.25, 0.25])
    metrics = batch_metrics(batch, step=0)
    assert (metrics["r3/ranking/groups"], metrics["r3/ranking/groups_exact"]) == (1, 0)


# ── exploration.rrl ──


def failure(uid, ids, verdict=W, *, given=0, step=0):
    made = rollout(
        verdict, uid=uid, step=step, context=Context.PREFIX if given else Context.PLAIN
    )
    made.response_ids = np.array(ids, dtype=np.int32)
    made.response_logprobs = np.linspace(-1, -0.5, len(ids), dtype=np.float32)
    made.given = ((0, given),) if given else ()
    return made


def marked(rollouts, values, *, limit=5, explained=0.5, **keys):
    settings = settings_of(
        **{f"exploration__rrl__{k}": v for k, v in {"min_continuation": 0.0, **keys}.items()}
    )
    for one in rollouts:
        one.state = None
    known = {i: np.array(v, np.float32) for i, v in enumerate(values) if v is not None}
    R3(settings, max_response_tokens=limit).mark_states(
        rollouts, known, step=0, explained=explained
    )
    return [one.state and (one.state.num_tokens, one.state.value) for one in rollouts]


def test_one_state_is_marked_of_each_problem_that_a_step_did_not_solve():
    rollouts = [
        failure("a", [5, 9, 5, 5]),
        failure(
            "a", [5, 9, 6, 5, 5, 9]
        ),  # longer than the limit of 5: 4 tokens at most are given
        failure("b", [5, 5, 5]),
        failure("b", [7, 7, 7], C),  # solved
        failure("c", [5, 5, 5, 5, 5], given=2),  # only behind what it was given
        failure("d", [5, 5, 5], Verdict.UNGRADED),
    ]
    values = [
        [9, 0.25, 0.5, 0.5],
        [9, 0.125, 0.25, 0.5, 0.75, 2],
        [1, 2, 3],
        [1, 2, 3],
        [0, 0, 5, 0.125, 9],
        None,
    ]
    assert marked(rollouts, values) == [None, (4, 0.75), None, None, (3, 0.125), None]
    rollouts[0].truncated = True  # it has no end mark, so it may be cut before its last token
    assert marked(rollouts, [[9, 0.25, 0.5, 0.875], *values[1:]])[:2] == [(3, 0.875), None]
    # not before the critic explains a tenth of the returns' variance
    for explained, num_states in ((None, 0), (0.099, 0), (0.1, 2), (-0.5, 0)):
        assert (
            sum(one is not None for one in marked(rollouts, values, explained=explained))
            == num_states
        )
    assert any(marked(rollouts, values, explained=-0.5, min_explained_variance=-1.0))


def solution(uid, ids):
    made = failure(uid, ids, C)
    made.context, made.origin = Context.IMPORTED, "teacher T"
    made.response_logprobs = np.zeros(0, np.float32)
    return made


def test_the_beginning_of_an_imported_solution_is_a_state_where_its_value_is_larger():
    """Values by token: cut at the largest one of the first half, of a problem that the step did not solve; the
    failure of "b" promises more, "c" is solved, "d" has no solution. Each takes part until it has a state."""
    solutions = [solution(uid, [1, 2, 3, 4, 5, 6, 7, 8]) for uid in "abc"]
    store = HistoryStore.open(":memory:")
    store.commit_step(0, 1, solutions)
    settings = settings_of(exploration__rrl__ratio=0.5, exploration__rrl__min_continuation=0.0)
    r3 = R3(settings, history=store, max_response_tokens=100)
    failures = [failure(uid, [5, 5, 5, 5]) for uid in "abd"]
    rollouts = [*failures, failure("c", [5, 5, 5, 5], C)]
    values = {i: np.array([9, 0.25, 0.5, 0.1], np.float32) for i in range(4)}
    values[1] += 1.0
    asked = []

    def values_of(rows):
        asked.append([one.uid for one in rows])
        return [np.array([9, 0.1, 0.2, 0.75, 0.3, 9, 9, 9], np.float32) for _ in rows]

    r3.mark_states(rollouts, values, step=3, explained=0.5, values_of=values_of)
    assert asked == [["a", "b"]]
    assert [one.state and one.state.num_tokens for one in rollouts] == [None, 2, 2, None]
    graded = store.num_graded
    r3.remember(rollouts, step=3, epoch=1)
    assert store.num_graded == graded + 4  # a solution counts in no rate
    states = {one.uid: (one.num_tokens, one.value) for one in store.states(step=4)}
    assert states == {"a": (3, 0.75), "b": (2, 1.5), "d": (2, 0.5)}
    chosen = r3.states(count=9, step=4)
    given = sorted((prefix.state.uid, prefix.ids.tolist()) for prefix in chosen.prefixes)
    assert given == [("a", [1, 2, 3]), ("b", [5, 5]), ("d", [5, 5])]
    (of_solution,) = [one for one in chosen.prefixes if one.state.uid == "a"]
    assert of_solution.logprobs.tolist() == [0, 0, 0]
    assert chosen.metrics["r3/rrl/of_solutions"] == 1
    again = [failure(uid, [6, 6, 6, 6]) for uid in "ab"]
    r3.mark_states(again, {}, step=4, explained=0.5, values_of=values_of)
    assert asked == [["a", "b"], ["b"]]  # that of "a" has a state
    r3.roll_back(3)  # as if the step had never been: it may take part again
    r3.mark_states(again, {}, step=3, explained=0.5, values_of=values_of)
    assert asked[2:] == [["a", "b"]]
    store.close()


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.25, 0.5, 0.9]),
    st.sampled_from(["value", "random"]),
)
def test_a_continuation_has_its_least_budget_whenever_it_is_marked_or_chosen(
    lengths, limit, least, cut
):
    """Under another limit than that of the step that marked it, too."""
    rollouts = [failure(f"p{i}", range(n)) for i, (n, _) in enumerate(lengths)]
    for one, (_, truncated) in zip(rollouts, lengths, strict=True):
        one.truncated = truncated
    marked(
        rollouts,
        [np.sin(np.arange(n)) for n, _ in lengths],
        limit=40,
        cut=cut,
        min_continuation=least,
    )
    assert all(
        40 - length >= max(1, least * 40)
        for one in rollouts
        if one.state
        for length, _ in one.state.cuts
    )
    with HistoryStore.open(":memory:") as store:
        store.commit_step(1, 1, rollouts)
        settings = settings_of(
            exploration__rrl__ratio=0.9, exploration__rrl__min_continuation=least
        )
        chosen = (
            R3(settings, history=store, max_response_tokens=limit)
            .states(count=9, step=1)
            .prefixes
        )
        assert all(limit - len(prefix.ids) >= max(1, least * limit) for prefix in chosen)


def test_todays_critic_chooses_among_the_drawn():
    """Four are drawn for each of 2 states, and the two that it values most are continued; never where the cut is by lot."""
    asked = []

    def values_of(rollouts, lengths):
        asked.extend(int(one.uid) for one in rollouts)
        return [float(one.uid) for one in rollouts]

    with HistoryStore.open(":memory:") as store:
        rollouts = [failure(str(uid), [uid, 5, 6]) for uid in range(12)]
        for one in rollouts:
            one.state = PromisingState(num_tokens=2, value=-float(one.uid))
        store.commit_step(1, 1, rollouts)
        for cut in ("random", "value"):
            r3 = R3(
                settings_of(exploration__rrl__ratio=0.5, exploration__rrl__cut=cut),
                history=store,
                seed=3,
            )
            chosen = r3.states(count=4, step=1, values_of=values_of).uids
            assert len(chosen) == 2 and len(asked) == (8 if cut == "value" else 0)
        assert sorted(map(int, chosen)) == sorted(asked)[-2:]


def test_todays_critic_passes_over_what_was_tried():
    """Ranks 2 and 1 of 2, so weights 1 and 1/2. After 2 continuations the best has 1/3; after 1 the other has 1/4."""
    values = {"a": 9.0, "b": 0.5}
    chosen = []
    with HistoryStore.open(":memory:") as store:
        others = [failure(f"other {i}", [8, 9]) for i in range(97)]
        found = [failure(uid, [i, 5, 6]) for i, uid in enumerate(values)]
        for one in found:
            one.state = PromisingState(num_tokens=2, value=0.5)
        store.commit_step(1, 1, [*found, *others])
        for step, number in ((1, 2), (2, 1), (3, 1)):
            r3 = R3(settings_of(exploration__rrl__ratio=0.5), history=store)
            (prefix,) = r3.states(
                count=2, step=step, values_of=lambda rows, _: [values[one.uid] for one in rows]
            ).prefixes
            uid = prefix.state.uid
            chosen.append(uid)
            given = [*prefix.ids.tolist(), 7]
            store.commit_step(
                step + 1, 1, [failure(uid, [*given, step, i], given=2) for i in range(number)]
            )
    assert chosen == ["a", "b", "a"]


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from(["value", "random"]),
    st.integers(0, 9),
)
def test_no_problem_takes_more_than_its_share_of_the_run(problems, size, others, cut, seed):
    """However few problems have a state, and however the critic prefers one: a group more than 1/32 of the rollouts at most."""
    uids = [str(i) for i in range(problems)]
    with HistoryStore.open(":memory:") as store:
        continued = Counter()
        for step in range(12):
            keys = dict(exploration__rrl__ratio=0.9, exploration__rrl__cut=cut)
            r3 = R3(settings_of(**keys), history=store, seed=seed)
            chosen = r3.states(
                count=others + 1,
                step=step,
                values_of=lambda rows, _: [float(one.uid == "0") for one in rows],
            ).prefixes
            assert len({one.state.uid for one in chosen}) == len(chosen)
            rows = [failure(f"x{i}", [step, i]) for i in range(others * size)]
            for uid in uids:
                rows.append(failure(uid, [100 + step, 5, 6, 7]))
                rows[-1].state = PromisingState(num_tokens=2, value=float(uid == "0"))
            for one in chosen:
                continued[one.state.uid] += size
                given = one.ids.tolist()
                rows += [
                    failure(one.state.uid, [*given, 9, step, i], given=len(given))
                    for i in range(size)
                ]
            store.commit_step(step + 1, 1, rows)
            most = store.num_graded / 32 + size
            assert all(number <= most for number in continued.values())


def states_of(history, *, step, ratio=0.5, count=4, **keys):
    settings = settings_of(
        exploration__rrl__ratio=ratio, **{f"exploration__rrl__{k}": v for k, v in keys.items()}
    )
    return R3(settings, history=history, seed=3).states(count=count, step=step)


def test_a_batch_starts_from_stored_states_and_says_which():
    with HistoryStore.open(":memory:") as store:
        for step in range(1, 5):
            found = [failure(uid, [step, 5, 6, 7], step=step - 1) for uid in "abc"]
            for place, one in enumerate(found):
                one.state = PromisingState(num_tokens=2, value=place + step / 10)
            store.commit_step(step, 1, found)
        chosen = states_of(store, step=4)
        # half of 4 groups, one of each problem
        assert len(chosen.prefixes) == 2 and len(set(chosen.uids)) == 2
        for prefix in chosen.prefixes:
            assert (
                prefix.ids.tolist() == [4 - prefix.state.age, 5] and len(prefix.logprobs) == 2
            )
        assert (
            chosen.metrics["r3/rrl/continued"] == 2 and chosen.metrics["r3/rrl/not_drawn"] == 10
        )
        # the same history, step and seed choose the same, whatever was done in between
        again = states_of(store, step=4)
        assert [one.state for one in again.prefixes] == [one.state for one in chosen.prefixes]
        store.commit_step(5, 1, [failure("d", [1, 2])])
        store.roll_back(4)
        assert [one.state for one in states_of(store, step=4).prefixes] == [
            one.state for one in chosen.prefixes
        ]
        # at least one group asks a problem; nothing without a ratio
        assert len(states_of(store, step=4, ratio=0.99, count=2).prefixes) == 1
        assert (
            states_of(store, step=4, ratio=0.0).prefixes == []
            and states_of(store, step=4, ratio=0.0).metrics == {}
        )
        asked = R3(settings_of(), history=store).prompts(
            [SimpleNamespace(uid="z")],
            step=4,
            epoch=1,
            render=Plain(),
            states=chosen,
            of_states=[SimpleNamespace(uid=uid) for uid in chosen.uids],
        )
        assert [(one.context, one.place, one.prompt) for one in asked] == [
            (Context.PLAIN, 0, "z"),
            *((Context.PREFIX, i, uid) for i, uid in enumerate(chosen.uids, start=1)),
        ]
        assert asked.metrics()["r3/rrl/continued"] == 2


class Plain:
    def plain(self, problem):
        return problem.uid
