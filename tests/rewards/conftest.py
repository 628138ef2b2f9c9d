import asyncio
from types import SimpleNamespace

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards import remote
from r3_openrlhf.rewards.client import make_grader
from tests.rewards.graders import request


@pytest.fixture
def at_rest(monkeypatch):
    """The clock of a client of servers, by itself at rest: its waits between two asks move it, and are over at once.

    Of that client alone: a server of another test, which waits in a thread of this process, would move it too."""
    now, sleep = [0.0], asyncio.sleep

    async def rest(seconds):
        now[0] += seconds
        await sleep(0)

    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: now[0]))
    names = vars(asyncio) | {"sleep": rest}
    monkeypatch.setattr(remote, "asyncio", SimpleNamespace(**names))
    return now


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
