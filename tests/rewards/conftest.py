import asyncio

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader


@pytest.fixture(scope="session")
def grade_many():
    """Grades (response, reference) pairs in real worker processes."""
    grader = make_grader(RewardConfig(timeout_s=20.0))

    def grade(pairs, *, task="math", metadata=None, truncated=False, problems=None):
        async def run():
            return await asyncio.gather(
                *(
                    grader.grade(
                        GradeRequest(
                            response=response,
                            references=reference if isinstance(reference, tuple) else (reference,),
                            task=task,
                            num_tokens=8192,
                            truncated=truncated,
                            metadata=metadata[i] if metadata else None,
                            problem=problems[i] if problems else "",
                        )
                    )
                    for i, (response, reference) in enumerate(pairs)
                )
            )

        return asyncio.run(run())

    yield grade
    grader.close()
