import asyncio

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards.client import make_grader
from tests.rewards.graders import request


@pytest.fixture(scope="session")
def grade_many():
    """Grades (response, reference) pairs in real worker processes."""
    grader = make_grader(RewardConfig(timeout_s=20.0))

    def grade(pairs, *, task="math", metadata=None, truncated=False, problems=None):
        async def run():
            requests = [
                request(
                    response,
                    *(reference if isinstance(reference, tuple) else (reference,)),
                    task=task,
                    num_tokens=8192,
                    truncated=truncated,
                    metadata=metadata[i] if metadata else None,
                    problem=problems[i] if problems else "",
                )
                for i, (response, reference) in enumerate(pairs)
            ]
            return await asyncio.gather(*map(grader.grade, requests))

        return asyncio.run(run())

    yield grade
    grader.close()
