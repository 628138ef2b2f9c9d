import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers
from pytest import approx

from r3_openrlhf.config.algorithms import overlong_penalty
from r3_openrlhf.method.core.rewards import length_reward, outcome_reward

L_MAX = 32768
LENGTHS = integers(0, 100_000)


def test_by_hand():
    assert [length_reward(n, max_tokens=L_MAX) for n in (0, 4096, 8192, 32768, 40000)] == [
        1,
        0.875,
        0.75,
        0,
        0,
    ]
    assert outcome_reward(1.0, 4096, max_tokens=L_MAX) == 1.875
    assert outcome_reward(1.0, 8192, max_tokens=L_MAX) == 1.75
    assert outcome_reward(1.0, 8192, max_tokens=None) == 1
    assert outcome_reward(0.0, 10, max_tokens=L_MAX) == 0
    # partial credit is a score, not a reward
    assert outcome_reward(0.9, 10, max_tokens=L_MAX) == 0


def test_given_vectors(vectors):
    for case in vectors["length_reward"]:
        assert length_reward(case["num_tokens"], max_tokens=case["max_tokens"]) == approx(
            case["reward"]
        ), case


@given(LENGTHS, LENGTHS)
def test_shorter_never_earns_less(one, other):
    short, long = sorted((one, other))
    assert length_reward(short, max_tokens=L_MAX) >= length_reward(long, max_tokens=L_MAX)


@given(integers(-3, 100), integers(-3, 100))
def test_a_length_reward_is_a_share_or_refused(length, limit):
    if length < 0 or limit < 1:
        with pytest.raises(ValueError, match="^(num_tokens|max_tokens) is "):
            length_reward(length, max_tokens=limit)
        return
    assert 0 <= length_reward(length, max_tokens=limit) <= 1


@given(LENGTHS, LENGTHS, floats(0, 1, exclude_max=True))
def test_a_right_answer_always_earns_more_than_any_other(right, other, score):
    other_reward = outcome_reward(score, other, max_tokens=L_MAX)
    assert 0 <= other_reward < 1 <= outcome_reward(1.0, right, max_tokens=L_MAX) <= 2


def test_the_overlong_penalty_by_hand():
    """Limit 20: a buffer of 4, so 16 tokens are free, then an eighth a token up to a half."""
    assert [overlong_penalty(n, max_tokens=20) for n in (1, 16, 17, 18, 20, 30)] == [
        0,
        0,
        0.125,
        0.25,
        0.5,
        0.5,
    ]
    assert overlong_penalty(4, max_tokens=4) == 0  # no room for a buffer


@given(LENGTHS, LENGTHS, integers(1, 20_000))
def test_the_overlong_penalty_never_falls_with_length(one, other, limit):
    short, long = sorted((one, other))
    assert (
        0
        <= overlong_penalty(short, max_tokens=limit)
        <= overlong_penalty(long, max_tokens=limit)
        <= 0.5
    )
