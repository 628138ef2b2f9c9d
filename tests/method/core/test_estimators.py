"""Estimators of a group's advantages: by hand, their laws, and one of a user's own."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, permutations, sampled_from
from pytest import approx

from r3_openrlhf.method.core.estimators import ESTIMATORS, FACTS
from r3_openrlhf.method.r3 import R3
from tests.method.steps import C, W, rollout, settings_of

BY_HAND = {  # of the rewards 2, 1, 0, 1, of which the third row is wrong, in a step where half of the groups differ
    "group_norm": [1.5**0.5, 0, -(1.5**0.5), 0],
    "rloo": [4 / 3, 0, -4 / 3, 0],
    "dr_grpo": [1, 0, -1, 0],
    "maxrl": [1, 0, -1, 0],
    "nsr": [0, 0, -1, 0],
    "w_reinforce": [0.1, 0.1, -1, 0.1],
    "gpg": [2, 0, -2, 0],
}
VERDICTS_ALONE = ("nsr", "w_reinforce")


def advantages(name, rewards, **facts):
    facts = {"correct": [r > 0 for r in rewards], "recalled": [False] * len(rewards), **facts}
    return ESTIMATORS[name].of(rewards, **{**FACTS, **facts})


@pytest.mark.parametrize("name", ESTIMATORS)
def test_by_hand(name):
    assert advantages(name, [2.0, 1.0, 0.0, 1.0]) == approx(BY_HAND[name])
    one_in_four = {"maxrl": [3, -1, -1, -1], "group_norm": [1.5, -0.5, -0.5, -0.5]}.get(name)
    assert one_in_four is None or advantages(name, [1.0, 0.0, 0.0, 0.0]) == approx(one_in_four)


@given(
    sampled_from(list(ESTIMATORS)),
    lists(integers(0, 8), min_size=1, max_size=16).flatmap(
        lambda rewards: permutations(range(len(rewards))).map(lambda order: (rewards, order))
    ),
)
def test_the_order_of_rows_never_matters_and_equal_rewards_teach_nothing(
    name, rewards_and_order
):
    rewards, order = rewards_and_order
    found = advantages(name, rewards)
    assert advantages(name, [rewards[i] for i in order]) == approx(
        [found[i] for i in order], abs=1e-9
    )
    if len(set(rewards)) == 1 and name not in VERDICTS_ALONE:
        assert found == [0.0] * len(rewards)
    if name in ("group_norm", "rloo", "dr_grpo", "gpg"):
        shifted = advantages(name, [r - 3 for r in rewards])
        assert shifted == approx(found, abs=1e-6) and sum(found) == approx(0, abs=1e-6)


def test_what_an_estimator_ignores_is_known():
    assert {name for name in ESTIMATORS if not ESTIMATORS[name].reads_failures} == set(
        VERDICTS_ALONE
    )
    assert {name for name in ESTIMATORS if ESTIMATORS[name].trains_equal_groups} == set(
        VERDICTS_ALONE
    )


def test_a_function_of_a_user_makes_the_advantages_of_a_mixed_batch(tmp_path):
    (tmp_path / "own.py").write_text(
        "def longest(rewards, *, num_tokens, recalled):\n    return [t - r for t, r in zip(num_tokens, recalled)]\n"
    )
    path = f"{tmp_path / 'own.py'}:longest"
    batch = R3(settings_of(advantage__function=path)).mix(
        [rollout(C), rollout(W), rollout(W)], step=0
    )
    assert [row.advantage for row in batch.rows] == [
        float(row.rollout.num_tokens) for row in batch.rows
    ]
