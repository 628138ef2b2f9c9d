"""Takes items in, within bounds, and grades them with processes of its own."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.machine.processes.pool import START_TIMEOUT_S
from r3_openrlhf.rewards.answers.request import GradeRequest, Outcome
from r3_openrlhf.rewards.exchange import Grade, encode_request, grade_of
from r3_openrlhf.rewards.local import GradingPools
from r3_openrlhf.rewards.server.metrics import Metrics
from r3_openrlhf.rewards.server.settings import ServerSettings

SIGN_OF_LIFE_S = 2.0
READY_FOR_S = 1.0  # after a grade /ready asks no one
PROBE_S = 5.0
MAX_KEYS = 8192  # of the newest items, whose grades are kept for a client that asks again


class Busy(Exception):
    """Nothing more can be accepted now. unread: what is left of the body will not be read."""

    def __init__(self, *, unread: bool = False) -> None:
        super().__init__("too much is waiting; try again in a second")
        self.unread = unread


class Room:
    """`size` places (items, or bytes of items), shared so that no address can keep the others out. Pure, no clock.

    An address may hold as much as it leaves free to the others; one request takes at most half of what its address may still
    take, so that a small one finds a place where a large one does not. Into an empty room goes any request; then it counts
    for an eighth at most. After Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    switches", 1998, with alpha = 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: Counter[str] = Counter()

    def has_place(self, address: str, amount: int) -> bool:
        """True if this address may have so many more (items, or bytes)."""
        held = self._held.total()
        may_take = (self._size - held - self._held[address]) / 2  # what it takes is no longer free to the others
        return not held or amount <= may_take / 2

    def take(self, address: str, amount: int) -> int:
        """The places that this takes, to be given back."""
        places = amount if self._held.total() else min(amount, max(1, self._size // 8))
        self._held[address] += places
        return places

    def give_back(self, address: str, places: int) -> None:
        """Free what `take` returned."""
        self._held[address] -= places
        if not self._held[address]:
            del self._held[address]


@dataclass(frozen=True, slots=True)
class Question:
    """One item as the queue takes it: made of the body, away from the event loop."""

    encoded: msgspec.Raw
    num_tokens: int
    task: str
    key: bytes = b""  # of the client's own and the content; b"": it gave none


def question_of(request: GradeRequest, *, key: str = "") -> Question:
    """The request, encoded."""
    encoded = encode_request(request)
    digest = hashlib.sha256(key.encode("utf-8", "replace") + b"\0" + bytes(encoded)).digest() if key else b""
    return Question(encoded, request.num_tokens, request.task, digest)


class AdmissionQueue:
    """Grades requests with processes of its own; what would not fit into its bounds is refused."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self.metrics = metrics
        self.pools = GradingPools(
            num_workers=settings.reward.num_workers, timeout_s=settings.reward.timeout_s, code=settings.reward.code
        )
        self.pending_items = 0
        self._task = settings.task
        self._probe: Future[Outcome] | None = None
        self._jobs_by_key: OrderedDict[bytes, Future[Outcome]] = OrderedDict()
        self._answered_at = -READY_FOR_S  # monotonic; below 0: never
        self._places = Room(settings.max_pending_items)
        self._bytes = Room(settings.max_pending_bytes)

    def admit(self, questions: list[Question], address: str) -> Admitted:
        """Accepts all of them, or raises Busy. The caller must call `leave` in the end."""
        num_bytes = sum(len(memoryview(question.encoded)) for question in questions)
        if not (self._places.has_place(address, len(questions)) and self._bytes.has_place(address, num_bytes)):
            raise Busy
        places = self._places.take(address, len(questions)), self._bytes.take(address, num_bytes)
        self.pending_items += len(questions)
        return Admitted(self, address, questions, places)

    async def grade(self, questions: list[Question], address: str, *, reward: RewardConfig) -> list[Grade]:
        """Grades in order. Busy when not all of them can be accepted; then none is."""
        admitted = self.admit(questions, address)
        try:
            grades = dict([graded async for graded in admitted.grades(reward) if graded])
        finally:
            admitted.leave()
        return [grades[index] for index in range(len(questions))]

    def begin(self, question: Question) -> Future[Outcome]:
        """Queue it for the processes, unless a client asks again for what is being graded or was graded a moment ago."""
        known = self._jobs_by_key.get(question.key) if question.key else None
        # one that only waits may still be cancelled by its first caller
        if known is not None and (known.running() or (known.done() and not known.cancelled() and _is_grade(known))):
            return known
        job = self.pools.submit(question.task, question.encoded)
        job.add_done_callback(self._note_answer)
        if question.key:
            self._jobs_by_key[question.key] = job
            if len(self._jobs_by_key) > MAX_KEYS:
                self._jobs_by_key.popitem(last=False)
        return job

    def give_back(self, address: str, num_items: int, places: tuple[int, int]) -> None:
        """Free what `admit` took: num_items of the pending items; (items, bytes) of the two rooms."""
        self.pending_items -= num_items
        self._places.give_back(address, places[0])
        self._bytes.give_back(address, places[1])

    async def why_not_ready(self) -> str | None:
        """None when a grading process has just answered, or answers a probe in time. All who ask share one probe."""
        if time.monotonic() - self._answered_at < READY_FOR_S:
            return None
        if self._probe is None or self._probe.done():
            request = GradeRequest(
                response=r"\boxed{1}", references=("1",), task=self._task, num_tokens=1, truncated=False
            )
            self._probe = self.begin(question_of(request))
        seconds = PROBE_S if self._answered_at > 0 else START_TIMEOUT_S  # the first processes are still importing
        done, _ = await asyncio.wait([asyncio.wrap_future(self._probe)], timeout=seconds)
        if not done:
            return f"no answer in {seconds:.0f} s"
        outcome = self._probe.result()
        return outcome.reason if outcome.reason in ("crashed", "unavailable", "timeout", "closed") else None

    def _note_answer(self, job: Future[Outcome]) -> None:
        """The last time that a process answered with a grade."""
        if not job.cancelled() and job.result().verdict != "ungraded":
            self._answered_at = time.monotonic()

    def close(self) -> None:
        """Ends the grading processes. What still waits is answered `ungraded: closed`."""
        self.pools.close()


class Admitted:
    """Questions that were accepted, of one caller. They hold their places until `leave`."""

    def __init__(
        self, queue: AdmissionQueue, address: str, questions: list[Question], places: tuple[int, int]
    ) -> None:
        self._queue = queue
        self._address = address
        self._questions = questions
        self._places = places
        self._has_left = False
        self._jobs = [queue.begin(question) for question in questions]

    async def grades(self, reward: RewardConfig) -> AsyncIterator[tuple[int, Grade] | None]:
        """(index, grade) of each question as soon as it is there; None when there was none for SIGN_OF_LIFE_S."""
        done: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()
        for index, job in enumerate(self._jobs):
            asyncio.wrap_future(job).add_done_callback(partial(_note, done, index))
        for _ in self._questions:
            while True:
                try:
                    async with asyncio.timeout(SIGN_OF_LIFE_S):
                        index, outcome = await done.get()
                    break
                except TimeoutError:
                    yield None
            question = self._questions[index]
            grade = grade_of(outcome, question.num_tokens, reward)
            self._queue.metrics.count(question.task, grade)
            yield index, grade

    def leave(self) -> None:
        """Gives the places back; what has not been begun is not begun any more. Twice is harmless."""
        if self._has_left:
            return
        self._has_left = True
        self._queue.give_back(self._address, len(self._questions), self._places)
        for job in self._jobs:
            job.cancel()


def _is_grade(job: Future[Outcome]) -> bool:
    """Not "closed" or "crashed", which may be another answer the next time."""
    return job.result().verdict != "ungraded"


def _note(done: asyncio.Queue, index: int, future: asyncio.Future[Outcome]) -> None:
    if not future.cancelled():  # the caller has left
        done.put_nowait((index, future.result()))
