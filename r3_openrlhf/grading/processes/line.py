"""The line in which items wait for a grading process, and who may pass whom.

Cheap comparisons go first, in batches. Then the symbolic ones, one by one, those that are expected to be short before the
others; an item that will take long lets others pass, but not for ever. Last the items that are slow, as far as anyone knows:
those that were set back are begun again in turns that grow, so that one which is almost done need not wait for endless ones.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice

import msgspec

from r3_openrlhf.grading.processes.forecast import Forecast, expected_seconds

MAX_BATCH = 32
# An item that needs (or is expected to need) a second lets pass what comes in the next PATIENCE seconds and needs
# nothing; not more than in MAX_PATIENCE_S, so that nobody waits for ever.
PATIENCE = 100.0
MAX_PATIENCE_S = 15.0
FIRST_TURN_S = 0.03  # of processor time; who needs more is slow
_LOOK_AT = 100  # of the items that are set back; there may be very many


@dataclass(slots=True, eq=False)
class Job:
    """One item that waits to be graded. Whoever submitted it holds its future."""

    encoded: msgspec.Raw
    future: Future
    number: int
    submitted: float  # wall clock
    symbolic: bool = False  # past the cheap comparisons
    subject: int = 0
    attempts: int = 0  # at which its process ended
    rank: float = 0.0  # the lowest is next
    turn_s: float = FIRST_TURN_S  # what it may compute before it makes way

    def __post_init__(self) -> None:
        self.rank = self.submitted

    def __lt__(self, other: Job) -> bool:
        return (self.rank, self.number) < (other.rank, other.number)

    @property
    def front_rank(self) -> float:
        """Its rank while it is in a place; none comes before an item that has been set back and has its turn."""
        return self.rank if self.turn_s == FIRST_TURN_S else float("-inf")

    def rank_for(self, seconds: float) -> float:
        """Its rank when it takes so long: whoever comes later than this may not pass it."""
        return self.submitted + min(MAX_PATIENCE_S, PATIENCE * seconds)


class Line:
    """Belongs to one thread. A job is in the line, or whoever took it out is responsible for it."""

    def __init__(self) -> None:
        self.forecast = Forecast()
        self._cheap: deque[Job] = deque()
        self._symbolic: list[Job] = []  # a heap
        self._set_back: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._cheap) + len(self._symbolic) + len(self._set_back)

    @property
    def num_fresh(self) -> int:
        """Items that wait and are not known to be slow."""
        return len(self._cheap) + len(self._symbolic)

    def front(self) -> float:
        """The lowest rank of those; infinity where there is none."""
        return min((queue[0].rank for queue in (self._cheap, self._symbolic) if queue), default=float("inf"))

    def add(self, jobs: Iterable[Job]) -> None:
        """New jobs, in the order in which they came, for the cheap comparisons."""
        self._cheap.extend(jobs)

    def add_symbolic(self, job: Job, *, complexity: int, subject: int) -> None:
        """A job that the cheap comparisons did not decide."""
        job.symbolic, job.subject = True, subject
        job.rank = job.rank_for(expected_seconds(complexity))
        heapq.heappush(self._symbolic, job)

    def put_back(self, jobs: deque[Job]) -> None:
        """To where they were; `jobs` is empty afterwards."""
        while jobs:
            job = jobs.pop()
            if job.symbolic:
                heapq.heappush(self._symbolic, job)
            else:
                self._cheap.appendleft(job)

    def set_back(self, job: Job) -> None:
        """Behind everybody who is not slow; it has used its turn, or will not get one before long."""
        job.rank = job.rank_for(MAX_PATIENCE_S)
        self._set_back.append(job)

    def next_batch(
        self, *, num_workers: int, front: float, room: int, room_paused: int, least_s: float = 0.0
    ) -> list[Job]:
        """Cheap jobs, or one symbolic one; empty when nobody may go.

        front: the lowest rank of what is being graded in a place. room: slow items that could go on now.
        room_paused: slow items that could be paused. least_s: what the slow item whose turn it is has computed.
        """
        while self._set_back and self._set_back[0].future.cancelled():
            self._set_back.popleft()
        is_due = self._set_back and self.num_fresh and self._set_back[0].rank < min(front, self.front())
        if is_due and room > 0:
            return [self._set_back.popleft()]  # it has let enough pass
        batch: list[Job] = []
        size = max(1, min(MAX_BATCH, len(self._cheap) // (2 * num_workers)))
        while self._cheap and len(batch) < size and not (batch and self._cheap[0].attempts):
            job = self._cheap.popleft()
            if not job.future.cancelled():
                batch.append(job)
                if job.attempts:  # one that ended a process: alone
                    return batch
        while self._symbolic and not batch:
            job = heapq.heappop(self._symbolic)
            if job.future.cancelled():
                continue
            if self.forecast.known_seconds(job.subject):
                self.set_back(job)
            else:
                batch.append(job)
        if self._set_back and not batch:
            batch += self._next_set_back(room, room_paused, least_s)
        return batch

    def _next_set_back(self, room: int, room_paused: int, least_s: float) -> list[Job]:
        """The shortest, if it may go on (the caller of the first one is still there): as a slow one, or for one turn that takes
        it no further than where the next of the slow ones is. One of a slow subject that would only be paused is not begun."""
        present = (job for job in islice(self._set_back, _LOOK_AT) if not job.future.cancelled())
        job = min(present, key=lambda job: (self.forecast.known_seconds(job.subject), job.turn_s, job.number))
        if room <= 0 and (self.forecast.known_seconds(job.subject) or (room_paused <= 0 and job.turn_s > least_s)):
            return []
        self._set_back.remove(job)
        return [job]

    def take_all(self) -> list[Job]:
        """Empties the line and returns what was in it, also jobs that were cancelled."""
        jobs = [*self._cheap, *self._symbolic, *self._set_back]
        for queue in (self._cheap, self._symbolic, self._set_back):
            queue.clear()
        return jobs
