"""Grader in worker processes of this machine."""

import asyncio
import logging
import threading
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

import msgspec

from r3_openrlhf.config import CodeConfig, RewardConfig
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.config.reward_functions import BUILT_IN
from r3_openrlhf.machine.processes.pool import ItemLost, ProcessPool
from r3_openrlhf.rewards.answers.request import SLOW, GradeRequest, Outcome
from r3_openrlhf.rewards.exchange import Grade, encode_request, grade_of, in_group
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

    def __init__(
        self, *, num_workers: int, timeout_s: float, code: CodeConfig | None = None
    ) -> None:
        self._num_workers, self._timeout_s = num_workers, timeout_s
        self._code = code or CodeConfig()
        self._lock = threading.Lock()
        self._pools: dict[str, ProcessPool[Outcome]] = {}
        self._is_closed = False

    def submit(self, task: str, item: msgspec.Raw) -> Future[Outcome]:
        """Queue one item of `task` (exchange.encode_request); a lost one is answered as ungraded,
        with its reason, or as wrong where the response alone is at fault.

        Raises:
            ConfigError: there is no such task."""
        pool = self._pool_of(task)
        if TASKS[task].runs_programs or TASKS[task].of_user:
            return pool.submit(item)
        return grade_or_blame(pool, item)

    def _pool_of(self, task: str) -> ProcessPool[Outcome]:
        with self._lock:
            if task not in self._pools:
                runs_programs = TASKS[task].runs_programs
                self._pools[task] = ProcessPool(
                    "r3_openrlhf.rewards.worker:make_worker",
                    {"task": task} | ({"code": asdict(self._code)} if runs_programs else {}),
                    answer_type=Outcome,
                    num_workers=self._num_workers,
                    # what grades programs ends by itself, unless it hangs
                    timeout_s=2 * self._code.seconds + START_S
                    if runs_programs
                    else self._timeout_s,
                    attempts=ATTEMPTS,
                    memory_bytes=None if runs_programs else MEMORY_BYTES,
                    on_lost=lambda lost: Outcome("ungraded", lost.reason, seconds=lost.seconds),
                )
                if self._is_closed:
                    self._pools[task].close()
            return self._pools[task]

    def close(self) -> None:
        """End the processes. What still waits is answered `ungraded: closed`."""
        with self._lock:
            self._is_closed = True
        for pool in self._pools.values():
            pool.close()


def grade_or_blame(pool: ProcessPool[Outcome], item: msgspec.Raw) -> Future[Outcome]:
    """Grade an item; a late one is wrong (SLOW) if its references with another response are in time.

    They get a process of their own and the same time. An item whose process ends stays ungraded:
    that may be another's doing."""
    answer = Future[Outcome]()

    def settle(done: Future[Outcome]) -> None:
        if done.cancelled() or not answer.set_running_or_notify_cancel():
            return
        outcome = done.result()
        if (outcome.verdict, outcome.reason) != ("ungraded", "timeout"):
            answer.set_result(outcome)
            return
        control = pool.submit(_with_plain_response(item))
        control.add_done_callback(
            lambda graded: answer.set_result(blame(outcome, graded.result()))
        )

    def blame(outcome: Outcome, control: Outcome) -> Outcome:
        if control.verdict == "ungraded":
            return outcome
        return Outcome("wrong", SLOW, 0.0, seconds=outcome.seconds)

    grading = pool.submit(item)
    answer.add_done_callback(lambda one: grading.cancel() if one.cancelled() else None)
    grading.add_done_callback(settle)
    return answer


def _with_plain_response(item: msgspec.Raw) -> msgspec.Raw:
    """Replace the response by one that is as large as the first reference, but not equal as a text."""
    request = msgspec.msgpack.decode(item, type=GradeRequest)
    response = rf"\boxed{{{request.references[0]} + 0}}" if request.references else r"\boxed{0}"
    return encode_request(msgspec.structs.replace(request, response=response, truncated=False))


def _part_of_lost(lost: ItemLost) -> list[Part]:
    error = lost.detail and f"{lost.reason}: {lost.detail}"
    return [Part("reward function", trouble=lost.reason, error=error)]


class LocalGrader:
    """Grades in `reward.num_workers` processes of this machine, started with the first request: by
    the built-in grader, a user's functions, or both.

    The reward of functions is what they return; each item has `reward.timeout_s`."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self.pools = GradingPools(
            num_workers=config.num_workers, timeout_s=config.timeout_s, code=config.code
        )
        functions = config.loaded_functions
        self._singles, self._of_groups = (
            [function.path for function in functions if function.reads_group is of_groups]
            for of_groups in (False, True)
        )
        # the answers about a group until each of its responses has its part: a future, and how many have not
        self._called: dict[
            tuple[str, tuple[Any, ...]], tuple[asyncio.Future[list[Part]], int]
        ] = {}
        self._functions: ProcessPool[list[Part]] = ProcessPool(
            "r3_openrlhf.rewards.functions:make_worker",
            {
                "functions": [
                    (function.path, config.arguments_of(function.path))
                    for function in functions
                ]
            },
            answer_type=list[Part],
            num_workers=config.num_workers,
            timeout_s=config.timeout_s,
            attempts=ATTEMPTS,
            on_lost=_part_of_lost,
        )
        self._logged: set[str] = set()

    async def grade(self, request: GradeRequest) -> Grade:
        """Grade one response. ConfigError: unknown task. GradingError: metadata or row not plain."""
        item, functions = (
            encode_request(msgspec.structs.replace(request, group=())),
            self._config.all_functions,
        )
        calling = asyncio.wrap_future(self._functions.submit(item)) if self._singles else None
        of_group = self._parts_of_group(request) if self._of_groups else None
        built_in = None
        if BUILT_IN in functions or not functions:
            built_in = await asyncio.wrap_future(self.pools.submit(request.task, item))
        if not functions:
            assert built_in is not None
            return grade_of(built_in, request.num_tokens, self._config)
        answers = await calling if calling else []
        parts = {
            path: answers[min(n, len(answers) - 1)] for n, path in enumerate(self._singles)
        }
        parts |= dict(zip(self._of_groups, await of_group, strict=True)) if of_group else {}
        if built_in is not None:
            parts[BUILT_IN] = part_of(built_in)
        outcome = combined(
            [parts[path] for path in functions],
            self._config.all_weights,
            correct_from=self._config.correct_from,
        )
        self._log(outcome)
        if built_in is not None and outcome.score is not None:
            outcome = msgspec.structs.replace(outcome, extracted=built_in.extracted)
        return grade_of(outcome, request.num_tokens, self._config)

    async def _parts_of_group(self, request: GradeRequest) -> list[Part]:
        """Return a part of each function of groups. They are called once for all responses of the group."""
        request = request if request.group else in_group([request])[0]
        size, key = len(request.group), (request.prompt or request.problem, request.group)
        whole = msgspec.structs.replace(request, response="", place=0)
        asked = self._called.pop(key, None) or (
            asyncio.wrap_future(self._functions.submit(encode_request(whole))),
            size,
        )
        if asked[1] > 1:
            self._called[key] = asked[0], asked[1] - 1
        parts = await asyncio.shield(asked[0])
        places = range(request.place, len(self._of_groups) * size, size)
        return [parts[min(place, len(parts) - 1)] for place in places]

    def _log(self, outcome: Outcome) -> None:
        error = str(outcome.extras.get("error", ""))
        if (
            error
            and (key := f"{outcome.reason} {error.rpartition('(')[2]}") not in self._logged
        ):
            self._logged.add(key)
            logger.error("a reward function gave no value: %s\n%s", error, outcome.detail)

    def close(self) -> None:
        """End the processes. What still waits is answered `ungraded: closed`."""
        self._functions.close()
        self.pools.close()
