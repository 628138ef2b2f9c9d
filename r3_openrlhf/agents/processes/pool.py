"""Environments in killable processes. One supervisor thread watches them; one that hangs or crashes costs its trajectory.

An answer's time is wall clock from the moment its process begins, less the time in which the process was ready to run and
other programs had the processors: so a deadline does not depend on how busy the machine is.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

import msgspec

from r3_openrlhf.agents.environment import Observation, Step, environment_class
from r3_openrlhf.agents.processes.worker import Answer, Call, decode_answer
from r3_openrlhf.grading.processes.nursery import Nursery, WorkerHandle
from r3_openrlhf.grading.processes.wire import frame, take_frame

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 2**20
START_TIMEOUT_S = 120.0  # of the nursery: it imports the environment's package
MAX_FAILED_STARTS = 3
MAX_STARTING = 32  # forks asked for at a time: neither side's socket is ever full
FORGIVEN_PAUSE_S = 2.0
MAX_LOOK_S = 1.0  # of a pause, so much is not forgiven
_LOOK_EVERY_S = 0.05


class EnvironmentLost(Exception):
    """An environment gave no answer, and its trajectory is lost.

    reason: "timeout", "crashed" (its process ended), "talkative" (an answer above MAX_ANSWER_BYTES), "raised" (`detail` says
    what), "unavailable" (no process could be started) or "closed".
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(slots=True, eq=False)
class _Job:
    call: Call
    limit_s: float
    future: Future[Any]
    owner: RemoteEnvironment


@dataclass(slots=True, eq=False)
class _Worker:
    handle: WorkerHandle
    owner: RemoteEnvironment | None = None  # None: free
    job: _Job | None = None
    started: float | None = None  # wall clock; None: its process is not known to run yet
    started_cpu: float = 0.0
    started_waiting: float = 0.0

    def start_clock(self) -> None:
        """When it has a job and its process runs."""
        if self.job is not None and self.started is None and self.handle.is_running:
            self.started = time.monotonic()
            self.started_cpu = self.handle.processor_seconds()
            self.started_waiting = self.handle.waiting_seconds()

    def seconds(self) -> float:
        """The job's own time."""
        if self.started is None:
            return 0.0
        runnable = self.handle.is_runnable  # asked first: a wait that ends meanwhile is in the count
        waited = max(0.0, self.handle.waiting_seconds() - self.started_waiting)
        own = max(0.0, time.monotonic() - self.started - waited)
        if runnable:  # a wait that still lasts is not in the kernel's count yet
            return min(own, self.handle.processor_seconds() - self.started_cpu)
        return own

    @property
    def is_late(self) -> bool:
        """Has its job taken more than it may?"""
        return self.job is not None and self.seconds() >= self.job.limit_s


class RemoteEnvironment:
    """One environment of a pool. Its futures raise EnvironmentLost; after that only `reset` makes sense."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool

    def reset(self, seed: int) -> Future[Observation]:
        """Begin the task of this number, in a new process where there is none."""
        return self._pool._call(self, Call(seed=seed), self._pool.reset_timeout_s)

    def step(self, action: str) -> Future[Step]:
        """Act."""
        return self._pool._call(self, Call(action=action), self._pool.step_timeout_s)

    def release(self) -> None:
        """The process is free for others. Call it when an episode is over; twice is harmless."""
        self._pool._release(self)


class EnvironmentPool:
    """Environments of one kind, as many as are open at once, each in a process of its own that is used again.

    Thread-safe. In asyncio: `await asyncio.wrap_future(environment.step(action))`. `lost` counts reasons.
    ConfigError: as `environment_class` does, before anything is started.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], *, step_timeout_s: float = 10.0, reset_timeout_s: float = 60.0
    ) -> None:
        environment_class(name)
        self.name = name
        self.options = dict(options)
        self.step_timeout_s = step_timeout_s
        self.reset_timeout_s = reset_timeout_s
        self.lost: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._incoming: deque[_Job | RemoteEnvironment] = deque()  # a call, or who is done
        self._awake = False  # the supervisor has been woken and has not looked yet
        self._closing = False
        self._thread: threading.Thread | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self) -> RemoteEnvironment:
        """One more; its process comes with its first `reset`."""
        return RemoteEnvironment(self)

    def close(self) -> None:
        """Kills the processes; calls that wait are answered `EnvironmentLost("closed")`. Twice is harmless."""
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

    def _call(self, owner: RemoteEnvironment, call: Call, limit_s: float) -> Future[Any]:
        job = _Job(call, limit_s, Future(), owner)
        job.future.set_running_or_notify_cancel()
        self._put(job)
        return job.future

    def _release(self, owner: RemoteEnvironment) -> None:
        self._put(owner)

    def _put(self, what: _Job | RemoteEnvironment) -> None:
        with self._lock:
            if self._closing:
                if isinstance(what, _Job):
                    what.future.set_exception(EnvironmentLost("closed"))
                return
            self._incoming.append(what)
            if self._thread is None:
                self._thread = threading.Thread(target=self._supervise, name="r3-environments", daemon=True)
                self._thread.start()
            if not self._awake:
                self._awake = True
                self._wake_sender.send(b"w")

    # The supervisor thread

    def _supervise(self) -> None:
        self._workers: dict[WorkerHandle, _Worker] = {}
        self._of_owner: dict[RemoteEnvironment, _Worker] = {}
        self._waiting: deque[_Job] = deque()  # for a process
        self._nursery: Nursery | None = None
        self._failed_starts = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        try:
            while not self._closing:
                planned, turn_started = self._seconds_to_next_look(), time.monotonic()
                for key, events in self._selector.select(planned):
                    self._handle(key, events)
                if planned is not None:
                    self._forgive_pause(time.monotonic() - turn_started - planned)
                self._look_at_clocks()
                self._hand_out()
        except BaseException:
            logger.exception("the supervisor of the environments failed")
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
                self._lose_nursery()
                return
            if self._nursery.is_ready:
                self._failed_starts = 0
            for worker in self._workers.values():
                worker.start_clock()
        elif key.data in self._workers:
            worker = self._workers[key.data]
            if events & selectors.EVENT_WRITE:
                self._write(worker)
            if events & selectors.EVENT_READ and key.data in self._workers:
                self._read(worker)

    def _take_incoming(self) -> None:
        try:
            self._wake_receiver.recv(64)
        except BlockingIOError:
            pass
        with self._lock:
            self._awake = False
            taken = list(self._incoming)
            self._incoming.clear()
        for what in taken:
            if isinstance(what, _Job):
                self._begin(what)
            else:
                self._forget(what)

    def _forget(self, owner: RemoteEnvironment) -> None:
        worker = self._of_owner.pop(owner, None)
        if worker is not None:
            worker.owner = None
            if worker.job is not None:  # given up while it was at work
                self._bury(worker, "closed")
        for job in [job for job in self._waiting if job.owner is owner]:
            self._waiting.remove(job)
            self._fail(job, "closed")

    def _begin(self, job: _Job) -> None:
        worker = self._of_owner.get(job.owner)
        if (worker is not None and worker.job is not None) or any(other.owner is job.owner for other in self._waiting):
            self._fail(job, "raised", "an environment takes one call at a time")
        elif worker is not None:
            self._give(worker, job)
        elif job.call.action is not None:
            self._fail(job, "closed", "step without reset")
        else:
            self._waiting.append(job)

    def _hand_out(self) -> None:
        """Processes for those who wait for one: free ones first, then new ones."""
        free = deque(worker for worker in self._workers.values() if worker.owner is None)
        while self._waiting:
            worker = free.popleft() if free else self._new_worker()
            if worker is None:
                break
            job = self._waiting.popleft()
            worker.owner = job.owner
            self._of_owner[job.owner] = worker
            self._give(worker, job)
        if self._failed_starts >= MAX_FAILED_STARTS:
            while self._waiting:
                self._fail(self._waiting.popleft(), "unavailable")

    def _give(self, worker: _Worker, job: _Job) -> None:
        worker.job = job
        worker.started = None
        worker.handle.outbox += frame(job.call)
        self._write(worker)
        worker.start_clock()

    def _new_worker(self) -> _Worker | None:
        """None: not now, or never (_failed_starts)."""
        if self._nursery is None:
            if self._failed_starts >= MAX_FAILED_STARTS:
                return None
            try:
                self._nursery = Nursery(
                    "r3_openrlhf.agents.processes.worker",
                    trusted=True,
                    name=self.name,
                    options=self.options,
                    working_directory=os.getcwd(),
                )
            except OSError as error:
                self._miss_start(str(error))
                return None
            self._selector.register(self._nursery.control, selectors.EVENT_READ, self._nursery)
        starting = sum(not worker.handle.is_running for worker in self._workers.values())
        if not self._nursery.is_ready or starting >= MAX_STARTING:
            return None
        handle = self._nursery.fork()
        if handle is None:
            return None
        worker = self._workers[handle] = _Worker(handle)
        self._selector.register(handle.connection, selectors.EVENT_READ, handle)
        return worker

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
        if len(worker.handle.inbox) > MAX_ANSWER_BYTES:
            self._bury(worker, "talkative")
            return
        try:
            while (body := take_frame(worker.handle.inbox)) is not None:
                answer = decode_answer(body)
                if worker.job is None:
                    raise ValueError("an answer that nobody asked for")
                if answer.error is not None:
                    self._bury(worker, "raised", answer.error)
                    return
                self._answer(worker.job, answer)
                worker.job = None
        except (ValueError, msgspec.DecodeError):  # it does not keep to the protocol: it is not ours any more
            self._bury(worker, "crashed")

    def _answer(self, job: _Job, answer: Answer) -> None:
        result = answer.observation if job.call.action is None else answer.step
        if result is None:
            raise ValueError("an answer to another question")
        try:
            job.future.set_result(result)
        except InvalidStateError:  # whoever asked has gone
            pass

    def _fail(self, job: _Job, reason: str, detail: str = "") -> None:
        self.lost[reason] += 1
        try:
            job.future.set_exception(EnvironmentLost(reason, detail))
        except InvalidStateError:
            pass

    def _forgive_pause(self, late: float) -> None:
        """When this process was stopped for a while (a suspended job), so were the environments: it is not their time."""
        if late > FORGIVEN_PAUSE_S:
            for worker in self._workers.values():
                if worker.started is not None:
                    worker.started += late

    def _look_at_clocks(self) -> None:
        for worker in list(self._workers.values()):
            if worker.is_late:
                self._read(worker)  # this thread may be late itself, and the answer there
                if worker.handle in self._workers and worker.is_late:
                    self._bury(worker, "timeout")
        nursery = self._nursery
        if nursery and not nursery.is_ready and time.monotonic() - nursery.started > START_TIMEOUT_S:
            self._lose_nursery()

    def _seconds_to_next_look(self) -> float | None:
        """None: nobody is at work."""
        waits = [
            max(_LOOK_EVERY_S, worker.job.limit_s - worker.seconds())
            for worker in self._workers.values()
            if worker.job is not None
        ]
        return min([MAX_LOOK_S, *waits]) if waits or self._waiting else None

    def _bury(self, worker: _Worker, reason: str, detail: str = "") -> None:
        """Ends a worker, and the programs that it has started."""
        self._selector.unregister(worker.handle.connection)
        del self._workers[worker.handle]
        if worker.owner is not None:
            self._of_owner.pop(worker.owner, None)
        if worker.handle.pid:
            try:
                os.killpg(worker.handle.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # nobody of its group is left
                pass
        worker.handle.kill()
        if worker.job is not None:
            self._fail(worker.job, reason, detail)
            worker.job = None

    def _lose_nursery(self) -> None:
        """The nursery is gone and its workers with it."""
        nursery, self._nursery = self._nursery, None
        if nursery is None:
            return
        self._selector.unregister(nursery.control)
        nursery.end()
        for worker in list(self._workers.values()):
            self._bury(worker, "crashed" if nursery.is_ready else "unavailable")
        if not nursery.is_ready:
            self._miss_start("they end before they are ready; what they say is in this process's stderr")

    def _miss_start(self, reason: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            logger.error("no environments: %s", reason)

    def _stop_everything(self) -> None:
        for worker in list(self._workers.values()):
            self._bury(worker, "closed")
        if self._nursery is not None:
            self._nursery.end()
        self._selector.close()
        with self._lock:
            self._waiting.extend(what for what in self._incoming if isinstance(what, _Job))
            self._incoming.clear()
        for job in self._waiting:
            self._fail(job, "closed")
