"""Grader in worker processes of this machine."""

from __future__ import annotations

import asyncio

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.grading.answers.request import GradeRequest
from r3_openrlhf.grading.exchange import encode_request, grade_of
from r3_openrlhf.grading.processes.pool import WorkerPool
from r3_openrlhf.types import Grade


class LocalGrader:
    """Grades in `reward.num_workers` processes of this machine, started with the first request."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self.pool = WorkerPool(num_workers=config.num_workers, timeout_s=config.timeout_s)

    async def grade(self, request: GradeRequest) -> Grade:
        """As Grader.grade. ConfigError: unknown task. GradingError: metadata that is no plain data, or closed."""
        outcome = await asyncio.wrap_future(self.pool.submit(encode_request(request)))
        return grade_of(outcome, request.num_tokens, self._config)

    def close(self) -> None:
        """Ends the processes. What still waits is answered `ungraded: closed`."""
        self.pool.close()
