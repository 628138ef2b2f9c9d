"""Laws of the advantages of a mixed batch, on generated groups: whatever failures are paid, whatever the options."""

import math
import random
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from r3_openrlhf.method.core.estimators import ESTIMATORS, GroupEstimator
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.core.ranking import RankingScore
from r3_openrlhf.method.types import Verdict
from tests.method.core.batches import recall, rollout

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED
# with ties
TOKEN = RankingScore(lambda rollouts: [float(one.response_ids[2]) for one in rollouts])
ALIKE = RankingScore(lambda rollouts: [0.0] * len(rollouts))

# penalised, plain, or with a length reward
success = st.sampled_from([0.25, 1.0, 1.0, 1.25, 1.9])
# some are paid like a success
failure = st.sampled_from([-1.0, 0.0, 0.0, 0.3, 0.8, 0.95, 1.0, 1.6, 7.0])
row = st.one_of(
    st.tuples(st.just(C), success, st.booleans()),
    *[st.tuples(st.just(W), failure, st.booleans())] * 3,
    st.tuples(st.just(U), st.none(), st.booleans()),
)
OPTIONS = {
    "alpha": st.sampled_from([0.25, 1.0, 2.0, 8.0]),
    "lam": st.sampled_from([0.0, 1e-9, 0.5]),
    "scope": st.sampled_from(["mixed_groups", "off_policy_only"]),
    "guard": st.sampled_from(["centred", "no_std", "none"]),
    "success_scale": st.sampled_from([0.1, 1.0, 3.0]),
}


@dataclass
class Case:
    """Groups: fresh rows (verdict, reward, truncated), and the rewards of their stored successes."""

    groups: list
    options: dict = field(default_factory=dict)
    max_reward: float = 0.5

    def batch(self, order=None, *, score=TOKEN):
        places = [(g, i) for g, (rows, _) in enumerate(self.groups) for i in range(len(rows))]
        rollouts = []
        for g, i in order or places:
            verdict, reward, truncated = self.groups[g][0][i]
            made = rollout(verdict, uid=str(g), reward=reward, truncated=truncated)
            made.response_ids = np.array([g, i, 7 * i % 4], dtype=np.int32)
            rollouts.append(made)
        batch = MixedBatch(rollouts, [one.uid for one in rollouts])
        recall(
            batch,
            lambda uid, verdict: [
                rollout(C, uid=uid, reward=r) for r in self.groups[int(uid)][1] if verdict is C
            ],
        )
        batch.rank(
            batch.rows_to_rank(scope="truncated"), score, None, max_reward=self.max_reward
        )
        batch.advantages(
            **{"alpha": 1.0, "lam": 0.0, "scope": "mixed_groups", "guard": "centred"}
            | self.options
        )
        return batch

    def values(self, order=None):
        """(group, place): advantage; recalled rows have the places -1, -2 and so on."""
        batch = self.batch(order)
        recalled = {
            (int(g.uid), ~n): batch.rows[i].advantage
            for g in batch.groups
            for n, i in enumerate(g.recalled)
        }
        fresh = [one for one in batch.rows if not one.recalled]
        return recalled | {
            tuple(one.rollout.response_ids[:2].tolist()): one.advantage for one in fresh
        }


groups = st.lists(
    st.tuples(st.lists(row, min_size=1, max_size=8), st.lists(success, max_size=3)),
    min_size=1,
    max_size=3,
)
cases = st.builds(
    Case, groups, st.fixed_dictionaries(OPTIONS), st.sampled_from([0.1, 0.5, 0.9])
)


failed_row = st.tuples(st.just(W), failure, st.booleans())
failed_groups = st.lists(
    st.tuples(
        st.lists(failed_row, min_size=2, max_size=8),
        st.sampled_from([[], [], [1.0], [1.9, 0.25]]),
    ),
    min_size=1,
    max_size=2,
)
# all wrong, with and without stored successes
failed_cases = st.builds(
    Case, failed_groups, st.fixed_dictionaries(OPTIONS), st.sampled_from([0.1, 0.5, 0.9])
)


@given(cases, st.integers(0, 99), st.sampled_from([-2.0, 0.25, 5.0]))
def test_order_and_a_shift_of_all_rewards_change_nothing(case, seed, shift):
    values = case.values()
    places = [(g, i) for g, (rows, _) in enumerate(case.groups) for i in range(len(rows))]
    assert case.values(random.Random(seed).sample(places, len(places))) == values
    moved = [
        ([(v, None if v is U else r + shift, t) for v, r, t in rows], [r + shift for r in old])
        for rows, old in case.groups
    ]
    assert replace(case, groups=moved).values() == approx(values, rel=1e-6, abs=1e-6)


@given(cases)
def test_equal_rewards_have_no_advantage(case):
    """Exactly, and whatever the verdicts are."""
    alike = [
        ([(v, None if v is U else 0.7, False) for v, *_ in rows], [0.7 for _ in old])
        for rows, old in case.groups
    ]
    assert set(replace(case, groups=alike).values().values()) <= {0.0}


@given(cases, st.lists(success, min_size=1, max_size=3))
def test_an_ungraded_row_and_what_a_group_recalls_change_no_other_value(case, stored):
    values = case.values()
    rows, old = case.groups[0]
    without = replace(
        case, groups=[([one for one in rows if one[0] is not U], old), *case.groups[1:]]
    )
    kept = [i for i, one in enumerate(rows) if one[0] is not U]
    if not any(one[2] for one in rows):  # the score of a ranked row is a matter of its place
        assert without.values() == {
            (g, kept.index(i) if g == 0 and i >= 0 else i): v for (g, i), v in values.items()
        }
    more = replace(case, groups=[(rows, old + stored), *case.groups[1:]]).values()
    assert {key: v for key, v in more.items() if key[0]} == {
        key: v for key, v in values.items() if key[0]
    }


@given(cases, st.lists(success, min_size=1, max_size=3), st.sampled_from(list(ESTIMATORS)))
def test_a_recall_rescales_the_other_groups_with_gpg_alone(case, stored, name):
    """gpg divides by the share of groups that differ, which a repaired group belongs to; no other estimator knows the step."""
    whole = [([(v, r, False) for v, r, _ in rows], old) for rows, old in case.groups]
    case = replace(case, groups=whole, options=case.options | {"estimator": ESTIMATORS[name]})
    more = replace(case, groups=[(whole[0][0], whole[0][1] + stored), *whole[1:]])
    before, after = case.values(), more.values()
    shares = [share_that_differs(one.batch()) for one in (case, more)]
    factor = shares[0] / shares[1] if name == "gpg" and all(shares) else 1.0
    for key, value in before.items():
        if key[0]:
            assert after[key] == approx(factor * value, abs=1e-9)


def share_that_differs(batch):
    """Of the groups, those whose rewards are not all equal."""
    differ = [len({batch.rows[i].reward for i in group.rows}) > 1 for group in batch.groups]
    return sum(differ) / len(differ) if differ else 0.0


@given(cases)
def test_without_a_ranking_it_is_eq_3_for_a_group_that_recalled_and_eq_1_for_any_other(case):
    whole = [([(v, r, False) for v, r, _ in rows], old) for rows, old in case.groups]
    batch = replace(case, groups=whole).batch()
    for group in batch.groups:
        rows = [batch.rows[i] for i in group.rows]
        plain = plain_advantages(rows, bool(group.recalled), case.options)
        extra = extra_of_a_success(rows, plain, case.options["success_scale"])
        expected = [
            value + extra if one.rollout.verdict is C else value
            for one, value in zip(rows, plain, strict=True)
        ]
        lower = most_above_a_success(rows, expected)
        for one, value in zip(rows, expected, strict=True):
            lowered = value if one.rollout.verdict is C else value - lower
            assert one.advantage == approx(lowered, abs=1e-9)
        is_all_right = all(one.rollout.verdict is C for one in rows)
        if is_all_right and case.options["scope"] == "off_policy_only":
            assert sum(one.advantage for one in rows) == approx(0.0, abs=1e-9)


def plain_advantages(rows, has_recalled, options):
    """Eq. (1), and eq. (3) for the rows of a group that recalled: its std is multiplied by alpha."""
    rewards = [one.outcome_reward for one in rows]
    mean = fmean(rewards)
    spread = stdev(rewards) if len(set(rewards)) > 1 else 1.0
    values = []
    for one, reward in zip(rows, rewards, strict=True):
        in_scope = options["scope"] == "mixed_groups" or one.recalled
        alpha = options["alpha"] if has_recalled and in_scope else 1.0
        values.append((reward - mean) / (alpha * spread + options["lam"]))
    return values


def most_above_a_success(rows, values):
    """By how much a failure exceeds a success that is paid as much; 0: none does."""
    pairs = list(zip(rows, values, strict=True))
    right = [(one.outcome_reward, value) for one, value in pairs if one.rollout.verdict is C]
    wrong = [(one.outcome_reward, value) for one, value in pairs if one.rollout.verdict is W]
    return max([0.0] + [a - b for paid, a in wrong for least, b in right if paid <= least])


def extra_of_a_success(rows, plain, scale):
    """What success_scale adds: to the successes of a group with both verdicts, by their mean."""
    right = [value for value, one in zip(plain, rows, strict=True) if one.rollout.verdict is C]
    if not right or len(right) == len(rows):
        return 0.0
    return (scale - 1) * max(0.0, fmean(right))


@given(
    cases,
    st.sampled_from(
        [*list(ESTIMATORS.values()), GroupEstimator(lambda rewards: [-r for r in rewards])]
    ),
)
def test_no_estimator_lifts_a_ranked_failure_above_a_success(case, estimator):
    batch = replace(case, options=case.options | {"estimator": estimator}).batch()
    for group in batch.groups:
        rows = [batch.rows[i] for i in group.rows]
        least = min(
            [one.advantage for one in rows if one.rollout.verdict is C], default=math.inf
        )
        assert all(one.advantage <= least for one in rows if one.ranked)


@given(cases | failed_cases, st.sampled_from(list(ESTIMATORS.values())))
def test_no_failure_is_above_a_success_that_is_paid_as_much(case, estimator):
    """Ranked or not, recalled or not, whatever alpha damps and whatever a success weighs."""
    batch = replace(case, options=case.options | {"estimator": estimator}).batch()
    for group in batch.groups:
        rows = [batch.rows[i] for i in group.rows]
        for success in (one for one in rows if one.rollout.verdict is C):
            paid_less = [
                one.advantage
                for one in rows
                if one.rollout.verdict is W and one.reward <= success.reward
            ]
            assert max(paid_less, default=-math.inf) <= success.advantage


@given(cases)
def test_a_ranked_failure_keeps_its_pay_and_is_below_every_success(case):
    batch = case.batch()
    is_centred = case.options["guard"] == "centred"
    for group in batch.groups:
        rows = [batch.rows[i] for i in group.rows]
        ranked = [one for one in rows if one.ranked]
        if not ranked:
            continue
        right = [one for one in rows if one.rollout.verdict is C]
        check_order(ranked, right)
        parts = [one.reward - one.outcome_reward for one in ranked]
        unranked = [one for one in rows if not one.ranked and one.rollout.verdict is not C]
        check_unranked(unranked, parts, is_centred)
        if not right and not is_centred:
            assert parts == approx([one.ranking_reward for one in ranked])


@given(failed_cases)
def test_who_is_ranked_leaves_verified_differences_at_their_scale(case):
    """Without a success a ranking adds its own part, undivided, to what the rows have without one. With a success a failure
    that is not ranked keeps its reward, unless a ranked one is paid like the success."""
    is_centred = case.options["guard"] == "centred"
    whole = [([(v, r, False) for v, r, _ in rows], old) for rows, old in case.groups]
    batch, plain = case.batch(), replace(case, groups=whole).batch()
    for group in batch.groups:
        rows = [batch.rows[i] for i in group.rows]
        ranked = [one for one in rows if one.ranking_reward is not None]
        if not ranked:
            continue
        right = [one for one in rows if one.rollout.verdict is C]
        if right:
            check_unranked_rewards(rows, ranked, right)
        if right or case.options["guard"] == "none":
            continue
        parts = ranking_parts(rows, is_centred=is_centred)
        for one, part in zip(rows, parts, strict=True):
            expected = plain.rows[one.index].advantage + part - fmean(parts)
            assert one.advantage == approx(expected, abs=1e-9)


def check_unranked_rewards(rows, ranked, right):
    """Every row without a rank keeps its reward, unless a ranked one is paid like a success."""
    best_ranked = max(one.outcome_reward for one in ranked)
    if best_ranked >= min(one.outcome_reward for one in right):
        return
    for one in rows:
        if one.ranking_reward is None:
            assert one.reward == one.outcome_reward


def ranking_parts(rows, *, is_centred):
    """The ranking's own part of each row's reward: 0 for a row without a rank, mean 0 if centred."""
    ranked = [one.ranking_reward for one in rows if one.ranking_reward is not None]
    middle = fmean(ranked) if is_centred else 0.0
    return [0.0 if one.ranking_reward is None else one.ranking_reward - middle for one in rows]


@pytest.mark.parametrize("num_truncated", [0, 1, 2, 4])
def test_partial_credit_by_hand(num_truncated):
    """Mean .475 and deviation .5485, however many responses were cut; their ranking is a tie."""
    rows = [(W, paid, i < num_truncated) for i, paid in enumerate([0.95, 0.0, 0.95, 0.0])]
    batch = Case([(rows, [])]).batch(score=ALIKE)
    half = 0.75**0.5
    assert [one.advantage for one in batch.rows] == approx([half, -half, half, -half])


def check_order(ranked, right):
    """Every success is above; of equal pay the ranking decides, of equal rank the pay."""
    for one in ranked:
        for success in right:
            assert one.reward < success.reward
            assert one.advantage <= success.advantage
        for other in ranked:
            if is_ahead(one, other):
                assert one.reward > other.reward
                assert one.advantage > other.advantage


def check_unranked(failures, parts, is_centred):
    """Failures that are not ranked change by no more than ranked ones: below 0 where all are lowered."""
    for one in failures:
        part = one.reward - one.outcome_reward
        if is_centred:
            assert fmean(parts) == approx(part, abs=1e-9)
        else:
            assert min(parts) >= part - 1e-9


def is_ahead(one, other):
    """Is it ahead in its pay or its rank, and behind in neither?"""
    differs = (one.outcome_reward, one.ranking_reward) != (
        other.outcome_reward,
        other.ranking_reward,
    )
    is_paid_as_well = one.outcome_reward >= other.outcome_reward
    is_ranked_as_high = one.ranking_reward >= other.ranking_reward
    return differs and is_paid_as_well and is_ranked_as_high
