"""The step that every loop makes: what a configuration decides, on rows that can be worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf import method
from r3_openrlhf.config import R3Config
from r3_openrlhf.core.batch_metrics import batch_metrics
from r3_openrlhf.core.mixed_batch import MixedBatch
from r3_openrlhf.history.records import HistoryLimits
from r3_openrlhf.history.store import HistoryStore
from r3_openrlhf.types import Context, EntropyBounds, EntropyStatistics, Rollout, Verdict

C, W = Verdict.CORRECT, Verdict.WRONG


def config_of(**keys):
    """R3Config of a paper-like run with some keys changed: section__key=value."""
    config = R3Config(run_dir="nowhere")
    for key, value in keys.items():
        section, _, name = key.rpartition("__")
        owner = getattr(config, section) if section else config
        assert hasattr(owner, name)
        setattr(owner, name, value)
    return config


def rollout(
    verdict=W, *, number=0, uid="a", truncated=False, step=0, context=Context.PLAIN, prompt=(1, 2), bounds=None
):
    return Rollout(
        uid=uid,
        context=context,
        prompt_ids=np.array(prompt, dtype=np.int32),
        response_ids=np.array([7, number], dtype=np.int32),
        response_logprobs=np.full(2, -0.5, dtype=np.float32),
        verdict=verdict,
        reward=1.0 if verdict == C else 0.0,
        truncated=truncated,
        finish_reason="length" if truncated else "stop",
        policy_step=step,
        epoch=1,
        entropy_bounds=bounds,
    )


@pytest.fixture
def history():
    """Of problem "a": successes of the steps 0, 4 and 5, the last from a reflection prompt."""
    with HistoryStore.open(":memory:") as store:
        store.commit_step(1, 1, [rollout(C, number=1)])
        store.commit_step(5, 1, [rollout(C, number=2, step=4)])
        store.commit_step(6, 1, [rollout(C, number=3, step=5, context=Context.REFLECTION, prompt=(1, 2, 3))])
        yield store


def numbers(found):
    return sorted(int(one.response_ids[1]) for one in found)


def test_what_is_recalled_follows_the_section_replay(history):
    def recalled(**keys):
        config = config_of(**{f"replay__{name}": value for name, value in keys.items()})
        return numbers(method.stored_rollouts(history, config, "a", C, step=6))

    assert recalled() == [1, 2]
    assert recalled(k=1, order="newest") == [2]
    assert recalled(max_policy_lag=2) == [2]
    assert recalled(include_reflection=True, k=5) == [1, 2, 3]
    assert numbers(method.stored_rollouts(history, config_of(), "a", W, step=6)) == []


def test_coverage_says_what_could_be_recalled_and_why_not():
    """Five collapsed groups: one with a stored success, one whose successes were evicted, one whose are too old, one that
    never had any, and one that is all right and has a stored failure. The sixth is mixed and asks for nothing."""
    limits = HistoryLimits(max_per_problem_and_verdict=1)
    with HistoryStore.open(":memory:", limits=limits) as store:
        store.commit_step(1, 1, [rollout(C, uid=uid, step=7) for uid in ("stored", "evicted")])
        store.commit_step(2, 1, [rollout(C, uid="too old", step=1), rollout(W, uid="right", step=7)])
        store.set_rollback_floor(2)
        with store._transaction("evict from") as connection:  # as a full file does
            connection.execute(
                "UPDATE rollouts SET evicted_at = 2 WHERE problem = (SELECT id FROM problems WHERE uid = 'evicted')"
            )
        uids = ("stored", "evicted", "too old", "never")
        fresh = [rollout(W, uid=uid, number=i) for uid in uids for i in range(2)]
        fresh += [rollout(C, uid="right", number=i) for i in range(2)] + [rollout(C, uid="m"), rollout(W, uid="m")]
        batch, config = MixedBatch(fresh, [r.uid for r in fresh]), config_of(replay__max_policy_lag=5)
        method.recall(batch, lambda *asked: method.stored_rollouts(store, config, *asked, step=9), config, step=9)
        assert method.coverage_metrics(batch, store, config, step=9) == {
            "r3/history/coverage": 2 / 5,
            "r3/history/never_sampled": 1.0,
            "r3/history/evicted": 1.0,
            "r3/history/too_old": 1.0,
        }
        assert batch_metrics(batch, step=9)["r3/replay/hits"] == 2
        assert method.coverage_metrics(batch, store, config_of(replay__enabled=False), step=9) == {}
        none = MixedBatch([rollout(C), rollout(W)], ["m", "m"])
        assert method.coverage_metrics(none, store, config, step=9)["r3/history/coverage"] == 1.0


def test_nothing_is_recalled_or_ranked_where_it_is_switched_off():
    rows = [rollout(W, number=i, truncated=True) for i in range(2)]
    batch = MixedBatch(rows, ["g", "g"])
    method.recall(batch, lambda uid, verdict: [rollout(C)], config_of(replay__enabled=False), step=0)
    assert len(batch.rows) == 2
    assert method.rows_to_rank(batch, config_of(ranking__enabled=False)) == {}
    assert method.rows_to_rank(batch, config_of()) == {0: [0, 1]}
    assert method.rows_to_rank(batch, config_of(ranking__scope="failed")) == {0: [0, 1]}


def behind_reflection(verdict, number, uid="a"):
    return rollout(verdict, number=number, uid=uid, context=Context.REFLECTION, prompt=(1, 2, 8), step=6)


def test_a_success_behind_a_reflection_prompt_joins_the_plain_group_of_the_same_step():
    """Its ratio is the current policy's: the log-probs that it was sampled with belong to another prompt."""
    fresh = [rollout(W, number=i, step=6) for i in range(2)] + [behind_reflection(C, 7), behind_reflection(W, 8)]
    config = config_of(reflection__share_successes=True, replay__enabled=False)
    batch = MixedBatch(fresh, ["g", "g", "r", "r"])
    method.recall(batch, lambda *asked: pytest.fail("replay is off"), config, step=6)
    assert [(row.group, row.recalled, int(row.rollout.response_ids[1])) for row in batch.rows[4:]] == [(0, True, 7)]
    shared = batch.rows[4]
    assert not batch.has_own_prompt(shared) and not method.uses_stored_logprobs(batch, shared, config)
    method.assign_advantages(batch, {}, pytest.fail, config)
    assert [batch.rows[i].advantage for i in (0, 1, 4)] == approx([-0.5774, -0.5774, 1.1547], abs=1e-4)
    metrics = batch_metrics(batch, step=6)
    assert (metrics["r3/replay/shared"], metrics["r3/replay/recalled"], metrics["r3/replay/mean_lag"]) == (1, 1, 0)
    ahead = batch_metrics(batch, step=8)  # sampled ahead, by weights that are two steps old
    assert (ahead["r3/replay/shared"], ahead["r3/replay/mean_lag"]) == (1, 2)
    off = MixedBatch(fresh, ["g", "g", "r", "r"])
    method.recall(off, lambda *asked: [], config_of(), step=6)
    assert len(off.rows) == 4


def test_shared_successes_come_before_recalled_ones_and_no_more_than_k_join():
    def joined(k, *, shared, stored):
        fresh = [rollout(W, number=100 + i, step=6) for i in range(2)]
        fresh += [behind_reflection(C, number) for number in shared] + [behind_reflection(W, 50)]
        config = config_of(reflection__share_successes=True, replay__k=k)
        batch = MixedBatch(fresh, ["g", "g"] + ["r"] * (len(shared) + 1))
        method.recall(batch, lambda uid, verdict: [rollout(C, number=n) for n in stored], config, step=6)
        return [int(row.rollout.response_ids[1]) for row in batch.rows if row.recalled]

    assert joined(3, shared=[1], stored=[2, 3]) == [1, 2, 3]
    assert joined(2, shared=[1], stored=[2, 3]) == [1, 2]
    assert joined(3, shared=[1], stored=[1, 3]) == [1, 3]  # the same response is not there twice
    assert len(joined(2, shared=[1, 2, 3, 4], stored=[5, 6])) == 2
    assert set(joined(2, shared=[1, 2, 3, 4], stored=[5, 6])) <= {1, 2, 3, 4}


VERDICTS = st.lists(st.sampled_from([C, W]), min_size=2, max_size=4)


@given(
    st.lists(st.tuples(VERDICTS, st.none() | VERDICTS, st.integers(0, 3)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_sharing_agrees_with_its_rule_written_out(problems, k, failures):
    """Independent: problem by problem, which rows may join which group. Only all-wrong plain groups get shared rows, never
    more than k, all of them different; everything else is as without sharing."""
    fresh, groups = [], []
    for i, (plain, reflected, _) in enumerate(problems):
        fresh += [rollout(v, uid=str(i), number=10 * j, step=6) for j, v in enumerate(plain)]
        groups += [(i, "plain")] * len(plain)
        for j, verdict in enumerate(reflected or []):
            fresh.append(behind_reflection(verdict, 10 * j + 1, uid=str(i)))
            groups.append((i, "reflection"))

    def stored(uid, verdict):
        return [rollout(verdict, uid=uid, number=10 * j + 2) for j in range(problems[int(uid)][2])][:k]

    keys = dict(replay__k=k, replay__recall_failures=failures)
    batch, plain_replay = MixedBatch(fresh, groups), MixedBatch(fresh, groups)
    method.recall(batch, stored, config_of(reflection__share_successes=True, **keys), step=6)
    method.recall(plain_replay, stored, config_of(**keys), step=6)
    for group, without in zip(batch.groups, plain_replay.groups, strict=True):
        joined = [batch.rows[i].rollout for i in group.recalled]
        old = [without_row.rollout for without_row in (plain_replay.rows[i] for i in without.recalled)]
        reflected = problems[int(group.uid)][1] or []
        successes = {10 * j + 1 for j, verdict in enumerate(reflected) if verdict is C}
        plain_and_wrong = group.context is Context.PLAIN and C not in problems[int(group.uid)][0]
        shared = [one for one in joined if one.context is Context.REFLECTION]
        expected = min(k, len(successes)) if plain_and_wrong else 0
        assert len(shared) == len(set(numbers(shared))) == expected and set(numbers(shared)) <= successes
        assert len(joined) <= max(k, len(old))
        rest = [one for one in joined if one.context is Context.PLAIN]
        assert numbers(rest) == numbers(old)[: k - expected]
        if group.state == "all_correct" and not failures:
            assert not joined and not group.wanted


def test_coverage_asks_only_for_what_is_recalled(history):
    fresh = [rollout(C, number=i) for i in range(2)] + [rollout(W, number=i) for i in range(2)]
    batch, config = MixedBatch(fresh, ["g", "g", "h", "h"]), config_of(replay__recall_failures=False)
    method.recall(batch, lambda *asked: method.stored_rollouts(history, config, *asked, step=6), config, step=6)
    coverage = method.coverage_metrics(batch, history, config, step=6)
    assert coverage["r3/history/coverage"] == 1.0 and coverage["r3/history/never_sampled"] == 0.0


def test_trained_tokens_are_prompt_and_response_of_every_trained_row_in_every_pass():
    batch = MixedBatch([rollout(W, number=i) for i in range(3)], ["g"] * 3)  # two and two tokens each
    config = config_of(replay__mode="replace", train__inner_epochs=2)
    method.recall(batch, lambda uid, verdict: [rollout(C, number=9, prompt=(1, 2, 3, 4))], config, step=1)
    # one row gave way; the recalled one is trained behind the prompt of the group, two tokens long
    assert method.training_metrics(batch, config) == {"trained_tokens": 2 * 3 * 4}


def test_which_rows_give_way_depends_on_seed_and_step_alone():
    def given_way(seed, step):
        batch = MixedBatch([rollout(W, number=i) for i in range(8)], ["g"] * 8)
        config = config_of(replay__mode="replace", train__seed=seed)
        method.recall(batch, lambda uid, verdict: [rollout(C, number=9)], config, step=step)
        return [row.index for row in batch.rows if not row.trained]

    assert given_way(1, 1) == given_way(1, 1) and len(given_way(1, 1)) == 1
    assert len({tuple(given_way(seed, step)) for seed in range(6) for step in range(6)}) > 3


def test_stored_logprobs_need_the_same_prompt_and_the_key():
    batch = MixedBatch([rollout(W), rollout(W, number=1)], ["g", "g"])
    method.recall(batch, lambda uid, verdict: [rollout(C), rollout(C, prompt=(9,))], config_of(), step=1)
    assert [method.uses_stored_logprobs(batch, row, config_of()) for row in batch.rows] == [False, False, True, False]
    config = config_of(replay__old_logprobs="recompute")
    assert not any(method.uses_stored_logprobs(batch, row, config) for row in batch.rows)


def bounds(peak, width):
    return EntropyBounds(peak_lower=peak, peak_upper=peak + width, global_lower=1 / peak, global_upper=1 / peak)


@pytest.mark.parametrize(
    ("source", "width", "exact"),
    [("auto", 0.1, set()), ("auto", 9.0, {0, 1}), ("exact", 0.1, {0, 1}), ("topk", 9.0, set())],
)
def test_exact_entropy_is_asked_for_where_bounds_do_not_decide(source, width, exact):
    rows = [rollout(W, number=i, truncated=True, bounds=bounds(1.0 + i, width)) for i in range(2)]
    batch, config = MixedBatch(rows, ["g", "g"]), config_of(ranking__entropy_source=source)
    assert method.rows_with_exact_entropy(batch, method.rows_to_rank(batch, config), config) == exact


def test_advantages_by_hand():
    """Two truncated failures, ranked 0.5 and 0, centred to 0.25 and -0.25, not scaled: nobody verified a difference."""
    batch = MixedBatch([rollout(W, number=i, truncated=True) for i in range(2)], ["g", "g"])
    ranked = method.rows_to_rank(batch, config_of())
    entropy = {0: (2.0, 0.1), 1: (1.0, 0.2)}
    method.assign_advantages(
        batch,
        ranked,
        lambda row: EntropyStatistics(peak=entropy[row.index][0], global_=entropy[row.index][1], source="exact"),
        config_of(),
    )
    assert [row.reward for row in batch.rows] == [0.5, 0.0]
    assert [row.advantage for row in batch.rows] == approx([0.25, -0.25])


def test_a_ranking_by_logprob_asks_for_no_entropy():
    """Mean log-probs -0.5 and -0.1: the second ranks first. No bound, no exact entropy, no engine's top-k is needed."""
    rows = [rollout(W, number=i, truncated=True) for i in range(2)]
    rows[1].response_logprobs = np.full(2, -0.1, dtype=np.float32)
    batch, config = MixedBatch(rows, ["g", "g"]), config_of(ranking__score="logprob")
    ranked = method.rows_to_rank(batch, config)
    assert method.rows_with_exact_entropy(batch, ranked, config) == set()
    method.assign_advantages(batch, ranked, pytest.fail, config)
    assert [row.reward for row in batch.rows] == [0.0, 0.5]
    assert [row.advantage for row in batch.rows] == approx([-0.25, 0.25])
    metrics = batch_metrics(batch, step=0)
    assert (metrics["r3/ranking/groups"], metrics["r3/ranking/groups_exact"]) == (1, 0)


def test_dapo_pays_less_for_long_responses():
    """A limit of 2 leaves no buffer; of 10, a response of 2 tokens is free. Rewards 1 and 0, and 1 - 0.5 at the limit."""
    for limit, length, reward in ((10, 2, 1.0), (10, 9, 0.75), (10, 10, 0.5)):
        right = rollout(C)
        right.response_ids = np.zeros(length, dtype=np.int32)
        batch = MixedBatch([right, rollout(W)], ["g", "g"])
        method.assign_advantages(batch, {}, pytest.fail, config_of(algo="dapo", rollout__max_new_tokens=limit))
        assert [row.reward for row in batch.rows] == [reward, 0.0]


def test_the_history_is_bounded_as_the_configuration_says():
    limits = method.history_limits(
        config_of(history__max_per_problem_and_verdict=3, history__eviction="reservoir").history
    )
    assert (limits.max_per_problem_and_verdict, limits.max_bytes, limits.eviction) == (3, 20_000_000_000, "reservoir")
