"""One step's rollouts as mixed groups: who leaves, who is recalled, who is ranked, which advantage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.advantages import group_advantages
from r3_openrlhf.method.core.batch_metrics import batch_metrics
from r3_openrlhf.method.core.groups import RankingFate, RecallFate
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.core.ranking import RANKING_SCORES, RankingScore
from r3_openrlhf.method.types import Context, EntropyStatistics, TurnFacts
from tests.method.core.batches import C, U, W, recall, rollout

EQ3 = dict(alpha=1.0, lam=1e-9, scope="mixed_groups", guard="none")


ENTROPY = RANKING_SCORES["entropy"]


TURN = TurnFacts(trajectory="t", index=0, state="s", reward=0.0, step_return=0.0, valid=True)


def group(*verdicts, **settings):
    return [rollout(v, **settings) for v in verdicts]


def stored(verdict, count=1, step=3, reward=None):
    return lambda uid, wanted: (
        [rollout(verdict, uid=uid, step=step, reward=reward) for _ in range(count)]
        if wanted is verdict
        else []
    )


def test_collapse_is_decided_on_verdicts_not_on_rewards():
    """All correct with different lengths have different rewards; they are collapsed all the same (METHOD section 3)."""
    batch = MixedBatch([rollout(C, reward=r) for r in (1.9, 1.8, 1.7)], ["g"] * 3)
    recall(batch, stored(W))
    assert batch.groups[0].collapsed_before and not batch.groups[0].collapsed_after
    assert batch.rows[-1].rollout.verdict is W


def test_a_group_that_starts_elsewhere_asks_for_nothing():
    """Behind the first tokens of a stored response no stored rollout starts."""
    batch = MixedBatch(group(W, W, context=Context.PREFIX) + group(W, W), ["p", "p", "g", "g"])
    recall(batch, stored(C))
    assert [one.replay for one in batch.groups] == [
        RecallFate.STARTS_ELSEWHERE,
        RecallFate.RECALLED,
    ]
    assert [len(one.rows) for one in batch.groups] == [2, 3]


def test_what_is_not_there_is_an_error():
    batch = MixedBatch(group(W, W), ["g", "g"])
    recall(batch, stored(C))
    assert [row.fresh_source for row in batch.rows[:2]] == [0, 1]
    with pytest.raises(ValueError, match="row 2 is recalled"):
        batch.rows[2].fresh_source  # noqa: B018
    with pytest.raises(ValueError, match="2 rollouts but 1 group ids"):
        MixedBatch(group(W, W), ["g"])
    with pytest.raises(ValueError, match="is ungraded and has no reward"):
        rollout(U).graded_reward  # noqa: B018


def test_a_group_with_one_graded_rollout_is_left_out():
    batch = MixedBatch(group(C, U) + group(C, W, uid="b"), ["g", "g", "h", "h"])
    assert [g.uid for g in batch.groups] == ["b"]
    metrics = batch_metrics(batch, step=0)
    assert (metrics["r3/groups/left_out"], metrics["r3/grading/ungraded"]) == (1, 1)
    assert [row.source for row in batch.rows] == [2, 3]


@pytest.mark.parametrize("mode", ["add", "replace"])
@given(
    st.lists(st.lists(st.sampled_from([C, W, U]), min_size=1, max_size=4), max_size=4),
    st.dictionaries(st.integers(0, 3), st.sampled_from([C, W])),
)
def test_a_group_is_left_out_only_where_nothing_can_be_compared(mode, verdicts, known):
    """Groups of verdicts, and of some problems a stored verdict: one graded row is trained where its opposite is stored."""
    rows = [rollout(v, uid=str(g)) for g, group_ in enumerate(verdicts) for v in group_]
    batch = MixedBatch(rows, [row.uid for row in rows])
    asked = []

    def stored_of(uid, wanted):
        asked.append(uid)
        return [rollout(wanted, uid=uid)] if known.get(int(uid)) is wanted else []

    recall(batch, stored_of, mode)
    kept = kept_sizes(verdicts, known, mode)
    assert {one.uid: len(one.rows) for one in batch.groups} == kept
    assert batch_metrics(batch, step=0)["r3/groups/left_out"] == len(verdicts) - len(kept)
    assert len(asked) == len(set(asked))
    # fresh rows come first, each once
    fresh = [row.source for row in batch.rows if not row.recalled]
    assert len(set(fresh)) == len(fresh)
    assert [row.recalled for row in batch.rows] == sorted(row.recalled for row in batch.rows)
    values = batch.advantages(**EQ3)
    for group_ in batch.groups:
        found = [values[i] for i in group_.rows]
        differs = len({batch.rows[i].rollout.verdict for i in group_.rows}) > 1
        assert any(found) == differs
        assert sum(found) == approx(0, abs=1e-9)


def kept_sizes(verdicts, known, mode):
    """Rows of each group that is trained: two graded ones, or one and a stored one of the opposite verdict."""
    opposites = {C: W, W: C}
    kept = {}
    for g, group_ in enumerate(verdicts):
        graded = [v for v in group_ if v is not U]
        is_collapsed = len(set(graded)) == 1
        joins = is_collapsed and known.get(g) is opposites[graded[0]]
        is_paired = len(graded) == 1 and joins and mode == "add"
        if len(graded) > 1 or is_paired:
            kept[str(g)] = len(graded) + joins
    return kept


def test_a_row_knows_its_place_and_the_prompt_of_its_group():
    """A recalled row of another prompt is told from one of the group's own; a fresh row always has its own."""
    batch = MixedBatch(group(W, W) + group(C, W, uid="b"), ["g", "g", "h", "h"])
    elsewhere = rollout(C)
    elsewhere.prompt_ids = np.array([1, 2, 9], dtype=np.int32)
    recall(batch, lambda uid, verdict: [rollout(C), elsewhere])
    assert [row.index for row in batch.rows] == list(range(6)) and batch.groups[0].rows == [
        0,
        1,
        4,
        5,
    ]
    assert [batch.first_of(row).index for row in batch.rows] == [0, 0, 2, 2, 0, 0]
    assert [batch.has_own_prompt(row) for row in batch.rows] == [True] * 5 + [False]


@pytest.mark.parametrize(
    ("turn", "fate"), [(None, RecallFate.RECALLED), (TURN, RecallFate.STARTS_ELSEWHERE)]
)
def test_a_group_that_plays_behind_an_attempt_takes_nothing_stored(turn, fate):
    played = group(W, W, context=Context.REFLECTION)
    for one in played:
        one.turn = turn
    batch = MixedBatch(played, ["g"] * 2)
    recall(batch, stored(C))
    assert (len(batch.rows), batch.groups[0].replay) == (3 if turn is None else 2, fate)


def test_a_turn_keeps_its_own_prompt():
    turns = group(W, C)
    turns[1].prompt_ids = np.array([9], dtype=np.int32)
    batch = MixedBatch(turns, ["g"] * 2)
    assert [batch.has_own_prompt(row) for row in batch.rows] == [True, False]
    turns[1].turn = TURN
    batch = MixedBatch(turns, ["g"] * 2)
    assert all(map(batch.has_own_prompt, batch.rows))


def test_replace_keeps_the_size_and_the_statistics_of_the_union():
    batch = MixedBatch(group(W, W, W, W), ["g"] * 4)
    recall(batch, stored(C, count=2), mode="replace")
    assert (
        batch.trained == [row for row in batch.rows if row.trained] and len(batch.trained) == 4
    )
    values = batch.advantages(**EQ3)
    assert values == approx(group_advantages([0, 0, 0, 0, 1.5, 1.5]))


def test_replace_never_empties_the_group():
    batch = MixedBatch(group(W, W), ["g"] * 2)
    recall(batch, stored(C, count=5), mode="replace")
    assert sum(row.trained and not row.recalled for row in batch.rows) == 1


def entropy_of(values):
    numbers = iter(values)
    return lambda row: EntropyStatistics(
        peak=(n := next(numbers))[0], global_=n[1], source="exact"
    )


def test_only_truncated_rows_of_an_all_wrong_group_are_ranked():
    rows = [
        rollout(W, truncated=True),
        rollout(W),
        rollout(W, truncated=True),
        rollout(W, truncated=True),
    ]
    batch = MixedBatch(rows + group(C, W, uid="b", truncated=True), ["g"] * 4 + ["h"] * 2)
    found = batch.rows_to_rank(scope="truncated")
    assert found == {0: [0, 2, 3]}
    batch.rank(found, ENTROPY, entropy_of([(3, 0.1), (2, 0.2), (1, 0.3)]), max_reward=0.5)
    assert [row.ranking_reward for row in batch.rows[:4]] == [0.5, None, 0.25, 0.0]
    assert batch.rows_to_rank(scope="failed") == {0: [0, 1, 2, 3]}
    assert MixedBatch(rows[:2], ["g"] * 2).rows_to_rank(scope="truncated") == {}  # one alone


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1)), min_size=2, max_size=6))
def test_a_ranking_counts_only_where_it_orders_two_rows(rows):
    """Each row: truncated or not, and its score."""
    batch = MixedBatch([rollout(W, truncated=cut) for cut, _ in rows], ["g"] * len(rows))
    found = batch.rows_to_rank(scope="truncated")
    scores = [score for cut, score in rows if cut]
    batch.rank(found, RankingScore(lambda _rollouts: scores), None, max_reward=0.5)
    batch.advantages(**{**EQ3, "guard": "centred"})
    fate, orders = batch.groups[0].ranking, len(set(scores)) > 1
    if len(scores) < 2:
        assert fate is RankingFate.TOO_FEW
    else:
        assert fate is (RankingFate.RANKED if orders else RankingFate.TIED)
    metrics = batch_metrics(batch, step=0)
    assert metrics["r3/ranking/groups"] == orders
    assert metrics["r3/ranking/tied"] == (fate is RankingFate.TIED)
    assert metrics["r3/ranking/rows"] == sum(row.ranked for row in batch.rows)
    assert metrics["r3/ranking/rows"] == (len(scores) if orders else 0)
    assert orders or not any(row.advantage for row in batch.rows)


def test_the_guard_keeps_a_ranking_from_growing_to_full_size():
    batch = MixedBatch(group(W, W, truncated=True), ["g"] * 2)
    batch.rank(
        batch.rows_to_rank(scope="truncated"),
        ENTROPY,
        entropy_of([(2, 0.1), (1, 0.2)]),
        max_reward=0.5,
    )
    assert batch.advantages(**EQ3) == approx([0.7071, -0.7071], abs=1e-4)
    assert batch.advantages(**{**EQ3, "guard": "no_std"}) == approx([0.25, -0.25])
    assert batch_metrics(batch, step=0)["r3/advantage/unverified_share"] == 1


def test_the_centred_guard_makes_being_truncated_worth_nothing():
    """Rewards .5, 0 for two ranked rows and 0 for one that ended: without a guard the mean ranked row is above it."""
    rows = [rollout(W, truncated=True), rollout(W, truncated=True), rollout(W)]
    batch = MixedBatch(rows, ["g"] * 3)
    batch.rank(
        batch.rows_to_rank(scope="truncated"),
        ENTROPY,
        entropy_of([(2, 0.1), (1, 0.2)]),
        max_reward=0.5,
    )
    assert batch.advantages(**{**EQ3, "guard": "no_std"}) == approx([1 / 3, -1 / 6, -1 / 6])
    assert batch.advantages(**{**EQ3, "guard": "centred"}) == approx([0.25, -0.25, 0.0])
    recall(batch, stored(C, reward=1.0))  # rewards .25, -.25, 0, 1: mean .25, sample std .5401
    assert batch.advantages(**{**EQ3, "guard": "centred"}) == approx(
        [0.0, -0.9258, -0.4629, 1.3887], abs=1e-4
    )
    assert batch_metrics(batch, step=5)["r3/advantage/unverified_share"] == 0


def test_metrics_of_replay_and_reflection():
    plain = group(W, W, uid="a")
    reflected = group(C, W, uid="a", context=Context.REFLECTION)
    batch = MixedBatch(plain + reflected, ["g", "g", "r", "r"])
    recall(batch, stored(C, count=2, step=3))
    batch.advantages(**EQ3)
    metrics = batch_metrics(batch, step=10)
    assert metrics["r3/replay/recalled"] == 2
    assert metrics["r3/replay/mean_lag"] == 7
    assert metrics["r3/reflection/groups"] == 1
    assert (metrics["r3/reflection/accuracy"], metrics["r3/reflection/plain_accuracy"]) == (
        0.5,
        0.0,
    )


def test_every_generated_token_is_counted_with_one_kind_of_group():
    """Three tokens each: two mixed, two right, two wrong, two behind a reflection prompt; a recalled row was not generated."""
    rows = (
        group(C, W)
        + group(C, C, uid="b")
        + group(W, W, uid="c")
        + group(W, C, uid="c", context=Context.REFLECTION)
    )
    batch = MixedBatch([*rows, rollout(U, uid="d")], [*"gghhiirr", "u"])
    recall(batch, stored(C, count=2))
    metrics = batch_metrics(batch, step=5)
    kinds = ("mixed", "all_correct", "none_correct", "reflection")
    assert [metrics[f"r3/tokens/{kind}"] for kind in kinds] == [6, 6, 6, 6]
    assert metrics["response_tokens"] == 27  # the ungraded one, too
