"""Grader in worker processes of this machine."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from dataclasses import asdict

import msgspec

from r3_openrlhf.config import CodeConfig, RewardConfig
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.reward_functions import BUILT_IN
from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool
from r3_openrlhf.rewards.answers.request import GradeRequest, Outcome
from r3_openrlhf.rewards.exchange import Grade, encode_request, grade_of
from r3_openrlhf.rewards.functions import Part, combined, part_of

logger = logging.getLogger(__name__)

MEMORY_BYTES = 2**30
ATTEMPTS = 3
START_S = 120.0  # until programs can be run, on a busy machine


class GradingPools:
    """Confined processes, `num_workers` for each task, started with its first item.

    Those of a task that runs programs are not confined themselves: they start the processes that
    are.

    Args:
        timeout_s: For one item.
        code: Limits for tasks that run programs."""

    def __init__(self, *, num_workers: int, timeout_s: float, code: CodeConfig | None = None) -> None:
        self._num_workers, self._timeout_s = num_workers, timeout_s
        self._code = code or CodeConfig()
        self._lock = threading.Lock()
        self._pools: dict[str, ProcessPool[Outcome]] = {}
        self._is_closed = False

    def submit(self, task: str, item: msgspec.Raw) -> Future[Outcome]:
        """Queue one item of `task` (exchange.encode_request); a lost one is answered as ungraded,
        with its reason.

        Raises:
            ConfigError: there is no such task."""
        with self._lock:
            if task not in self._pools:
                runs_programs = TASKS[task].runs_programs
                self._pools[task] = ProcessPool(
                    "r3_openrlhf.rewards.worker:make_worker",
                    {"task": task} | ({"code": asdict(self._code)} if runs_programs else {}),
                    answer_type=Outcome,
                    num_workers=self._num_workers,
                    # what grades programs ends by itself, unless it hangs
                    timeout_s=2 * self._code.seconds + START_S if runs_programs else self._timeout_s,
                    attempts=ATTEMPTS,
                    memory_bytes=None if runs_programs else MEMORY_BYTES,
                    on_lost=_ungraded,
                )
                if self._is_closed:
                    self._pools[task].close()
        return self._pools[task].submit(item)

    def close(self) -> None:
        """End the processes. What still waits is answered `ungraded: closed`."""
        with self._lock:
            self._is_closed = True
        for pool in self._pools.values():
            pool.close()


def _ungraded(lost: ItemLost) -> Outcome:
    return Outcome("ungraded", lost.reason, seconds=lost.seconds)


class LocalGrader:
    """Grades in `reward.num_workers` processes of this machine, started with the first request: by
    the built-in grader, a user's functions, or both.

    The reward of functions is what they return; each item has `reward.timeout_s`."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self.pools = GradingPools(num_workers=config.num_workers, timeout_s=config.timeout_s, code=config.code)
        self._paths = [path for path in config.all_functions if path != BUILT_IN]
        self._functions: ProcessPool[list[Part]] = ProcessPool(
            "r3_openrlhf.rewards.functions:make_worker",
            {"paths": self._paths},
            answer_type=list[Part],
            num_workers=config.num_workers,
            timeout_s=config.timeout_s,
            attempts=ATTEMPTS,
            on_lost=self._parts_of_lost,
        )
        self._logged: set[str] = set()

    async def grade(self, request: GradeRequest) -> Grade:
        """Do as Grader.grade. ConfigError: unknown task. GradingError: metadata or row not plain."""
        item, functions = encode_request(request), self._config.all_functions
        calling = asyncio.wrap_future(self._functions.submit(item)) if self._paths else None
        built_in = None
        if BUILT_IN in functions or not functions:
            built_in = await asyncio.wrap_future(self.pools.submit(request.task, item))
        if not functions:
            assert built_in is not None
            return grade_of(built_in, request.num_tokens, self._config)
        parts = list(await calling) if calling else []
        if built_in is not None:
            parts.insert(functions.index(BUILT_IN), part_of(built_in))
        outcome = combined(parts, self._config.all_weights, correct_from=self._config.correct_from)
        self._log(outcome)
        if built_in is not None and outcome.score is not None:
            outcome = msgspec.structs.replace(outcome, extracted=built_in.extracted)
        return grade_of(outcome, request.num_tokens, self._config)

    def _parts_of_lost(self, lost: ItemLost) -> list[Part]:
        error = lost.detail and f"{lost.reason}: {lost.detail}"
        return [Part("reward function", trouble=lost.reason, error=error)] * len(self._paths)

    def _log(self, outcome: Outcome) -> None:
        """Each traceback once: a run has thousands of responses."""
        error = str(outcome.extras.get("error", ""))
        if error and (key := f"{outcome.reason} {error.rpartition('(')[2]}") not in self._logged:
            self._logged.add(key)
            logger.error("a reward function gave no value: %s\n%s", error, outcome.detail)

    def close(self) -> None:
        """End the processes. What still waits is answered `ungraded: closed`."""
        self._functions.close()
        self.pools.close()
