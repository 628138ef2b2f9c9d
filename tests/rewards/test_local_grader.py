"""The grader of the training side, with real worker processes."""

import asyncio

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from tests.rewards.hostile_payloads import ENDLESS_REFERENCE, endless


@pytest.fixture(scope="module")
def grader():
    grader = make_grader(RewardConfig(timeout_s=2.0))
    yield grader
    grader.close()


def request(response, *references, task="math", num_tokens=8192, truncated=False, metadata=None):
    return GradeRequest(
        response=response,
        references=references,
        task=task,
        num_tokens=num_tokens,
        truncated=truncated,
        metadata=metadata,
    )


def grade(grader, *args, **kwargs):
    return asyncio.run(grader.grade(request(*args, **kwargs)))


def test_a_correct_answer_earns_one_and_the_length_reward(grader):
    result = grade(grader, r"<think>hm</think> It is \boxed{5}.", "5")
    assert (result.verdict, result.score, result.reward, result.extracted) == (Verdict.CORRECT, 1.0, 1.75, "5")


def test_a_wrong_answer_earns_nothing(grader):
    result = grade(grader, r"\boxed{6}", "5")
    assert (result.verdict, result.score, result.reward) == (Verdict.WRONG, 0.0, 0.0)


def test_an_item_that_never_ends_is_ungraded_and_its_neighbours_are_not_touched(grader):
    async def run():
        hanging = [grader.grade(request(rf"\boxed{{{endless(i)}}}", ENDLESS_REFERENCE)) for i in range(2)]
        benign = [grader.grade(request(rf"\boxed{{x+{i}}}", "x+3")) for i in range(40)]
        return await asyncio.gather(*hanging, *benign)

    results = asyncio.run(run())
    assert [(r.verdict, r.reason, r.score, r.reward) for r in results[:2]] == [
        (Verdict.UNGRADED, "timeout", None, None)
    ] * 2
    assert [i for i, r in enumerate(results[2:]) if r.verdict is Verdict.CORRECT] == [3]
    assert all(r.verdict is Verdict.WRONG for i, r in enumerate(results[2:]) if i != 3)
