"""A pool of processes that can be killed: one item that hangs, crashes or misbehaves costs only itself.

    pool = ProcessPool("my_module:make_worker", num_workers=4, timeout_s=5.0)
    pool.submit({"text": "..."}).result()

`make_worker(**options)` is called once, in a process that every worker is then forked from (worker.py). What it returns is
called with each item in a worker; items and answers are plain data. There is one thread per worker here.

Neither `concurrent.futures`, loky nor pebble is used. They read pickles from their workers, which would let a worker that
has been taken over run code in this process, and they have no sessions.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from r3_openrlhf.machine.processes.sandbox import missing_layers
from r3_openrlhf.machine.processes.wire import encode, frame, take_frame

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # of the template, which imports libraries
RETRY_START_S = 10.0  # after a template that could not be started
LOOK_S = (
    1.0  # at a worker that computes; when this process was stopped for longer, so was the worker: it is not its time
)
END_S = 2.0  # for a template to end its workers and their programs
MAX_ANSWER_BYTES = 2**20
_WORKER = "r3_openrlhf.machine.processes.worker"

AnswerT = TypeVar("AnswerT")


class ItemLost(Exception):
    """An item has no answer.

    reason: "timeout", "crashed" (its process ended), "talkative" (an answer above MAX_ANSWER_BYTES), "raised" (`detail` says
        what), "unavailable" (no process could be started) or "closed".
    seconds: the time that it had.
    """

    def __init__(self, reason: str, detail: str = "", *, seconds: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.seconds = seconds


class Clock:
    """The own time of a process: wall clock, less the time in which it waited for a processor.

    So whether it is late does not depend on how busy the machine is. Looked at once per LOOK_S or more often.

    Args:
        tasks: Names in /proc of processes or threads that wait for each other: the time that any of them waited does not count.
    """

    def __init__(self, *tasks: int | str) -> None:
        self._waited = {task: _waited_s(task) for task in tasks}  # when it was last known
        self._waited_before = sum(self._waited.values())
        self._looked = time.monotonic()
        self._wall = 0.0

    def seconds(self) -> float:
        """Seconds of its own time since this clock was made."""
        now = time.monotonic()
        self._wall += min(now - self._looked, 2 * LOOK_S)
        self._looked = now
        for task in self._waited:
            self.learn(task, _waited_s(task))
        return max(0.0, self._wall - (sum(self._waited.values()) - self._waited_before))

    def learn(self, task: int | str, waited_s: float) -> None:
        """How long a task has waited in all, from who knows it when the task has ended."""
        self._waited[task] = max(self._waited[task], waited_s)


def _waited_s(task: int | str) -> float:
    """0.0 where the kernel does not count it (no CONFIG_SCHED_INFO), and when the process has just ended."""
    try:
        with open(f"/proc/{task}/schedstat", "rb") as file:  # nanoseconds running, nanoseconds waiting, turns
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _is_stopped(pid: int) -> bool:
    """By SIGSTOP; False when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


class _Template:
    """The process that workers are forked from (worker.run_template)."""

    def __init__(self, target: str, options: Mapping[str, Any], memory_bytes: int | None) -> None:
        """OSError: no process or socket to be had. Its workers are confined where memory_bytes is given."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        path = [str(Path(__file__).absolute().parents[3]), *map(os.path.abspath, sys.path)]
        program = (
            f"import sys, socket; sys.path[:] = {path!r}; from {_WORKER} import run_template;"
            f" run_template(socket.socket(fileno={theirs.fileno()}), {os.getpid()}, {target!r}, {dict(options)!r},"
            f" memory_bytes={memory_bytes!r})"
        )
        variables = os.environ if memory_bytes is None else {"PATH": os.defpath, "LANG": "C.UTF-8"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", program],
                env={**variables, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()

    def wait_until_ready(self) -> None:
        """OSError, with its reason: it ended before it was ready, or takes too long."""
        with self._lock:
            said = self._hear(4096, START_TIMEOUT_S).decode("utf-8", "replace")
        if said != "ready":
            raise OSError(said.removeprefix("!") or "it ended before it was ready; what it said is in stderr")

    def _hear(self, num_bytes: int, limit_s: float) -> bytes:
        """OSError: it is gone, or was stopped for so long."""
        stopped_s, step_s, end = 0.0, min(LOOK_S, max(limit_s, 0.01)), time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and stopped_s < limit_s:
            self._control.settimeout(step_s)
            try:
                return self._control.recv(num_bytes)
            except TimeoutError:
                stopped_s = stopped_s + step_s if _is_stopped(self._process.pid) else 0.0
        raise OSError("it does not answer")

    def fork(self, limit_s: float) -> tuple[int, socket.socket]:
        """A new worker's pid and socket. limit_s: for one that is stopped. OSError: the template is gone; EOFError: no socket to
        be had now."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise EOFError(str(error)) from error
        try:
            with self._lock:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
                said = self._hear(16, limit_s)
            if not said:
                raise OSError("the template has ended")
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return int.from_bytes(said, "big"), ours

    def kill(self, pid: int) -> None:
        """End a worker and the programs that it started. A template that has ended took its workers with it."""
        try:
            with self._lock:
                self._control.send(pid.to_bytes(4, "big"))
        except OSError:
            pass

    def end(self) -> None:
        """End it and, with it, every worker and what these have started."""
        try:
            self._control.shutdown(socket.SHUT_RDWR)
            if not _is_stopped(self._process.pid):
                self._process.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self._process.kill()
        self._process.wait()  # from now on no one waits for its answer
        with self._lock:
            self._control.close()


@dataclass(slots=True, eq=False)
class _Worker:
    """One worker process. Belongs to the thread that asks; only `kill` may be called by another."""

    template: _Template
    pid: int
    connection: socket.socket
    number: int = 0
    is_killed: bool = False

    def ask(self, body: bytes | msgspec.Raw, limit_s: float) -> bytes:
        """The answer to one item. ItemLost: there is none; then nothing but `bury` makes sense."""
        self.number += 1
        clock = Clock(self.pid)
        buffer = bytearray()
        try:
            self._send(frame(self.number, body), clock, limit_s)
            while True:
                left = limit_s - clock.seconds()
                self.connection.settimeout(min(LOOK_S, max(left, 0.001)))
                try:
                    received = self.connection.recv(2**18)
                except TimeoutError:
                    if (seconds := clock.seconds()) >= limit_s:
                        raise ItemLost("timeout", seconds=seconds) from None
                    continue
                if not received:
                    raise ItemLost("crashed", seconds=clock.seconds())
                buffer += received
                taken = take_frame(buffer, max_bytes=MAX_ANSWER_BYTES)
                if taken is not None:
                    if taken[0] != self.number or buffer:
                        raise ItemLost("crashed", "it does not keep to the protocol", seconds=clock.seconds())
                    return taken[1]
                if left <= 0:
                    raise ItemLost("timeout", seconds=limit_s)
        except ValueError as error:
            raise ItemLost("talkative", seconds=clock.seconds()) from error
        except OSError as error:
            raise ItemLost("crashed", seconds=clock.seconds()) from error

    def _send(self, message: bytes, clock: Clock, limit_s: float) -> None:
        left = memoryview(message)
        while left:
            self.connection.settimeout(min(LOOK_S, max(limit_s - clock.seconds(), 0.001)))
            try:
                left = left[self.connection.send(left) :]
            except TimeoutError:
                if (seconds := clock.seconds()) >= limit_s:
                    raise ItemLost("timeout", seconds=seconds) from None

    def kill(self) -> None:
        """End the process; who is asking it is answered."""
        if not self.is_killed:
            self.is_killed = True
            self.template.kill(self.pid)

    def bury(self) -> None:
        """End the process and give its socket back."""
        self.kill()
        self.connection.close()


@dataclass(slots=True, eq=False)
class _Job:
    body: bytes | msgspec.Raw
    future: Future[Any] = field(default_factory=Future)


class ProcessPool(Generic[AnswerT]):
    """Items in `num_workers` processes, which start with the first item. Thread-safe.

    Args:
        target: import path "package.module:make_worker".
        options: plain values, keyword arguments of `make_worker`.
        answer_type: what answers are decoded as (msgspec); an answer of another form is a crash.
        timeout_s: for one item, of its own time: waiting in the queue or for a processor does not count.
        max_waiting: items that wait; then `submit` waits. 0: no bound.
        attempts: at an item whose process ends while it is at work, which may be somebody else's doing.
        memory_bytes: address space of one worker, which is then confined as well (sandbox.py), and has no environment
            variables; None: neither.
        on_lost: what an item without an answer is answered with; None: its future raises ItemLost.

    `lost` counts reasons; a second attempt counts as well.
    """

    def __init__(
        self,
        target: str,
        options: Mapping[str, Any] | None = None,
        *,
        answer_type: Any = Any,
        num_workers: int = 1,
        timeout_s: float = 10.0,
        max_waiting: int = 0,
        attempts: int = 1,
        memory_bytes: int | None = None,
        on_lost: Callable[[ItemLost], AnswerT] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.lost: Counter[str] = Counter()
        self._target, self._options, self._memory_bytes = target, dict(options or {}), memory_bytes
        self._decode = msgspec.msgpack.Decoder(tuple[str | None, answer_type | None]).decode
        self._num_workers, self._attempts, self._on_lost = num_workers, attempts, on_lost
        self._jobs: queue.Queue[_Job | None] = queue.Queue(max_waiting)
        self._lock = threading.Lock()  # of what follows
        self._num_threads = 0
        self._closing = False
        self._workers: set[_Worker] = set()
        self._free: list[_Worker] = []  # of sessions that are over
        self._starting = threading.Lock()
        self._template: _Template | None = None
        self._no_start_before = 0.0
        self._why_no_start = ""

    def __enter__(self) -> ProcessPool[AnswerT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, item: object, *, block: bool = True) -> Future[AnswerT]:
        """Queue one item: plain data, or a msgspec.Raw of it.

        Raises:
            queue.Full: max_waiting items wait and `block` is False.
            TypeError: it is no plain data.
        """
        job = _Job(item if isinstance(item, msgspec.Raw) else encode(item))
        self._jobs.put(job, block=block)
        with self._lock:
            closing = self._closing
            if not closing and self._num_threads < self._num_workers:
                self._num_threads += 1
                threading.Thread(target=self._work, name="r3-pool", daemon=True).start()
        if closing:
            self._answer_all_closed()
        return job.future

    def session(self) -> Session[AnswerT]:
        """A worker that keeps its state between items; as many as are open at once, whatever num_workers is."""
        return Session(self)

    def close(self) -> None:
        """Kill the processes; items without an answer are lost, "closed". Twice is harmless."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            free, self._free = self._free, []
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        for worker in free:
            self._bury(worker)
        if self._template is not None:
            self._template.end()
        self._answer_all_closed()

    def _answer_all_closed(self) -> None:
        """What waits; and let every thread that waits for items end."""
        try:
            while True:
                job = self._jobs.get_nowait()
                if job is not None and job.future.set_running_or_notify_cancel():
                    self._lose(job.future, ItemLost("closed"))
        except queue.Empty:
            self._jobs.put(None)

    def _work(self) -> None:
        """A thread: gives one worker an item at a time."""
        worker: _Worker | None = None
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            for attempt in range(1, self._attempts + 1):
                try:
                    worker = worker or self._new_worker(self.timeout_s)
                    answer = self._ask(worker, job.body, self.timeout_s)
                except ItemLost as error:
                    if worker is not None:
                        self._bury(worker)
                        worker = None
                    if error.reason == "crashed" and attempt < self._attempts and not self._closing:
                        self.lost["crashed"] += 1
                        continue
                    self._lose(job.future, error)
                else:
                    _set(job.future.set_result, answer)
                break
            del job  # its future and text, while this thread waits
        self._jobs.put(None)  # for the next thread
        if worker is not None:
            self._bury(worker)

    def _ask(self, worker: _Worker, body: bytes | msgspec.Raw, limit_s: float) -> AnswerT:
        try:
            error, answer = self._decode(worker.ask(body, limit_s))
        except msgspec.DecodeError as decode_error:
            raise ItemLost("crashed", "it does not keep to the protocol") from decode_error
        if error is not None:
            raise ItemLost("raised", error)
        return typing.cast("AnswerT", answer)

    def _lose(self, future: Future[Any], lost: ItemLost) -> None:
        if self._closing:
            lost = ItemLost("closed", seconds=lost.seconds)
        self.lost[lost.reason] += 1
        if self._on_lost is None:
            _set(future.set_exception, lost)
        else:
            _set(future.set_result, self._on_lost(lost))

    def _new_worker(self, limit_s: float) -> _Worker:
        """limit_s: of the item. ItemLost: none can be started now, or ever."""
        with self._starting:
            pid = 0
            for _ in range(2):  # a template that has been killed is found out only now
                template = self._started_template()
                try:
                    pid, connection = template.fork(limit_s)
                    break
                except EOFError as error:
                    raise ItemLost("unavailable", str(error)) from error
                except OSError:
                    template.end()
                    self._template = None
            if not pid:
                raise ItemLost("unavailable", "the processes end as soon as they are started")
        worker = _Worker(template, pid, connection)
        with self._lock:
            self._workers.add(worker)
        if self._closing:
            worker.kill()
        return worker

    def _started_template(self) -> _Template:
        if self._closing:
            raise ItemLost("closed")
        if self._template is None:
            if time.monotonic() < self._no_start_before:
                raise ItemLost("unavailable", self._why_no_start)
            if self._memory_bytes is not None:
                for layer in missing_layers():
                    logger.warning("processes are less isolated than they should be: this kernel has no %s", layer)
            try:
                template = _Template(self._target, self._options, self._memory_bytes)
            except OSError as error:
                raise self._no_start(error) from error
            self._template = template  # before it is ready, so that `close` can end it
            try:
                template.wait_until_ready()
            except OSError as error:
                template.end()
                self._template = None
                raise self._no_start(error) from error
            if self._closing:  # while it was started
                template.end()
        return self._template

    def _no_start(self, error: OSError) -> ItemLost:
        self._no_start_before, self._why_no_start = time.monotonic() + RETRY_START_S, str(error)
        if not self._closing:
            logger.error("no processes for %s: %s", self._target, error)
        return ItemLost("unavailable", str(error))

    def _bury(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.bury()


class Session(Generic[AnswerT]):
    """A worker of a pool that one user has for himself, from his first item until `close` or a lost item."""

    def __init__(self, pool: ProcessPool[AnswerT]) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._is_busy = False
        self._is_closed = False

    @property
    def has_worker(self) -> bool:
        """True if there is a process, which holds what earlier items left in it."""
        return self._worker is not None

    def submit(self, item: object, *, timeout_s: float) -> Future[AnswerT]:
        """Ask, one item at a time. After a lost item the next one goes to another process.

        TypeError: it is no plain data.
        """
        job = _Job(encode(item))
        job.future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_busy:
                self._pool._lose(job.future, ItemLost("raised", "a session takes one item at a time"))
                return job.future
            self._is_busy, self._is_closed = True, False
        threading.Thread(target=self._work, args=(job, timeout_s), name="r3-session", daemon=True).start()
        return job.future

    def _work(self, job: _Job, timeout_s: float) -> None:
        pool, answer, lost = self._pool, None, None
        try:
            if self._worker is None:
                with pool._lock:
                    free = pool._free.pop() if pool._free else None
                self._worker = free or pool._new_worker(timeout_s)
            answer = pool._ask(self._worker, job.body, timeout_s)
        except ItemLost as error:
            lost = error
        with self._lock:
            self._is_busy = False
            if lost is not None and self._worker is not None:
                pool._bury(self._worker)
                self._worker = None
            elif self._is_closed:
                self._give_back()
        if lost is None:
            _set(job.future.set_result, answer)
        else:
            pool._lose(job.future, ItemLost("closed", seconds=lost.seconds) if self._is_closed else lost)

    def close(self) -> None:
        """The process is free for other sessions; one that is at work is killed. Twice is harmless."""
        with self._lock:
            self._is_closed = True
            if not self._is_busy:
                self._give_back()
            elif self._worker is not None:
                self._worker.kill()

    def _give_back(self) -> None:
        if self._worker is not None and not self._worker.is_killed:
            with self._pool._lock:
                self._pool._free.append(self._worker)
        elif self._worker is not None:
            self._pool._bury(self._worker)
        self._worker = None


def _set(answer: Callable[[Any], None], value: object) -> None:
    try:
        answer(value)
    except InvalidStateError:  # the caller has gone
        pass
