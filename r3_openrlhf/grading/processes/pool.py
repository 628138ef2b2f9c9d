"""Killable grading processes. One supervisor thread watches them; an item that overruns costs only itself.

Every item is first given the cheap comparisons, in batches. What they do not decide waits for the symbolic ones, which
are done one by one, those that are expected to be short first (forecast.py), and only when nothing cheap is waiting. An item that
has computed for SLOW_AFTER_S leaves its place to the next one. It is paused (SIGSTOP) while others need the processors and
goes on beside them when they do not, or when it has let enough of them pass. When too many are slow already,
one that turns out to be slow is set back: it is begun again, with all of its time, for a turn four times as long (line.py).

At the deadline the process is killed. An item's time is wall clock from the moment a process begins with it, less its
pauses, less the time in which the process was ready to run and other programs had the processors: so a grade does not
depend on how busy the machine is, and a process that sleeps or was stopped by somebody else still comes to its end.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import msgspec
import psutil

from r3_openrlhf.errors import GradingError
from r3_openrlhf.grading.processes.line import FIRST_TURN_S, Job, Line
from r3_openrlhf.grading.processes.nursery import Nursery, WorkerHandle
from r3_openrlhf.grading.processes.sandbox import missing_layers
from r3_openrlhf.grading.processes.wire import DEFERRED, Outcome, decode_outcomes, frame, take_frame

logger = logging.getLogger(__name__)

# processor time; or ten times as long of wall clock, so that on a busy machine nobody is slow for having to wait
SLOW_AFTER_S = FIRST_TURN_S
TURNS_GROW = 4  # what is computed again costs at most a third of the last turn
TURN_GROWTH = 1.25  # a slow item goes on until it has computed so many times as long as when its turn began
LAST_TURN_S = 0.48  # an item that has computed for longer goes on to its end
LOW_PRIORITY_AFTER_S = 0.2  # of processor time; the programs beside this pool have something to do as well
LOW_PRIORITY = 10
_LOOK_EVERY_S = 0.01
FORGIVEN_PAUSE_S = 2.0
MAX_LOOK_S = 1.0  # of a pause, so much is not forgiven
START_TIMEOUT_S = 120.0
MAX_FAILED_STARTS = 3
MAX_PAUSED, PAUSED_BYTES = 96, 25 * 2**20
MAX_ATTEMPTS = 3  # at an item whose process ends under it
MAX_NAME_CHARS = 100  # of such a data set
MAX_PREPARED = 50  # data sets of reasoning_gym that the nursery keeps loaded


@dataclass(slots=True, eq=False)
class _Worker:
    handle: WorkerHandle
    jobs: deque[Job] = field(default_factory=deque)  # the first one is being graded
    item_started: float = 0.0  # wall clock, moved on by the pauses
    item_started_cpu: float = 0.0  # processor time of the process
    item_started_waiting: float = 0.0  # its time in the processors' queue
    slow: bool = False  # goes on beside the places
    paused_at: float | None = None
    nice: bool = False
    retired: bool = False  # to be killed once its item is answered

    @property
    def is_left_alone(self) -> bool:
        """Nothing about its item changes any more before the deadline but whose turn it is."""
        return self.slow and self.nice

    def start_clocks(self) -> None:
        self.item_started = time.monotonic()
        self.item_started_cpu = self.handle.processor_seconds()
        self.item_started_waiting = self.handle.waiting_seconds()

    def wall_seconds(self) -> float:
        """Of the first item, pauses not counted."""
        return (self.paused_at or time.monotonic()) - self.item_started

    def seconds(self) -> float:
        """The first item's own time: `wall_seconds`, the wait for a processor not counted."""
        runnable = self.handle.is_runnable  # asked first: a wait that ends meanwhile is in the count
        waited = max(0.0, self.handle.waiting_seconds() - self.item_started_waiting)
        own = max(0.0, self.wall_seconds() - waited)
        # a wait that still lasts is not in the kernel's count yet
        return min(own, self.processor_seconds()) if runnable else own

    def processor_seconds(self) -> float:
        return self.handle.processor_seconds() - self.item_started_cpu

    def attained_seconds(self, *, most: float = LAST_TURN_S) -> float:
        """Processor time of the item in steps, powers of TURN_GROWTH, so that slow items take turns that grow."""
        steps = int(math.log(max(1.0, self.processor_seconds() / SLOW_AFTER_S), TURN_GROWTH))
        return min(SLOW_AFTER_S * TURN_GROWTH**steps, most)

    def rest_of_turn(self) -> float:
        """Processor time of the item until others that are slow come first; infinity where it goes on to its end."""
        attained = self.attained_seconds()
        return attained * TURN_GROWTH - self.processor_seconds() if attained < LAST_TURN_S else math.inf

    def pause(self) -> None:
        if self.paused_at is None:
            self.handle.pause()
            self.paused_at = time.monotonic()

    def go_on(self) -> None:
        if self.paused_at is not None:
            self.item_started += time.monotonic() - self.paused_at
            self.paused_at = None
            self.handle.go_on()


def room_to_pause() -> int:
    """Slow items that may be paused at once: MAX_PAUSED, or fewer where memory is short."""
    return min(MAX_PAUSED, psutil.virtual_memory().available // 8 // PAUSED_BYTES)


def _turn_of(worker: _Worker) -> tuple[float, int]:
    """Its place among the slow ones; their numbers differ."""
    return worker.attained_seconds(), worker.jobs[0].number


class WorkerPool:
    """Grades items in `num_workers` processes, `timeout_s` of its own time each; a lost item is answered as ungraded.

    max_slow_workers: slow items that go on beside the places at once, 1 or more.
    max_paused_workers: slow items that are paused meanwhile, each a process of about 25 MB; None: 96, or what an eighth of
    the free memory holds.
    memory_bytes: address space of one worker.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        timeout_s: float,
        max_slow_workers: int | None = None,
        max_paused_workers: int | None = None,
        memory_bytes: int = 2**30,
    ) -> None:
        self.num_workers = num_workers
        self.timeout_s = timeout_s
        self.max_slow_workers = 4 * num_workers if max_slow_workers is None else max(1, max_slow_workers)
        self.max_paused_workers = room_to_pause() if max_paused_workers is None else max_paused_workers
        self.memory_bytes = memory_bytes
        self.restarts: dict[str, int] = {"timeout": 0, "crashed": 0, "nursery": 0}
        self._lock = threading.Lock()
        self._incoming: deque[Job] = deque()
        self._number = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._awake = False

    # Any thread

    def submit(self, encoded: msgspec.Raw) -> Future[Outcome]:
        """Queues one item (wire.encode_item); the future always gets an Outcome. GradingError: the pool is closed."""
        with self._lock:
            if self._closing:
                raise GradingError("the grading pool is closed; nothing can be graded any more")
            self._number += 1
            job = Job(encoded, Future(), self._number, time.monotonic())
            self._incoming.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._supervise, name="r3-grading", daemon=True)
                self._thread.start()
            wake = not self._awake
            self._awake = True
        if wake:
            self._wake_sender.send(b"w")
        return job.future

    def close(self) -> None:
        """Kills the workers; items that are still waiting are answered `ungraded: closed`. Twice is harmless."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            thread = self._thread
        if thread is not None:
            self._wake_sender.send(b"c")
            thread.join()
        self._wake_sender.close()
        self._wake_receiver.close()

    # The supervisor thread

    def _supervise(self) -> None:
        self._line = Line()
        self._workers: dict[WorkerHandle, _Worker] = {}
        self._nursery: Nursery | None = None
        self._failed_starts = 0
        self._prepared: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        for layer in missing_layers():
            logger.warning("grading processes are less isolated than they should be: this kernel has no %s", layer)
        try:
            while not self._closing:
                self._keep_enough_workers()
                self._hand_out()
                self._pause_or_go_on()
                planned, turn_started = self._seconds_to_next_look(), time.monotonic()
                for key, events in self._selector.select(planned):
                    self._handle(key, events)
                if planned is not None:
                    self._forgive_pause(time.monotonic() - turn_started - planned)
                self._look_at_clocks()
        except BaseException:
            logger.exception("the supervisor of the grading processes failed")
            raise
        finally:
            with self._lock:
                self._closing = True
            self._stop_everything()

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._wake_receiver:
            self._take_incoming()
        elif key.data is self._nursery:
            if not self._nursery.read():
                self._lose_nursery(self._nursery)
            elif self._nursery.is_ready:
                self._failed_starts = 0
        else:
            if events & selectors.EVENT_WRITE and key.data in self._workers:
                self._write(self._workers[key.data])
            if events & selectors.EVENT_READ and key.data in self._workers:
                self._read(self._workers[key.data])

    def _take_incoming(self) -> None:
        try:
            self._wake_receiver.recv(64)
        except BlockingIOError:
            pass
        with self._lock:
            self._awake = False
            self._line.add(self._incoming)
            self._incoming.clear()

    def _keep_enough_workers(self) -> None:
        if self._nursery is None:
            if not self._line:
                return
            try:
                self._nursery = Nursery(memory_bytes=self.memory_bytes, cpu_seconds=max(1, round(self.timeout_s)))
            except OSError as error:
                self._miss_start(str(error))
                return
            self._selector.register(self._nursery.control, selectors.EVENT_READ, self._nursery)
        # one more than there are places, so that nobody waits for a fork when one is killed
        wanted = self.num_workers + 1 + self._slow_workers() - len(self._workers)
        for _ in range(wanted):
            handle = self._nursery.fork()
            if handle is None:
                return
            self._workers[handle] = _Worker(handle)
            self._selector.register(handle.connection, selectors.EVENT_READ, handle)

    def _hand_out(self) -> None:
        workers = self._workers.values()
        free = [worker for worker in workers if not worker.jobs and worker.handle.is_running]
        places = self.num_workers - sum(bool(worker.jobs) and not worker.slow for worker in workers)
        for worker in free[: max(0, places)]:
            slow = self._slow_workers()
            batch = self._line.next_batch(
                num_workers=self.num_workers,
                front=self._front_of_the_places(),
                room=self.max_slow_workers - slow,
                room_paused=self.max_slow_workers + self.max_paused_workers - slow,
                least_s=self._next_slow_seconds(),
            )
            if not batch:
                return
            for job in batch:
                if not job.future.running():  # an item that is begun again is running already
                    job.future.set_running_or_notify_cancel()
            worker.jobs.extend(batch)
            worker.start_clocks()
            message = (batch[0].symbolic, [(job.number, job.encoded) for job in batch])
            worker.handle.outbox += frame(message)
            self._write(worker)

    def _front_of_the_places(self) -> float:
        """The lowest rank of what is being graded in a place. Slow items do not pass one of theirs that has its turn there."""
        ranks = [worker.jobs[0].front_rank for worker in self._workers.values() if worker.jobs and not worker.slow]
        return min(ranks, default=float("inf"))

    def _next_slow_seconds(self) -> float:
        """What the slow item whose turn it is has computed, in steps; 0 where none is slow."""
        slow = [worker for worker in self._workers.values() if worker.slow]
        if not slow:
            return 0.0
        return min(slow, key=_turn_of).attained_seconds(most=math.inf)

    def _slow_workers(self) -> int:
        return sum(worker.slow for worker in self._workers.values())

    def _pause_or_go_on(self) -> None:
        """Slow items have the processors that others leave, and a turn of their own when they have let enough pass."""
        slow = [worker for worker in self._workers.values() if worker.slow]
        if not slow:
            return
        busy = sum(bool(worker.jobs) and not worker.slow for worker in self._workers.values())
        room = self.num_workers - busy if busy or self._line.num_fresh else self.max_slow_workers
        front = min(self._front_of_the_places(), self._line.front())
        for i, (attained_s, _, worker) in enumerate(sorted((*_turn_of(worker), worker) for worker in slow)):
            passes_others = worker.jobs[0].rank_for(attained_s) <= front
            if i < room or i < self.max_slow_workers and passes_others:
                worker.go_on()
            else:
                worker.pause()

    def _write(self, worker: _Worker) -> None:
        try:
            worker.handle.send_some()
        except OSError:
            self._bury(worker, "crashed")
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.handle.outbox else 0)
        self._selector.modify(worker.handle.connection, events, worker.handle)

    def _read(self, worker: _Worker) -> None:
        if not worker.handle.receive_some():
            self._bury(worker, "crashed")
            return
        answered, data_sets = False, set()
        try:
            while (body := take_frame(worker.handle.inbox)) is not None:
                for outcome in decode_outcomes(body):
                    if not worker.jobs or worker.jobs[0].number != outcome.number:
                        raise ValueError(f"an outcome for item {outcome.number}, which was not being graded")
                    if worker.slow:  # the process does not know of its pauses
                        outcome = msgspec.structs.replace(outcome, seconds=min(outcome.seconds, worker.seconds()))
                    self._take_outcome(worker.jobs.popleft(), outcome)
                    answered = True
                    if outcome.verdict == DEFERRED:
                        data_sets.add(outcome.reason)
        except (ValueError, msgspec.DecodeError):  # it does not keep to the protocol: it is not ours any more
            self._bury(worker, "crashed")
            return
        if answered:
            worker.slow = False
            worker.go_on()
            worker.start_clocks()
            if worker.nice and worker.handle.set_nice(0):
                worker.nice = False
            if worker.retired or worker.nice:  # without privileges a process cannot go back to its old priority
                self._bury(worker, "")
        for data_set in data_sets - self._prepared - {""}:
            self._prepare(data_set)

    def _take_outcome(self, job: Job, outcome: Outcome) -> None:
        if outcome.verdict == DEFERRED:
            if job.symbolic:
                raise ValueError(f"item {job.number} was deferred twice")
            if len(outcome.reason) > MAX_NAME_CHARS or not outcome.reason.isascii():
                raise ValueError(f"item {job.number} needs a data set that cannot exist")
            self._line.add_symbolic(job, complexity=outcome.complexity, subject=outcome.subject)
        else:
            if job.symbolic and outcome.seconds < SLOW_AFTER_S:
                self._line.forecast.learn_fast(job.subject)
            _answer(job, outcome)

    def _prepare(self, data_set: str) -> None:
        """Has the nursery load a reasoning_gym data set, once; workers that were forked before make way for new ones."""
        if self._nursery is None or len(self._prepared) == MAX_PREPARED:
            return
        self._prepared.add(data_set)
        self._nursery.prepare(data_set)
        for worker in list(self._workers.values()):
            if worker.jobs:
                worker.retired = True
            else:
                self._bury(worker, "")

    def _forgive_pause(self, late: float) -> None:
        """When this process was stopped for a while (a suspended job), so were the workers: it is not their time."""
        if late > FORGIVEN_PAUSE_S:
            for worker in self._workers.values():
                if worker.paused_at is None:  # else `go_on` does so
                    worker.item_started += late

    def _look_at_clocks(self) -> None:
        for worker in list(self._workers.values()):
            if not worker.jobs or worker.paused_at is not None:
                continue
            elapsed = worker.wall_seconds()
            if elapsed >= self.timeout_s and (own := worker.seconds()) >= self.timeout_s:
                late = worker.jobs[0]
                self._read(worker)  # this thread may be late itself, and the outcome there
                if worker.handle in self._workers and worker.jobs and worker.jobs[0] is late:
                    self._line.forecast.learn_slow(late.subject, late.number, own)
                    self._bury(worker, "timeout", own)
            elif elapsed >= SLOW_AFTER_S and not worker.is_left_alone:
                used, job = worker.processor_seconds(), worker.jobs[0]
                if used >= SLOW_AFTER_S:
                    self._line.forecast.learn_slow(job.subject, job.number, worker.attained_seconds())
                if used >= LOW_PRIORITY_AFTER_S and not worker.nice:
                    worker.nice = worker.handle.set_nice(LOW_PRIORITY)
                if not worker.slow and (used >= job.turn_s or elapsed >= 10 * job.turn_s):
                    self._make_way(worker)
        if self._nursery and not self._nursery.is_ready and time.monotonic() - self._nursery.started > START_TIMEOUT_S:
            self._lose_nursery(self._nursery)

    def _make_way(self, worker: _Worker) -> None:
        """Keeps a slow item from holding up others."""
        if len(worker.jobs) > 1 and not worker.handle.outbox:
            worker.retired = True  # it has already been sent the items that others will grade now
            first = worker.jobs.popleft()
            self._line.put_back(worker.jobs)
            worker.jobs.append(first)
        job = worker.jobs[0]
        if self._slow_workers() < self.max_slow_workers + self.max_paused_workers:
            worker.slow = True
        elif job.symbolic:
            job.turn_s *= TURNS_GROW
            self._line.set_back(worker.jobs.popleft())
            self._bury(worker, "")

    def _seconds_to_next_look(self) -> float | None:
        """None: nobody is working and nothing waits."""
        somebody_waits = any(worker.paused_at is not None for worker in self._workers.values())
        waits = []
        for worker in self._workers.values():
            if worker.jobs and worker.paused_at is None:
                rest = self.timeout_s - worker.seconds() if worker.is_left_alone else 0.0
                waits.append(max(_LOOK_EVERY_S, min(rest, worker.rest_of_turn()) if somebody_waits else rest))
        if waits or self._line or self._nursery and not self._nursery.is_ready:
            waits.append(MAX_LOOK_S)
        return max(0.001, min(waits)) if waits else None

    def _bury(self, worker: _Worker, reason: str, own: float | None = None) -> None:
        """Ends a worker. The item that it was grading is answered (or tried again); the others go back.

        own: the item's own seconds, where they are why; a second reading may be smaller, when a wait has ended meanwhile.
        """
        own = worker.seconds() if own is None else own
        self._release(worker)
        if worker.jobs and reason:
            self.restarts[reason] += 1
            culprit = worker.jobs.popleft()
            culprit.attempts += 1
            if reason == "crashed" and culprit.attempts < MAX_ATTEMPTS:  # perhaps somebody else killed the process
                self._line.put_back(deque([culprit]))
            else:
                _answer(culprit, Outcome(culprit.number, "ungraded", reason, None, None, own))
        self._line.put_back(worker.jobs)

    def _release(self, worker: _Worker) -> None:
        self._selector.unregister(worker.handle.connection)
        del self._workers[worker.handle]
        worker.handle.kill()

    def _lose_nursery(self, nursery: Nursery) -> None:
        """The nursery is gone and its workers with it: nobody's item is to blame."""
        self.restarts["nursery"] += 1
        was_ready = nursery.is_ready
        self._selector.unregister(nursery.control)
        nursery.end()
        self._nursery = None
        self._prepared.clear()
        for worker in list(self._workers.values()):
            self._release(worker)
            self._line.put_back(worker.jobs)
        if not was_ready:
            self._miss_start("they end before they are ready; what they say is in this process's stderr")

    def _miss_start(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            logger.error("no grading processes: %s", reason)
            _answer_all(self._line.take_all(), "unavailable")

    def _stop_everything(self) -> None:
        self._take_incoming()
        for worker in self._workers.values():
            worker.handle.kill()
            _answer_all(worker.jobs, "closed")
        if self._nursery is not None:
            self._nursery.end()
        self._selector.close()
        _answer_all(self._line.take_all(), "closed")


def _answer_all(jobs: Iterable[Job], reason: str) -> None:
    for job in jobs:
        _answer(job, Outcome(job.number, "ungraded", reason, None, None, 0.0))


def _answer(job: Job, outcome: Outcome) -> None:
    try:
        job.future.set_result(outcome)
    except InvalidStateError:  # whoever asked has gone
        pass
