"""Takes items in, bounded, and remembers outcomes, so that an item that is sent again is not graded again."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.errors import GradingError
from r3_openrlhf.grading.answers.request import GradeRequest
from r3_openrlhf.grading.exchange import encode_request, grade_of
from r3_openrlhf.grading.processes.pool import START_TIMEOUT_S, WorkerPool
from r3_openrlhf.grading.processes.wire import Outcome
from r3_openrlhf.reward_server.metrics import Metrics
from r3_openrlhf.reward_server.settings import ServerSettings
from r3_openrlhf.types import Grade

SIGN_OF_LIFE_S = 2.0
READY_FOR_S = 1.0  # after a grade /ready asks nobody
PROBE_S = 5.0
_BYTES_PER_VALUE = 60  # of a number or an entry in the metadata, in memory


class Busy(Exception):
    """Nothing more can be accepted now."""


# not remembered: sent again, such an item may well be graded
_PASSING = frozenset({"crashed", "closed", "unavailable"})


class AdmissionQueue:
    """Grades requests with a pool of its own; what would not fit into its bounds is refused.

    Two items with the same key and content share one grading, at the same time or one after the other. The content is
    part of the key: a key that is used for something else gets a grade of its own.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self.pool = WorkerPool(num_workers=settings.reward.num_workers, timeout_s=settings.reward.timeout_s)
        self._outcomes: OrderedDict[bytes, asyncio.Future[Outcome]] = OrderedDict()
        self._probe: asyncio.Future[Outcome] | None = None
        self._answered_at = -READY_FOR_S  # monotonic; below 0: never
        self._jobs: dict[asyncio.Future[Outcome], Future[Outcome]] = {}  # not answered yet
        self._num_waiting: dict[asyncio.Future[Outcome], int] = {}
        self.pending_items = 0
        self._pending_bytes = 0

    async def grade(self, requests: list[tuple[GradeRequest, str]], *, reward: RewardConfig) -> list[Grade]:
        """Grades of (request, key) pairs, in order. Busy when not all of them can be accepted; then none is."""
        self.check_room(requests)
        grades = dict([graded async for graded in self.grade_one_by_one(requests, reward=reward) if graded])
        return [grades[index] for index in range(len(requests))]

    def check_room(self, requests: list[tuple[GradeRequest, str]]) -> None:
        """Busy when not all of them can be accepted."""
        num_bytes = sum(_size(request) for request, _ in requests)
        if (
            self.pending_items + len(requests) > self._settings.max_pending_items
            or self._pending_bytes + num_bytes > self._settings.max_pending_bytes
        ) and self.pending_items:
            raise Busy

    async def grade_one_by_one(
        self, requests: list[tuple[GradeRequest, str]], *, reward: RewardConfig
    ) -> AsyncIterator[tuple[int, Grade] | None]:
        """(index, grade) of each pair as soon as it is there; None when there was none for SIGN_OF_LIFE_S."""
        num_bytes = sum(_size(request) for request, _ in requests)
        waiting: list[asyncio.Future[Outcome]] = []
        self.pending_items += len(requests)
        self._pending_bytes += num_bytes
        try:
            # shielded: another request may be waiting for the same outcome when this one is cancelled
            done: asyncio.Queue[tuple[int, asyncio.Future[Outcome]]] = asyncio.Queue()
            for i, (request, key) in enumerate(requests):
                # never awaited here: another request may be waiting for the same outcome when this one is cancelled
                future = self._outcome(request, key)
                self._num_waiting[future] = self._num_waiting.get(future, 0) + 1
                waiting.append(future)
                future.add_done_callback(partial(_note, done, i))
            num_left = len(requests)
            while num_left:
                try:
                    async with asyncio.timeout(SIGN_OF_LIFE_S):
                        index, future = await done.get()
                except TimeoutError:
                    yield None
                    continue
                num_left -= 1
                request = requests[index][0]
                grade = grade_of(future.result(), request.num_tokens, reward)
                self._metrics.count(request.task, grade)
                yield index, grade
        finally:
            self.pending_items -= len(requests)
            self._pending_bytes -= num_bytes
            for future in waiting:
                self._leave(future)

    def _leave(self, future: asyncio.Future[Outcome]) -> None:
        """What nobody waits for any more is not begun. What has been begun is finished and remembered."""
        self._num_waiting[future] -= 1
        if not self._num_waiting[future]:
            del self._num_waiting[future]
            job = self._jobs.get(future)
            if job is not None:
                job.cancel()

    def _outcome(self, request: GradeRequest, key: str) -> asyncio.Future[Outcome]:
        try:
            encoded = encode_request(request)
        except GradingError:
            return _answered("bad_metadata")
        digest = hashlib.blake2b(bytes(encoded), key=key.encode("utf-8", "replace")[:64], digest_size=16).digest()
        known = self._outcomes.get(digest)
        if known is not None:
            self._metrics.repeated.inc()
            return known
        try:
            job = self.pool.submit(encoded)
            future = asyncio.wrap_future(job)
        except GradingError:  # the service is ending
            return _answered("closed")
        self._outcomes[digest] = future
        self._jobs[future] = job
        future.add_done_callback(lambda done: self._jobs.pop(done, None))
        future.add_done_callback(lambda done: self._forget_if_passing(digest, done))
        future.add_done_callback(self._note_answer)
        while len(self._outcomes) > self._settings.remember_items and next(iter(self._outcomes.values())).done():
            self._outcomes.popitem(last=False)
        return future

    def _forget_if_passing(self, digest: bytes, future: asyncio.Future[Outcome]) -> None:
        if future.cancelled() or future.exception() is not None or future.result().reason in _PASSING:
            self._outcomes.pop(digest, None)

    async def why_not_ready(self) -> str | None:
        """None when a grading process has just answered, or answers a probe in time. All who ask share one probe."""
        if time.monotonic() - self._answered_at < READY_FOR_S:
            return None
        if self._probe is None or self._probe.done():
            request = GradeRequest(
                response=r"\boxed{1}", references=("1",), task="math", num_tokens=1, truncated=False
            )
            try:
                self._probe = asyncio.wrap_future(self.pool.submit(encode_request(request)))
            except GradingError:
                return "the service is ending"
            self._probe.add_done_callback(self._note_answer)
        seconds = PROBE_S if self._answered_at > 0 else START_TIMEOUT_S  # the first processes are still importing
        done, _ = await asyncio.wait([self._probe], timeout=seconds)
        if not done:
            return f"no answer in {seconds:.0f} s"
        outcome = self._probe.result()
        return None if outcome.verdict == "correct" else outcome.reason

    def _note_answer(self, future: asyncio.Future[Outcome]) -> None:
        """The last time that a process answered with a grade."""
        if not future.cancelled() and future.exception() is None and future.result().verdict != "ungraded":
            self._answered_at = time.monotonic()

    def close(self) -> None:
        self.pool.close()


def _size(request: GradeRequest) -> int:
    """Characters of an item, references and metadata included; those of the metadata as its text, about."""
    size = len(request.response) + sum(map(len, request.references))
    left = [request.metadata] if request.metadata else []
    while left:
        value = left.pop()
        size += _BYTES_PER_VALUE
        if isinstance(value, dict):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str):
            size += len(value)
    return size


def _note(done: asyncio.Queue, index: int, future: asyncio.Future[Outcome]) -> None:
    done.put_nowait((index, future))


def _answered(reason: str) -> asyncio.Future[Outcome]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(Outcome(0, "ungraded", reason, None, None, 0.0))
    return future
