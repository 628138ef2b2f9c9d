"""Sentences about the first steps and about slow changes, by hand."""

import pytest

from r3_openrlhf.method.types import Verdict
from r3_openrlhf.stack.step_warnings import (
    ASLEEP,
    AT_BOUND,
    CUT,
    DOUBTED,
    ENTROPY,
    LENGTH,
    MIXED,
    RECALLED,
    REHEARSED,
    TAUGHT,
    WINDOW,
    early_warnings,
    trend_warnings,
)
from tests.method.history.samples import make_rollout

C, W, U = Verdict.CORRECT, Verdict.WRONG, Verdict.UNGRADED


def rollout(verdict, *, reward=None, truncated=False, reason="", **extras):
    made = make_rollout(ids=[1], verdict=verdict)
    made.reward = {C: 1.0, W: 0.0, U: None}[verdict] if reward is None else reward
    made.truncated, made.reason, made.extras = truncated, reason, extras
    return made


def kinds(*rollouts, step=1):
    return set(early_warnings(rollouts, step=step))


def test_a_usual_step_is_silent():
    assert kinds(rollout(C), rollout(W), rollout(W, truncated=True)) == set()
    assert kinds() == set()


def test_each_trouble_has_its_sentence():
    assert kinds(rollout(C, truncated=True), rollout(W, truncated=True)) == {"truncated"}
    assert kinds(rollout(W), rollout(W)) == {"none correct"}
    assert kinds(rollout(U), rollout(U)) == {"ungraded"}
    # paid the other way round, and not at all
    assert kinds(rollout(C, reward=-1.0), rollout(W, reward=1.0)) == {"contradiction"}
    assert kinds(rollout(C, reward=0.0), rollout(W, reward=0.0)) == {"contradiction"}
    assert kinds(rollout(C, reward=-1.0), rollout(W, reward=-2.0)) == set()


def test_the_sentence_says_what_the_function_said():
    error = "odd: LookupError: no such word (my_rewards.py, line 22)"
    mine = [rollout(U, reason="raised LookupError", error=error)] * 2 + [
        rollout(U, reason="timeout"),
        rollout(C),
    ]
    assert early_warnings(mine, step=2)["ungraded"] == (
        f"step 2: 3 of 4 responses could not be graded: raised LookupError (2), timeout (1); {error}"
    )


def test_later_steps_speak_of_what_could_not_be_graded_alone():
    assert kinds(rollout(W), rollout(W), step=4) == set()
    assert kinds(rollout(W, truncated=True), rollout(U, truncated=True), step=4) == {"ungraded"}


GiB = 2**30


def lines(first, last, *, steps=2 * WINDOW):
    """`first` in the first half, `last` in the second."""
    return [{"step": i + 1, **(first if i < steps // 2 else last)} for i in range(steps)]


CALM = {LENGTH: 3000.0, CUT: 0.05, ENTROPY: 0.5}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, set()),
        ({LENGTH: 4400.0}, set()),  # 1.47 times
        ({LENGTH: 4600.0}, {"length"}),
        ({LENGTH: 6000.0, CUT: 0.4}, {"truncation"}),  # one sentence of the two
        ({CUT: 0.19}, set()),
        ({ENTROPY: 0.16}, set()),
        ({ENTROPY: 0.14}, {"entropy"}),
        ({ENTROPY: 1.6}, {"entropy"}),
    ],
)
def test_what_is_worth_a_sentence(change, kinds):
    assert set(trend_warnings(lines(CALM, CALM | change))) == kinds


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, set()),
        ({DOUBTED: 0.49, AT_BOUND: 0.49}, set()),
        ({DOUBTED: 0.5}, {"teacher doubts"}),
        ({AT_BOUND: 0.5}, {"teacher bound"}),
        ({LENGTH: 1499.0}, {"teacher length"}),
        ({LENGTH: 1501.0}, set()),
        ({TAUGHT: 0.0, DOUBTED: 0.9, LENGTH: 1499.0}, set()),
    ],
)
def test_what_a_teacher_does_is_worth_a_sentence(change, kinds):
    taught = CALM | {TAUGHT: 8.0, DOUBTED: 0.2, AT_BOUND: 0.1}
    said = trend_warnings(lines(CALM, taught | change))
    assert set(said) == kinds
    assert all("distill" in sentence for sentence in said.values())


def test_a_collapse_of_the_entropy_beside_a_teacher_names_the_teacher():
    fell = trend_warnings(lines(CALM, CALM | {ENTROPY: 0.1, TAUGHT: 8.0}))["entropy"]
    assert "a lower distill.coef" in fell
    rose = trend_warnings(lines(CALM, CALM | {ENTROPY: 1.6, TAUGHT: 8.0}))["entropy"]
    assert "distill" not in rose


def test_the_sentences_name_numbers_and_a_way_out():
    said = trend_warnings(lines(CALM, {LENGTH: 6000.0, CUT: 0.4, ENTROPY: 0.1}))
    assert said["truncation"].startswith(
        "step 20: 40% of the responses are cut off at the limit of tokens, 5% at the beginning"
    )
    assert "rollout.max_new_tokens" in said["truncation"] and "eps_clip_high" in said["entropy"]
    assert "kl_coef" in trend_warnings(lines(CALM, CALM | {ENTROPY: 2.0}))["entropy"]


def test_nothing_is_said_before_there_is_a_beginning_and_a_now():
    assert trend_warnings(lines(CALM, CALM | {LENGTH: 9000.0}, steps=2 * WINDOW - 2)) == {}
    assert trend_warnings([]) == {}


def test_a_sleeping_engine_that_keeps_more_and_more_is_named_at_once():
    """NeMo-RL saw 4 GiB become 25 in three steps."""
    steady = [{"step": i, ASLEEP: 4.0 * GiB} for i in (1, 2, 3)]
    assert trend_warnings(steady) == {}
    (said,) = trend_warnings([*steady, {"step": 4, ASLEEP: 25.0 * GiB}]).values()
    assert said.startswith(
        "step 4: while the engine sleeps, 25.0 GiB of the GPU are not the policy's, 4.0 at the beginning"
    )


def test_a_number_that_is_missing_now_is_no_collapse():
    lines = [
        {"step": step, "r3/entropy/estimate": 1.0, "truncated_rate": 0.1}
        for step in range(1, 11)
    ]
    lines += [{"step": step} for step in range(11, 31)]
    assert trend_warnings(lines) == {}


@pytest.mark.parametrize("key", [RECALLED, REHEARSED])
@pytest.mark.parametrize(
    ("before", "rate", "said"),
    [(12, 0.29, True), (12, 0.31, False), (0, 0.29, True), (30, 0.29, False)],
)
def test_mixed_groups_that_fall_once_stored_rows_train_are_named(key, before, rate, said):
    """From 40% on; steps without a mixed group (0) say nothing; without stored rows nothing is blamed on them."""
    steps = [{"step": i + 1, MIXED: 0.4, key: float(i >= before)} for i in range(20)]
    steps += [
        {"step": i + 21, MIXED: rate * (i % 2), key: float(i + 20 >= before)} for i in range(10)
    ]
    found = trend_warnings(steps)
    assert set(found) == ({"replay"} if said else set())
    assert (
        "29% of the responses are right, 40% before stored rows trained"
        in found.get("replay", "")
        or not said
    )
