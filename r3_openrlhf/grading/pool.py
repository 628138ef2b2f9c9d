"""Killable grading processes. One supervisor thread watches them; an item that overruns costs only itself.

A worker that spends more than SLOW_AFTER_S on one item loses the items behind it to the others and another worker takes its
place beside it. It runs on at a low priority, and is killed when its item is answered; at the deadline, which is wall clock,
it is killed with its item.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import msgspec

from r3_openrlhf.errors import GradingError
from r3_openrlhf.grading.wire import Outcome, decode_outcomes, frame, take_frame

logger = logging.getLogger(__name__)

SLOW_AFTER_S = (
    0.1  # of processor time, or ten times as long of wall clock: on a busy machine nobody is slow for waiting
)
MAX_BATCH = 16
MAX_FAILED_STARTS = 3
MAX_ATTEMPTS = 3  # at an item whose process ends under it
_PRIORITIES = ((SLOW_AFTER_S, 5), (1.0, 15))  # processor time from which on a worker has this "nice" value
_NURSERY = (
    "import sys, socket; sys.path[:0] = {path!r}; from r3_openrlhf.grading.worker import run_nursery;"
    " run_nursery(socket.socket(fileno={fd}), memory_bytes={memory}, cpu_seconds={cpu}, directory={directory!r})"
)


@dataclass(slots=True, eq=False)
class _Job:
    encoded: msgspec.Raw
    future: Future
    number: int = 0
    attempts: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    connection: socket.socket
    pidfd: int | None = None  # None until the nursery has answered
    pid: int = 0
    jobs: deque[_Job] = field(default_factory=deque)  # the first one is being graded
    item_started: float = 0.0  # wall clock
    item_started_cpu: float = 0.0  # processor time of the process
    slow: bool = False
    nice: int = 0
    retired: bool = False  # to be killed once its item is answered
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)

    def start_clocks(self) -> None:
        self.item_started = time.monotonic()
        self.item_started_cpu = _processor_seconds(self.pid)


class WorkerPool:
    """Grades items in `num_workers` processes, `timeout_s` of wall clock each; a lost item is answered as ungraded.

    max_slow_workers: items that run on at low priority beside the regular workers.
    memory_bytes: address space of one worker.
    """

    def __init__(
        self, *, num_workers: int, timeout_s: float, max_slow_workers: int | None = None, memory_bytes: int = 2**30
    ) -> None:
        self.num_workers = num_workers
        self.timeout_s = timeout_s
        self.max_slow_workers = 4 * num_workers if max_slow_workers is None else max_slow_workers
        self.memory_bytes = memory_bytes
        self.restarts: dict[str, int] = {"timeout": 0, "crashed": 0, "nursery": 0}
        self._lock = threading.Lock()
        self._incoming: deque[_Job] = deque()
        self._number = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._awake = False

    # Any thread

    def submit(self, encoded: msgspec.Raw) -> Future[Outcome]:
        """Queues one item (wire.encode_item); the future always gets an Outcome. GradingError: the pool is closed."""
        job = _Job(encoded, Future())
        with self._lock:
            if self._closing:
                raise GradingError("the grading pool is closed; nothing can be graded any more")
            self._number += 1
            job.number = self._number
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
        self._pending: deque[_Job] = deque()
        self._workers: list[_Worker] = []
        self._unanswered_forks: deque[_Worker] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._directory = tempfile.mkdtemp(prefix="r3-grading-")
        self._nursery: subprocess.Popen | None = None
        self._failed_starts = 0
        try:
            while not self._closing:
                self._keep_enough_workers()
                self._hand_out()
                for key, events in self._selector.select(self._seconds_to_next_deadline()):
                    if key.fileobj is self._wake_receiver:
                        self._take_incoming()
                    elif key.data == "nursery":
                        self._read_nursery()
                    elif key.data in self._workers:
                        if events & selectors.EVENT_WRITE:
                            self._write(key.data)
                        if events & selectors.EVENT_READ:
                            self._read(key.data)
                self._enforce_deadlines()
        except BaseException:
            logger.exception("the supervisor of the grading processes failed")
            raise
        finally:
            with self._lock:
                self._closing = True
            self._stop_everything()

    def _start_nursery(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        program = _NURSERY.format(
            path=[package_parent, *(entry for entry in sys.path if entry.endswith("site-packages"))],
            fd=theirs.fileno(),
            memory=self.memory_bytes,
            cpu=max(1, round(self.timeout_s)),
            directory=self._directory,
        )
        self._nursery = subprocess.Popen(
            [sys.executable, "-I", "-c", program],
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._control = ours
        self._selector.register(ours, selectors.EVENT_READ, "nursery")

    def _keep_enough_workers(self) -> None:
        if not self._pending and self._nursery is None:
            return
        if self._nursery is None:
            self._start_nursery()
        num_slow = sum(worker.slow for worker in self._workers)
        wanted = self.num_workers + num_slow - len(self._workers)
        for _ in range(wanted):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError:  # the nursery is gone; its end of file is about to be read
                ours.close()
                return
            finally:
                theirs.close()
            worker = _Worker(ours)
            self._workers.append(worker)
            self._unanswered_forks.append(worker)
            self._selector.register(ours, selectors.EVENT_READ, worker)

    def _hand_out(self) -> None:
        while self._pending:
            free = [worker for worker in self._workers if not worker.jobs and worker.pidfd is not None]
            if not free or sum(bool(w.jobs) and not w.slow for w in self._workers) >= self.num_workers:
                return
            size = max(1, min(MAX_BATCH, len(self._pending) // (2 * self.num_workers)))
            worker, batch = free[0], []
            while self._pending and len(batch) < size:
                job = self._pending.popleft()
                if job.attempts and batch:  # it ended a worker before: alone in its batch
                    self._pending.appendleft(job)
                    break
                if not job.future.cancelled():
                    batch.append(job)
                if job.attempts:
                    break
            if batch:
                worker.jobs.extend(batch)
                worker.start_clocks()
                worker.outbox += frame([(job.number, job.encoded) for job in batch])
                self._write(worker)

    def _write(self, worker: _Worker) -> None:
        try:
            while worker.outbox:
                sent = worker.connection.send(memoryview(worker.outbox)[: 2**18].tobytes())
                del worker.outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._bury(worker, "crashed")
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
        self._selector.modify(worker.connection, events, worker)

    def _read(self, worker: _Worker) -> None:
        try:
            received = worker.connection.recv(2**18)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._bury(worker, "crashed")
            return
        worker.inbox += received
        try:
            answered = False
            while (body := take_frame(worker.inbox)) is not None:
                for outcome in decode_outcomes(body):
                    if not worker.jobs or worker.jobs[0].number != outcome.number:
                        raise ValueError(f"an outcome for item {outcome.number}, which was not being graded")
                    _answer(worker.jobs.popleft(), outcome)
                    answered = True
        except (ValueError, msgspec.DecodeError, msgspec.ValidationError):
            self._bury(worker, "crashed")
            return
        if answered:
            worker.slow = False
            worker.start_clocks()
            if worker.retired:
                self._bury(worker, "")

    def _read_nursery(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 16, 1)
        except OSError:
            message, descriptors = b"", []
        if message == b"ready":
            self._failed_starts = 0
            return
        if not message:
            self._lose_nursery()
            return
        worker = self._unanswered_forks.popleft()
        worker.pid, worker.pidfd = int.from_bytes(message, "big"), descriptors[0]
        if worker not in self._workers:  # buried before its process was known
            _kill(worker)

    def _lose_nursery(self) -> None:
        """The nursery is gone and its workers with it: nobody's item is to blame."""
        self.restarts["nursery"] += 1
        self._failed_starts += 1
        self._selector.unregister(self._control)
        self._control.close()
        self._nursery.kill()
        self._nursery.wait()
        self._nursery = None
        for worker in list(self._workers):
            self._release(worker)
            self._pending.extendleft(reversed(worker.jobs))
        self._unanswered_forks.clear()
        if self._failed_starts >= MAX_FAILED_STARTS:
            logger.error("grading processes end before they are ready; see their messages above")
            while self._pending:
                job = self._pending.popleft()
                _answer(job, Outcome(job.number, "ungraded", "unavailable", None, None, 0.0))

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if not worker.jobs:
                continue
            elapsed = now - worker.item_started
            if elapsed >= self.timeout_s:
                self._bury(worker, "timeout")
            elif elapsed >= SLOW_AFTER_S and worker.nice < _PRIORITIES[-1][1]:
                used = _processor_seconds(worker.pid) - worker.item_started_cpu
                if used >= SLOW_AFTER_S or elapsed >= 10 * SLOW_AFTER_S:
                    self._make_way(worker, used)

    def _make_way(self, worker: _Worker, used: float) -> None:
        """Keeps a slow item from holding up others: those behind it go back, and it leaves the regular places."""
        if len(worker.jobs) > 1 and not worker.outbox:
            worker.retired = True  # it has already been sent the items that others will grade now
            while len(worker.jobs) > 1:
                self._pending.appendleft(worker.jobs.pop())
        if not worker.slow:
            worker.slow = sum(other.slow for other in self._workers) < self.max_slow_workers
        nice = max((nice for since, nice in _PRIORITIES if used >= since), default=0)
        if nice > worker.nice:
            worker.nice = nice
            worker.retired = True  # without privileges a process cannot go back to its old priority
            try:
                os.setpriority(os.PRIO_PROCESS, worker.pid, nice)
            except OSError:  # it has just ended; its end of file is about to be read
                pass

    def _seconds_to_next_deadline(self) -> float | None:
        """Until the next look at the workers; None: nobody is working."""
        now = time.monotonic()
        waits = []
        for worker in self._workers:
            if worker.jobs:
                left = worker.item_started + self.timeout_s - now
                waits.append(left if worker.nice == _PRIORITIES[-1][1] else min(left, SLOW_AFTER_S))
        return max(0.001, min(waits)) if waits else None

    def _bury(self, worker: _Worker, reason: str) -> None:
        """Ends a worker. The item that it was grading is answered (or tried again); the others go back."""
        self._release(worker)
        jobs = worker.jobs
        if jobs and reason:
            self.restarts[reason] += 1
            culprit = jobs.popleft()
            culprit.attempts += 1
            if reason == "crashed" and culprit.attempts < MAX_ATTEMPTS:  # perhaps somebody else killed the process
                self._pending.appendleft(culprit)
            else:
                seconds = time.monotonic() - worker.item_started
                _answer(culprit, Outcome(culprit.number, "ungraded", reason, None, None, seconds))
        self._pending.extendleft(reversed(jobs))

    def _release(self, worker: _Worker) -> None:
        self._selector.unregister(worker.connection)
        worker.connection.close()
        self._workers.remove(worker)
        _kill(worker)

    def _take_incoming(self) -> None:
        try:
            self._wake_receiver.recv(64)
        except BlockingIOError:
            pass
        with self._lock:
            self._awake = False
            self._pending.extend(self._incoming)
            self._incoming.clear()

    def _stop_everything(self) -> None:
        self._take_incoming()
        left = list(self._pending)
        for worker in self._workers:
            worker.connection.close()
            _kill(worker)
            left.extend(worker.jobs)
        if self._nursery is not None:
            self._nursery.kill()  # the workers die with it
            self._nursery.wait()
            self._control.close()
        self._selector.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        for job in left:
            _answer(job, Outcome(job.number, "ungraded", "closed", None, None, 0.0))


def _processor_seconds(pid: int) -> float:
    """Processor time that another process has used; 0.0 when it has just ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of the process, see clock_getcpuclockid(3)
    except OSError:
        return 0.0


def _kill(worker: _Worker) -> None:
    if worker.pidfd is not None:
        try:
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(worker.pidfd)
        worker.pidfd = None


def _answer(job: _Job, outcome: Outcome) -> None:
    try:
        job.future.set_result(outcome)
    except InvalidStateError:  # whoever asked has gone
        pass
