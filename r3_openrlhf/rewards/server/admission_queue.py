"""Takes items in, within bounds, and grades them with processes of its own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.machine.processes.fork_server import START_TIMEOUT_S
from r3_openrlhf.rewards.answers.request import GradeRequest, Outcome
from r3_openrlhf.rewards.exchange import Grade, encode_request, grade_of
from r3_openrlhf.rewards.local import GradingPools
from r3_openrlhf.rewards.server.metrics import Metrics
from r3_openrlhf.rewards.server.settings import ServerSettings

READY_FOR_S = 1.0  # after a grade /ready asks no one
PROBE_S = 5.0


class Busy(Exception):
    """Nothing more can be accepted now. unread: what is left of the body will not be read."""

    def __init__(self, *, unread: bool = False) -> None:
        super().__init__("too much is waiting; try again in a second")
        self.unread = unread


class Bound:
    """At most `size` items, or bytes of items, wait; an address may hold as much as it leaves free
    to the others.

    What comes alone may be larger."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """The sum of what all addresses hold."""
        return self._held.total()

    def admits(self, address: str, amount: int) -> bool:
        """True if this address may have so much more."""
        return not self.total or self._held[address] + amount <= self._size - self.total - amount

    def add(self, address: str, amount: int) -> None:
        """Count it; a negative amount gives it back."""
        self._held[address] += amount
        if not self._held[address]:
            del self._held[address]


@dataclass(frozen=True, slots=True)
class Question:
    """One item as the queue takes it: made of the body, away from the event loop."""

    encoded: msgspec.Raw
    num_tokens: int
    task: str


def question_of(request: GradeRequest) -> Question:
    """Return the request, encoded."""
    return Question(encode_request(request), request.num_tokens, request.task)


class AdmissionQueue:
    """Grades requests with processes of its own; what would not fit into its bounds is refused."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self.metrics = metrics
        self.pools = GradingPools(
            num_workers=settings.reward.num_workers, timeout_s=settings.reward.timeout_s, code=settings.reward.code
        )
        self.items = Bound(settings.max_pending_items)
        self._bytes = Bound(settings.max_pending_mb * 2**20)
        self._task = settings.task
        self._probe: Future[Outcome] | None = None
        self._answered_at = -READY_FOR_S  # monotonic; below 0: never

    async def grade(self, questions: list[Question], address: str, *, reward: RewardConfig) -> list[Grade]:
        """Grade in order. Busy when not all of them can be accepted; then none is.

        When this is cancelled, what has not been begun is not begun any more.
        """
        num_items, num_bytes = len(questions), sum(len(memoryview(question.encoded)) for question in questions)
        if not (self.items.admits(address, num_items) and self._bytes.admits(address, num_bytes)):
            raise Busy
        self.items.add(address, num_items)
        self._bytes.add(address, num_bytes)
        jobs = [self._begin(question.task, question.encoded) for question in questions]
        try:
            outcomes = [await asyncio.wrap_future(job) for job in jobs]
        finally:
            self.items.add(address, -num_items)
            self._bytes.add(address, -num_bytes)
            for job in jobs:
                job.cancel()
        pairs = zip(questions, outcomes, strict=True)
        grades = [grade_of(outcome, question.num_tokens, reward) for question, outcome in pairs]
        for question, grade in zip(questions, grades, strict=True):
            self.metrics.count(question.task, grade)
        return grades

    def _begin(self, task: str, item: msgspec.Raw) -> Future[Outcome]:
        job = self.pools.submit(task, item)
        job.add_done_callback(self._note_answer)
        return job

    def _note_answer(self, job: Future[Outcome]) -> None:
        """Note the last time that a process answered with a grade."""
        if not job.cancelled() and job.result().verdict != "ungraded":
            self._answered_at = time.monotonic()

    async def why_not_ready(self) -> str | None:
        """None when a grading process answered just now, or a shared probe in time."""
        if time.monotonic() - self._answered_at < READY_FOR_S:
            return None
        if self._probe is None or self._probe.done():
            request = GradeRequest(
                response=r"\boxed{1}", references=("1",), task=self._task, num_tokens=1, truncated=False
            )
            self._probe = self._begin(self._task, encode_request(request))
        seconds = PROBE_S if self._answered_at > 0 else START_TIMEOUT_S  # or still importing
        done, _ = await asyncio.wait([asyncio.wrap_future(self._probe)], timeout=seconds)
        if not done:
            return f"no answer in {seconds:.0f} s"
        outcome = self._probe.result()
        return outcome.reason if outcome.reason in ("crashed", "unavailable", "timeout", "closed") else None

    def close(self) -> None:
        """End the grading processes. What still waits is answered `ungraded: closed`."""
        self.pools.close()
