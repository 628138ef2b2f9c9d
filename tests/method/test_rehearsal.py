"""Rehearsal of stored successes, and what a recalled row's ratio is taken against."""

import pytest

from r3_openrlhf.method.core.batch_metrics import batch_metrics, trained_tokens
from r3_openrlhf.method.r3 import R3
from tests.method.rehearsals import mixed, rehearsal_history
from tests.method.steps import C, W, rollout, settings_of


@pytest.fixture
def history():
    with rehearsal_history() as store:
        yield store


def test_the_newest_success_of_a_rarely_solved_problem_that_is_not_asked(history):
    batch = mixed(history)
    (row,) = [row for row in batch.rows if row.rehearsed]
    assert row.rollout.uid == "a" and row.rollout.policy_step == 1 and row.rollout.verdict is C
    assert (
        row.advantage == 1.0
        and row.old_logprobs is None
        and row.trained
        and batch.has_own_prompt(row)
    )
    assert [one.advantage for one in batch.rows[:2]] == [
        one.advantage for one in mixed(None).rows
    ]
    assert len(mixed(history, step=500, replay__max_policy_lag=100).rows) == 2  # too old


def test_what_was_sampled_is_counted_as_without_it(history):
    """Generated tokens, groups and recalls are those of the step; the trained tokens know the row."""
    plain, batch = mixed(None), mixed(history)
    numbers = batch_metrics(batch, step=2)
    differing = {
        key for key, value in batch_metrics(plain, step=2).items() if numbers[key] != value
    }
    assert (
        differing == {"r3/replay/rehearsed", "r3/advantage/abs_sum"}
        and numbers["r3/replay/rehearsed"] == 1
    )
    assert trained_tokens(batch, passes=1) == trained_tokens(plain, passes=1) + 4


def test_the_same_seed_step_and_history_rehearse_the_same_rows(history):
    half = {"replay__rehearse__share": 0.5}

    def chosen(step, seed=0):
        return [
            (r.rollout.uid, r.rollout.policy_step)
            for r in mixed(history, step=step, seed=seed, **half).rows[2:]
        ]

    history.commit_step(
        3, 1, [rollout(C if i == 0 else W, number=30 + i, uid="f", step=2) for i in range(8)]
    )
    before = [chosen(step) for step in range(3, 12)]
    assert len({drawn[0][0] for drawn in before}) == 2  # by lot
    assert {len(drawn) for drawn in before} == {1}  # half of two rows
    history.commit_step(4, 1, [rollout(W, number=80 + i, uid="b", step=3) for i in range(40)])
    assert [chosen(step) for step in range(4, 12)] != before[1:]
    history.roll_back(3)
    assert [chosen(step) for step in range(3, 12)] == before


@pytest.mark.parametrize(("old_logprobs", "stored"), [("behaviour", [C, W]), ("recompute", [])])
def test_which_ratios_are_taken_against_stored_logprobs(history, old_logprobs, stored):
    r3 = R3(settings_of(replay__old_logprobs=old_logprobs), history=history)
    prompt = (3, ord("d"))
    found = []
    for verdict in (C, W):
        asked = [
            rollout(W if verdict is C else C, uid="d", number=i, prompt=prompt)
            for i in range(2)
        ]
        recalled = [row for row in r3.recall(asked, step=2).rows if row.recalled]
        assert recalled and all(row.rollout.verdict is verdict for row in recalled)
        found += [verdict] * all(row.old_logprobs is not None for row in recalled)
    assert found == stored


def test_a_recalled_success_is_scaled_like_a_fresh_one(history):
    """Two wrong ones and two recalled: mean 1/2, std 1/sqrt(3); a success weighs three times that."""
    r3 = R3(settings_of(advantage__success_scale=3.0), history=history)
    batch = r3.mix(
        [rollout(W, uid="a", number=i, prompt=(3, ord("a"))) for i in range(2)], step=2
    )
    assert [row.advantage for row in batch.rows] == pytest.approx(
        [-(3**0.5) / 2] * 2 + [3 * 3**0.5 / 2] * 2
    )
