import pytest
from pytest import approx

from r3_openrlhf.method.core.advantages import amplify_successes, group_advantages
from r3_openrlhf.method.core.estimators import mean_baseline


def test_by_hand():
    # mean 1, std 2; with lam and alpha each over 2 * 2 + 1
    assert group_advantages([1.0, 3.0, -1.0], lam=0) == [0.0, 1.0, -1.0]
    assert group_advantages([1.0, 3.0, -1.0], alpha=2, lam=1) == approx([0.0, 2 / 5, -2 / 5])
    # only recalled rows are damped, where it is asked for
    recalled = [False, False, False, True]
    found = group_advantages(
        [0, 0, 0, 1], alpha=4, lam=0, recalled=recalled, off_policy_only=True
    )
    assert found == approx([-0.5, -0.5, -0.5, 1.5 / 4])  # mean 1/4, std 1/2
    # without that, `recalled` changes nothing
    assert group_advantages(
        [0, 1, 2], alpha=3, recalled=[False, False, True]
    ) == group_advantages([0, 1, 2], alpha=3)


def test_given_vectors(vectors):
    for case in vectors["group_advantages"]:
        found = group_advantages(case["rewards"], alpha=case["alpha"], lam=case["lam"])
        assert found == approx(case["advantages"], abs=1e-9), case


@pytest.mark.parametrize("rewards", [[0.1] * 7, [1.9] * 6, [0.0, -0.0], [1 / 3]])
def test_a_collapsed_group_gets_exactly_zero(rewards):
    # 0.1 * 7 / 7 is not 0.1: without the rule the rounding noise is divided by lambda
    assert group_advantages(rewards) == mean_baseline(rewards) == [0.0] * len(rewards)


def test_amplified_successes_by_hand():
    """The successes' mean, 0.5, is what the verdict is worth: it is tripled, their distance of 2 is not. A failure that a
    ranking prefers stays; so does a group whose verdicts do not differ, or whose successes are worth less than failures."""
    assert amplify_successes([1.5, -0.5, -1.0, 0.25], [True, True, False, False], factor=3) == [
        2.5,
        0.5,
        -1.0,
        0.25,
    ]
    for same in ([True, True], [False, False], [False, True]):
        assert amplify_successes([0.7, -0.7], same, factor=3) == [0.7, -0.7]
