"""Takes items in, within bounds, and grades them with processes of its own."""

import asyncio
import time
from concurrent.futures import Future

import msgspec

from r3_openrlhf.machine.processes.fork_server import START_TIMEOUT_S
from r3_openrlhf.rewards.answers.request import GradeRequest, Outcome
from r3_openrlhf.rewards.exchange import Grade, encode_request, grade_of
from r3_openrlhf.rewards.local import GradingPools
from r3_openrlhf.rewards.server.settings import ServerSettings

READY_FOR_S = 1.0  # after a grade /ready asks no one
PROBE_S = 5.0


class Busy(Exception):
    """Nothing more can be accepted now."""


# an item, and its bytes, which are made away from the event loop
Question = tuple[GradeRequest, msgspec.Raw]


class AdmissionQueue:
    """Grades requests with processes of its own; what would not fit into its bounds is refused."""

    def __init__(self, settings: ServerSettings) -> None:
        self.pools = GradingPools(
            num_workers=settings.reward.num_workers,
            timeout_s=settings.reward.timeout_s,
            code=settings.reward.code,
        )
        self._most = (settings.max_pending_items, settings.max_pending_mb * 2**20)
        self.num_items = self._num_bytes = 0  # accepted and not yet answered
        self._task, self._reward = settings.task, settings.reward
        self._probe: Future[Outcome] | None = None
        self._answered_at = -READY_FOR_S  # monotonic; below 0: never

    async def grade(self, questions: list[Question]) -> list[Grade]:
        """Grade in order. Busy when not all of them can be accepted; then none is. What comes alone may
        be larger than the bounds.

        When this is cancelled, what has not been begun is not begun any more.
        """
        num_items, num_bytes = (
            len(questions),
            sum(len(memoryview(item)) for _, item in questions),
        )
        sums = (self.num_items + num_items, self._num_bytes + num_bytes)
        if self.num_items and (sums[0] > self._most[0] or sums[1] > self._most[1]):
            raise Busy
        self.num_items, self._num_bytes = sums
        jobs = [self._begin(request.task, item) for request, item in questions]
        try:
            outcomes = [await asyncio.wrap_future(job) for job in jobs]
        finally:
            self.num_items -= num_items
            self._num_bytes -= num_bytes
            for job in jobs:
                job.cancel()
        pairs = zip(questions, outcomes, strict=True)
        return [
            grade_of(outcome, request.num_tokens, self._reward)
            for (request, _), outcome in pairs
        ]

    def _begin(self, task: str, item: msgspec.Raw) -> Future[Outcome]:
        job = self.pools.submit(task, item)
        job.add_done_callback(self._note_answer)
        return job

    def _note_answer(self, job: Future[Outcome]) -> None:
        """Note the last time that a process answered with a grade."""
        if not job.cancelled() and job.result().verdict != "ungraded":
            self._answered_at = time.monotonic()

    async def why_not_ready(self) -> str | None:
        """Return why not; None if a grading process answered just now, or a shared probe in time."""
        if time.monotonic() - self._answered_at < READY_FOR_S:
            return None
        if self._probe is None or self._probe.done():
            request = GradeRequest(
                response=r"\boxed{1}",
                references=("1",),
                task=self._task,
                num_tokens=1,
                truncated=False,
            )
            self._probe = self._begin(self._task, encode_request(request))
        seconds = PROBE_S if self._answered_at > 0 else START_TIMEOUT_S  # or still importing
        done, _ = await asyncio.wait([asyncio.wrap_future(self._probe)], timeout=seconds)
        if not done:
            return f"no answer in {seconds:.0f} s"
        outcome = self._probe.result()
        return (
            outcome.reason
            if outcome.reason in ("crashed", "unavailable", "timeout", "closed")
            else None
        )

    def close(self) -> None:
        """End the grading processes. What still waits is answered `ungraded: closed`."""
        self.pools.close()
