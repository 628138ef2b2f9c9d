"""Grader by a user's reward functions (`reward.function`, `reward.functions`)."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.config.reward_functions import BUILT_IN
from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool
from r3_openrlhf.rewards.answers.request import GradeRequest, Outcome
from r3_openrlhf.rewards.exchange import Grade, encode_function_item, encode_request, grade_of
from r3_openrlhf.rewards.functions import Part, combined, part_of
from r3_openrlhf.rewards.local import ATTEMPTS, GradingPools

logger = logging.getLogger(__name__)


class FunctionGrader:
    """Calls the functions in `reward.num_workers` processes, `reward.timeout_s` for each item.

    The reward is what they return. The built-in grader, if named, runs in its own processes.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._own = [path for path in config.all_functions if path != BUILT_IN]
        self._pool: ProcessPool[list[Part]] = ProcessPool(
            "r3_openrlhf.rewards.functions:make_worker",
            {"paths": self._own},
            answer_type=list[Part],
            num_workers=config.num_workers,
            timeout_s=config.timeout_s,
            attempts=ATTEMPTS,
            on_lost=_lost,
        )
        self.pools = GradingPools(num_workers=config.num_workers, timeout_s=config.timeout_s, code=config.code)
        self._logged: set[str] = set()

    async def grade(self, request: GradeRequest) -> Grade:
        """Do as Grader.grade. GradingError: a row that is no plain data."""
        asking = [asyncio.wrap_future(self._pool.submit(encode_function_item(request)))] if self._own else []
        built_in = BUILT_IN in self._config.all_functions
        graded = asyncio.wrap_future(self.pools.submit(request.task, encode_request(request))) if built_in else None
        parts_of_user = iter(await asking[0] if asking else [])
        first_lost: Part | None = None
        parts = []
        for path in self._config.all_functions:
            if path == BUILT_IN:
                assert graded is not None
                parts.append(part_of(await graded))
            else:
                # of an item that was lost there is one part for all functions
                first_lost = part = next(parts_of_user, first_lost) or Part(path, trouble="crashed")
                parts.append(part)
        outcome = combined(parts, self._config.all_weights, correct_from=self._config.correct_from)
        self._log(outcome)
        if graded is not None and outcome.score is not None:
            outcome = msgspec.structs.replace(outcome, extracted=(await graded).extracted)
        return grade_of(outcome, request.num_tokens, self._config)

    def _log(self, outcome: Outcome) -> None:
        """Each traceback once: a run has thousands of responses."""
        error = str(outcome.extras.get("error", ""))
        if error and (key := f"{outcome.reason} {error.rpartition('(')[2]}") not in self._logged:
            self._logged.add(key)
            logger.error("a reward function gave no value: %s\n%s", error, outcome.detail)

    def close(self) -> None:
        """End the processes. What still waits is answered `ungraded: closed`."""
        self._pool.close()
        self.pools.close()


def _lost(lost: ItemLost) -> list[Part]:
    return [Part("reward function", trouble=lost.reason, error=lost.detail and f"{lost.reason}: {lost.detail}")]
