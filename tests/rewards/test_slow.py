"""Who is blamed for an item that takes a grader to its deadline: the response, or the data."""

import pytest

from r3_openrlhf.machine.processes.pool import ProcessPool
from r3_openrlhf.rewards.answers.request import Outcome
from r3_openrlhf.rewards.exchange import encode_request
from r3_openrlhf.rewards.local import grade_or_blame
from tests.rewards.graders import request

DEADLINE_S = 0.5


@pytest.fixture(scope="module")
def pool():
    with ProcessPool(
        "tests.rewards.slow_worker:make_worker",
        answer_type=Outcome,
        timeout_s=DEADLINE_S,
        attempts=2,
        on_lost=lambda lost: Outcome("ungraded", lost.reason, seconds=lost.seconds),
    ) as pool:
        yield pool


def submitted(pool, *texts):
    return grade_or_blame(pool, encode_request(request(*texts)))


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        (("5", "5"), ("correct", "correct", 1.0)),
        (("hang", "5"), ("wrong", "slow", 0.0)),
        (("hang", "5", "6"), ("wrong", "slow", 0.0)),
        (("5", "hang"), ("ungraded", "timeout", None)),  # it hangs with any response
        (("hang", "5", "hang"), ("ungraded", "timeout", None)),
        (("hang", "crash"), ("ungraded", "timeout", None)),  # nothing is known of the reference
        (("crash", "5"), ("ungraded", "crashed", None)),
    ],
)
def test_a_late_response_is_wrong_only_where_its_references_alone_are_in_time(
    pool, texts, verdict
):
    outcome = submitted(pool, *texts).result()
    assert (outcome.verdict, outcome.reason, outcome.score) == verdict


def test_the_time_of_a_late_response_is_kept(pool):
    assert submitted(pool, "hang", "5").result().seconds >= DEADLINE_S


def test_an_item_that_waits_can_be_cancelled(pool):
    late, waiting, last = (submitted(pool, text, "5") for text in ("hang", "hang too", "5"))
    assert waiting.cancel()
    assert (late.result().reason, last.result().reason) == ("slow", "correct")
