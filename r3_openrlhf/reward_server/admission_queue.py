"""Takes items in, bounded, and remembers outcomes, so that an item that is sent again is not graded again."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.errors import GradingError
from r3_openrlhf.grading.answers.request import GradeRequest
from r3_openrlhf.grading.exchange import encode_request, grade_of
from r3_openrlhf.grading.processes.pool import START_TIMEOUT_S, WorkerPool
from r3_openrlhf.grading.processes.wire import Outcome
from r3_openrlhf.reward_server.metrics import Metrics
from r3_openrlhf.reward_server.room import Client, Room
from r3_openrlhf.reward_server.settings import ServerSettings
from r3_openrlhf.types import Grade

SIGN_OF_LIFE_S = 2.0
READY_FOR_S = 1.0  # after a grade /ready asks nobody
PROBE_S = 5.0


class Busy(Exception):
    """Nothing more can be accepted now. unread: what is left of the body will not be read."""

    def __init__(self, *, unread: bool = False) -> None:
        super().__init__("too much is waiting; try again in a second")
        self.unread = unread


# not remembered: sent again, such an item may well be graded
_PASSING = frozenset({"crashed", "closed", "unavailable"})


@dataclass(frozen=True, slots=True)
class Question:
    """One item as the queue takes it: made of the body, away from the event loop.

    encoded: None when its metadata are no plain data. digest: of key and content. num_bytes: of the whole item.
    """

    encoded: msgspec.Raw | None
    digest: bytes
    num_bytes: int
    num_tokens: int
    task: str


def question_of(request: GradeRequest, key: str) -> Question:
    """The request, with its idempotency key."""
    try:
        encoded = encode_request(request)
    except GradingError:
        return Question(None, b"", 0, request.num_tokens, request.task)
    content = memoryview(encoded)
    digest = hashlib.blake2b(content, key=key.encode("utf-8", "replace")[:64], digest_size=16).digest()
    return Question(encoded, digest, len(content), request.num_tokens, request.task)


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
        self._jobs: dict[asyncio.Future[Outcome], tuple[Future[Outcome], bytes]] = {}  # not answered yet
        self._num_waiting: dict[asyncio.Future[Outcome], int] = {}
        self.pending_items = 0
        self._places = Room(settings.max_pending_items)
        self._bytes = Room(settings.max_pending_bytes)

    def admit(self, questions: list[Question], client: Client) -> Admitted:
        """Accepts all of them, or raises Busy. Whoever asked calls `leave` in the end."""
        num_bytes = sum(question.num_bytes for question in questions)
        if not (self._places.has_place(client, len(questions)) and self._bytes.has_place(client, num_bytes)):
            raise Busy
        places = self._places.take(client, len(questions)), self._bytes.take(client, num_bytes)
        self.pending_items += len(questions)
        return Admitted(self, client, questions, [self._outcome(question) for question in questions], places)

    async def grade(self, questions: list[Question], client: Client, *, reward: RewardConfig) -> list[Grade]:
        """Grades in order. Busy when not all of them can be accepted; then none is."""
        admitted = self.admit(questions, client)
        try:
            grades = dict([graded async for graded in admitted.grades(reward) if graded])
        finally:
            admitted.leave()
        return [grades[index] for index in range(len(questions))]

    def count(self, question: Question, grade: Grade) -> None:
        """Enter a grade that is about to be sent into the metrics."""
        self._metrics.count(question.task, grade)

    def stay(self, future: asyncio.Future[Outcome]) -> None:
        """One more caller waits for this outcome. Each of them calls `leave` in the end."""
        self._num_waiting[future] = self._num_waiting.get(future, 0) + 1

    def leave(self, future: asyncio.Future[Outcome]) -> None:
        """What nobody waits for any more is not begun. What has been begun is finished and remembered."""
        self._num_waiting[future] -= 1
        if not self._num_waiting[future]:
            del self._num_waiting[future]
            job, digest = self._jobs.get(future, (None, b""))
            if job is not None and job.cancel():
                self._outcomes.pop(digest, None)  # at once: who asks for it next begins it anew

    def give_back(self, client: Client, num_items: int, places: tuple[int, int]) -> None:
        """Free what `admit` took: num_items of the pending items; (items, bytes) of the two rooms."""
        self.pending_items -= num_items
        self._places.give_back(client, places[0])
        self._bytes.give_back(client, places[1])

    def _outcome(self, question: Question) -> asyncio.Future[Outcome]:
        if question.encoded is None:
            return _answered("bad_metadata")
        digest = question.digest
        known = self._outcomes.get(digest)
        if known is not None:
            self._metrics.repeated.inc()
            return known
        try:
            job = self.pool.submit(question.encoded)
            future = asyncio.wrap_future(job)
        except GradingError:  # the service is ending
            return _answered("closed")
        self._outcomes[digest] = future
        self._jobs[future] = job, digest
        future.add_done_callback(lambda done: self._jobs.pop(done, None))
        future.add_done_callback(lambda done: self._forget_if_passing(digest, done))
        future.add_done_callback(self._note_answer)
        while len(self._outcomes) > self._settings.remember_items and next(iter(self._outcomes.values())).done():
            self._outcomes.popitem(last=False)
        return future

    def _forget_if_passing(self, digest: bytes, future: asyncio.Future[Outcome]) -> None:
        if future.cancelled() or future.exception() is not None or future.result().reason in _PASSING:
            if self._outcomes.get(digest) is future:
                del self._outcomes[digest]

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
        """Ends the grading processes. What still waits is answered `ungraded: closed`."""
        self.pool.close()


class Admitted:
    """Questions that were accepted, of one caller. They hold their places until `leave`."""

    def __init__(
        self,
        queue: AdmissionQueue,
        client: Client,
        questions: list[Question],
        outcomes: list[asyncio.Future[Outcome]],
        places: tuple[int, int],
    ) -> None:
        self._queue = queue
        self._client = client
        self._questions = questions
        self._outcomes = outcomes
        self._places = places
        self._has_left = False
        for future in outcomes:
            queue.stay(future)

    async def grades(self, reward: RewardConfig) -> AsyncIterator[tuple[int, Grade] | None]:
        """(index, grade) of each question as soon as it is there; None when there was none for SIGN_OF_LIFE_S."""
        # the outcomes are never awaited: another caller may be waiting for the same one when this one is cancelled
        done: asyncio.Queue[tuple[int, asyncio.Future[Outcome]]] = asyncio.Queue()
        for i, future in enumerate(self._outcomes):
            future.add_done_callback(partial(_note, done, i))
        num_left = len(self._questions)
        while num_left:
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_S):
                    index, future = await done.get()
            except TimeoutError:
                yield None
                continue
            num_left -= 1
            question = self._questions[index]
            grade = grade_of(future.result(), question.num_tokens, reward)
            self._queue.count(question, grade)
            yield index, grade

    def leave(self) -> None:
        """Gives the places back; twice is harmless."""
        if self._has_left:
            return
        self._has_left = True
        self._queue.give_back(self._client, len(self._questions), self._places)
        for future in self._outcomes:
            self._queue.leave(future)


def _note(done: asyncio.Queue, index: int, future: asyncio.Future[Outcome]) -> None:
    done.put_nowait((index, future))


def _answered(reason: str) -> asyncio.Future[Outcome]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(Outcome(0, "ungraded", reason, None, None, 0.0))
    return future
