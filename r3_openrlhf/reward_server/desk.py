"""Takes items in, bounded, and remembers outcomes, so that an item that is sent again is not graded again."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from functools import partial

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.errors import GradingError
from r3_openrlhf.grading.answers.request import GradeRequest
from r3_openrlhf.grading.exchange import encode_request, grade_of
from r3_openrlhf.grading.processes.pool import WorkerPool
from r3_openrlhf.grading.processes.wire import Outcome
from r3_openrlhf.reward_server.metrics import Metrics
from r3_openrlhf.reward_server.settings import ServerSettings
from r3_openrlhf.types import Grade

SIGN_OF_LIFE_S = 2.0


class Busy(Exception):
    """Nothing more can be accepted now."""


# not remembered: sent again, such an item may well be graded
_PASSING = frozenset({"crashed", "closed", "unavailable"})


class Desk:
    """Grades requests with a pool of its own.

    Two items with the same key and content share one grading, at the same time or one after the other. The content is
    part of the key: a key that is used for something else gets a grade of its own.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self.pool = WorkerPool(num_workers=settings.reward.num_workers, timeout_s=settings.reward.timeout_s)
        self._outcomes: OrderedDict[bytes, asyncio.Future[Outcome]] = OrderedDict()
        self.pending_items = 0
        self._pending_bytes = 0

    async def grade(self, requests: list[tuple[GradeRequest, str]], *, reward: RewardConfig) -> list[Grade]:
        """Grades of (request, key) pairs, in order. Busy when not all of them can be accepted; then none is."""
        self.check_room(requests)
        grades = dict([graded async for graded in self.grade_one_by_one(requests, reward=reward) if graded])
        return [grades[index] for index in range(len(requests))]

    def check_room(self, requests: list[tuple[GradeRequest, str]]) -> None:
        """Busy when not all of them can be accepted."""
        num_bytes = sum(len(request.response) for request, _ in requests)
        if (
            self.pending_items + len(requests) > self._settings.max_pending_items
            or self._pending_bytes + num_bytes > self._settings.max_pending_bytes
        ) and self.pending_items:
            raise Busy

    async def grade_one_by_one(
        self, requests: list[tuple[GradeRequest, str]], *, reward: RewardConfig
    ) -> AsyncIterator[tuple[int, Grade] | None]:
        """(index, grade) of each pair as soon as it is there; None when there was none for SIGN_OF_LIFE_S."""
        num_bytes = sum(len(request.response) for request, _ in requests)
        self.pending_items += len(requests)
        self._pending_bytes += num_bytes
        try:
            # shielded: another request may be waiting for the same outcome when this one is cancelled
            done: asyncio.Queue[tuple[int, asyncio.Future[Outcome]]] = asyncio.Queue()
            for i, (request, key) in enumerate(requests):
                # never awaited here: another request may be waiting for the same outcome when this one is cancelled
                self._outcome(request, key).add_done_callback(partial(_note, done, i))
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
            future = asyncio.wrap_future(self.pool.submit(encoded))
        except GradingError:  # the service is ending
            return _answered("closed")
        self._outcomes[digest] = future
        future.add_done_callback(lambda done: self._forget_if_passing(digest, done))
        while len(self._outcomes) > self._settings.remember_items and next(iter(self._outcomes.values())).done():
            self._outcomes.popitem(last=False)
        return future

    def _forget_if_passing(self, digest: bytes, future: asyncio.Future[Outcome]) -> None:
        if future.cancelled() or future.exception() is not None or future.result().reason in _PASSING:
            self._outcomes.pop(digest, None)

    def close(self) -> None:
        self.pool.close()


def _note(done: asyncio.Queue, index: int, future: asyncio.Future[Outcome]) -> None:
    done.put_nowait((index, future))


def _answered(reason: str) -> asyncio.Future[Outcome]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(Outcome(0, "ungraded", reason, None, None, 0.0))
    return future
