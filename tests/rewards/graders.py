"""Grades of a run's grader, for tests."""

import asyncio

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from tests.rewards.hostile_payloads import ENDLESS_REFERENCE, endless


def request(response, *references, task="math", num_tokens=1, truncated=False, **fields):
    return GradeRequest(
        response=response,
        references=references or ("5",),
        task=task,
        num_tokens=num_tokens,
        truncated=truncated,
        **fields,
    )


def endless_request(i=0):
    """Takes the grader to its deadline; another one for every i."""
    return request(rf"\boxed{{{endless(i)}}}", ENDLESS_REFERENCE)


def graded(config: RewardConfig, requests, *, at_once=10_000):
    """The grades of a new grader, which is then closed."""

    async def grade_all():
        grader = make_grader(config)
        gate = asyncio.Semaphore(at_once)

        async def grade(one_request):
            async with gate:
                return await grader.grade(one_request)

        try:
            return await asyncio.gather(*map(grade, requests))
        finally:
            grader.close()
            await asyncio.sleep(0)

    return asyncio.run(grade_all())
