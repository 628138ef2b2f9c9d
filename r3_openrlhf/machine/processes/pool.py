"""A pool of processes that can be killed: one item that hangs, crashes or misbehaves costs only
itself.

    pool = ProcessPool("my_module:make_worker", num_workers=4, timeout_s=5.0)
    pool.submit({"text": "..."}).result()

`make_worker(**options)` is called once, in the process that workers fork from (worker.py). Its
result is called with each item in a worker; items and answers are plain data. A thread per worker.

Neither `concurrent.futures`, loky nor pebble is used. They read pickles from their workers, which
would let a worker that has been taken over run code in this process, and they have no sessions."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import typing
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from r3_openrlhf.machine.processes.fork_server import LOOK_S, Clock, ForkServer, kill, pid_of
from r3_openrlhf.machine.processes.sandbox import missing_layers
from r3_openrlhf.machine.processes.worker import NUMBER_BYTES, encode

logger = logging.getLogger(__name__)

RETRY_START_S = 10.0  # after processes that could not be started
MAX_ANSWER_BYTES = 2**20
_WORKER = "r3_openrlhf.machine.processes.worker"

AnswerT = TypeVar("AnswerT")


class ItemLost(Exception):
    """An item has no answer.

    reason: "timeout", "crashed" (its process ended), "talkative" (an answer above MAX_ANSWER_BYTES),
    "raised" (`detail` says what), "unavailable" (no process could be started) or "closed".
    seconds: the time that it had."""

    def __init__(self, reason: str, detail: str = "", *, seconds: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.seconds = seconds


def _fork_server(
    target: str, options: Mapping[str, Any], memory_bytes: int | None
) -> ForkServer:
    """Start the process to fork workers from; memory_bytes confines them. OSError."""
    path = [str(Path(__file__).absolute().parents[3]), *map(os.path.abspath, sys.path)]
    program = (
        f"import sys; sys.path[:] = {path!r}; from {_WORKER} import run_template;"
        f" run_template({os.getpid()}, {target!r}, {dict(options)!r}, memory_bytes={memory_bytes!r})"
    )
    variables = os.environ if memory_bytes is None else {"PATH": os.defpath, "LANG": "C.UTF-8"}
    return ForkServer(
        program, environment={**variables, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    )


@dataclass(slots=True, eq=False)
class _Worker:
    """One worker process. Belongs to the thread that asks; only `kill` may be called by another."""

    connection: Connection
    pidfd: int
    number: int = 0
    is_late: bool = False
    is_killed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, body: bytes | msgspec.Raw, limit_s: float) -> bytes:
        """Return the answer to one item. ItemLost: there is none; then the worker is of no more use."""
        self.number += 1
        number, clock, done = (
            self.number.to_bytes(NUMBER_BYTES, "big"),
            Clock(pid_of(self.pidfd)),
            threading.Event(),
        )
        watcher = threading.Thread(
            target=self._end_late, args=(clock, limit_s, done), daemon=True
        )
        watcher.start()
        answer = b""
        with suppress(EOFError, OSError):
            if not self.connection.poll():  # else it has answered before it was asked
                self.connection.send_bytes(number + bytes(body))
                answer = self.connection.recv_bytes(MAX_ANSWER_BYTES)
        done.set()
        watcher.join()
        if not answer:
            reason = (
                "timeout"
                if self.is_late
                else "crashed"
                if self.connection.readable
                else "talkative"
            )
            raise ItemLost(reason, seconds=limit_s if self.is_late else clock.seconds())
        if not answer.startswith(number):
            raise ItemLost(
                "crashed", "it does not keep to the protocol", seconds=clock.seconds()
            )
        return answer[NUMBER_BYTES:]

    def _end_late(self, clock: Clock, limit_s: float, done: threading.Event) -> None:
        """Kill it when the item's own time is over: no read or write here has another end."""
        while not done.wait(min(LOOK_S, max(limit_s - clock.seconds(), 0.001))):
            # no answer waits to be read
            if clock.seconds() >= limit_s and not self.connection.poll():
                self.is_late = True
                self.kill()
                return

    def kill(self) -> None:
        """Kill the process; a pending request fails."""
        with self.lock:
            if not self.is_killed:
                self.is_killed = True
                kill(self.pidfd)


class ProcessPool(AbstractContextManager["ProcessPool[Any]"], Generic[AnswerT]):
    """Items in `num_workers` processes, which start with the first item. Thread-safe.

    Args:
        target: import path "package.module:make_worker".
        options: plain values, keyword arguments of `make_worker`.
        answer_type: what answers are decoded as (msgspec); an answer of another form is a crash.
            None: any plain data.
        timeout_s: for one item, of its own time: waiting in the queue or for a processor does not
            count.
        attempts: at an item whose process ends at work, which may be another's doing.
        memory_bytes: address space of one worker, which is then confined as well (sandbox.py), and
            has no environment variables; None: neither.
        on_lost: what an item without an answer is answered with; None: its future raises ItemLost."""

    def __init__(
        self,
        target: str,
        options: Mapping[str, Any] | None = None,
        *,
        answer_type: type[AnswerT] | None = None,
        num_workers: int = 1,
        timeout_s: float = 10.0,
        attempts: int = 1,
        memory_bytes: int | None = None,
        on_lost: Callable[[ItemLost], AnswerT] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._target, self._options, self._memory_bytes = (
            target,
            dict(options or {}),
            memory_bytes,
        )
        plain: Any = Any if answer_type is None else answer_type
        self._decode = msgspec.msgpack.Decoder(tuple[str | None, plain | None]).decode
        self._num_workers, self._attempts, self._on_lost = num_workers, attempts, on_lost
        self._jobs: queue.SimpleQueue[tuple[bytes | msgspec.Raw, Future[AnswerT]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()  # of what follows
        self._num_threads = 0
        self._closing = False
        self._workers: set[_Worker] = set()
        self._free: list[_Worker] = []  # of sessions that are over
        self._starting = threading.Lock()
        self._server: ForkServer | None = None
        self._no_start_before = 0.0
        self._why_no_start = ""

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, item: object) -> Future[AnswerT]:
        """Queue one item: plain data, or a msgspec.Raw of it. TypeError: it is no plain data."""
        body, future = (
            item if isinstance(item, msgspec.Raw) else encode(item),
            Future[AnswerT](),
        )
        with self._lock:
            is_closing = self._closing
            if not is_closing:
                self._jobs.put((body, future))
            if not is_closing and self._num_threads < self._num_workers:
                self._num_threads += 1
                threading.Thread(target=self._work, name="r3-pool", daemon=True).start()
        if is_closing:
            self._lose(future, ItemLost("closed"))
        return future

    def session(self) -> Session[AnswerT]:
        """Return a worker that keeps its state between items; any number, whatever num_workers is."""
        return Session(self)

    def close(self) -> None:
        """Kill the processes; items without an answer are lost, "closed". Twice is harmless."""
        with self._lock:
            self._closing = True
            free, self._free = self._free, []
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        for worker in free:
            self._bury(worker)
        if self._server is not None:
            self._server.close()
        self._jobs.put(None)  # after what waits, which each thread now answers at once

    def _work(self) -> None:
        """Give one worker an item at a time, in a thread."""
        session = Session(self)
        while (job := self._jobs.get()) is not None:
            if job[1].set_running_or_notify_cancel():
                self._answer(session, *job)
            del job  # its future and text, while this thread waits
        self._jobs.put(None)  # for the next thread
        session.end()

    def _answer(
        self, session: Session[AnswerT], body: bytes | msgspec.Raw, future: Future[AnswerT]
    ) -> None:
        for attempt in range(1, self._attempts + 1):
            try:
                future.set_result(session.ask(body))
                return
            except ItemLost as error:
                if error.reason != "crashed" or attempt == self._attempts or self._closing:
                    self._lose(future, error)
                    return

    def _lose(self, future: Future[Any], lost: ItemLost) -> None:
        if self._closing:
            lost = ItemLost("closed", seconds=lost.seconds)
        if self._on_lost is None:
            future.set_exception(lost)
        else:
            future.set_result(self._on_lost(lost))

    def _worker(self) -> _Worker:
        """Return an idle worker, or start one. ItemLost: none can be started now, or ever."""
        with self._lock:
            if self._free:
                return self._free.pop()
        with self._starting:
            for _ in range(2):  # a server that has been killed is found out only now
                server = self._started_server()
                ours, theirs = Pipe()
                try:
                    with theirs:
                        worker = _Worker(ours, server.fork(theirs.fileno())[1])
                    break
                except OSError:
                    ours.close()
                    self._end_server()
            else:
                raise ItemLost("unavailable", "the processes end as soon as they are started")
        with self._lock:
            self._workers.add(worker)
        if self._closing:
            worker.kill()
        return worker

    def _started_server(self) -> ForkServer:
        if self._closing:
            raise ItemLost("closed")
        if self._server is not None:
            return self._server
        if time.monotonic() < self._no_start_before:
            raise ItemLost("unavailable", self._why_no_start)
        for layer in missing_layers() if self._memory_bytes is not None else ():
            logger.warning(
                "processes are less isolated than they should be: this kernel has no %s", layer
            )
        try:
            # before it is ready, so that `close` can end it
            self._server = _fork_server(self._target, self._options, self._memory_bytes)
            self._server.wait_until_ready()
        except OSError as error:
            self._end_server()
            self._no_start_before, self._why_no_start = (
                time.monotonic() + RETRY_START_S,
                str(error),
            )
            if not self._closing:
                logger.error("no processes for %s: %s", self._target, error)
            raise ItemLost("unavailable", str(error)) from error
        if self._closing:  # while it was started
            self._server.close()
        return self._server

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _bury(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.kill()
        worker.connection.close()
        os.close(worker.pidfd)


class Session(Generic[AnswerT]):
    """A worker that one user has alone, from his first item until `close` or a lost item."""

    def __init__(self, pool: ProcessPool[AnswerT]) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._is_busy = False
        self._is_closed = False

    def ask(self, body: bytes | msgspec.Raw) -> AnswerT:
        """Return an item's answer, in this thread. ItemLost: none, and the worker is gone."""
        try:
            self._worker = self._worker or self._pool._worker()
            trouble, answer = self._pool._decode(self._worker.ask(body, self._pool.timeout_s))
            if trouble is not None:
                raise ItemLost("raised", trouble)
        except msgspec.DecodeError as error:
            self.end()
            raise ItemLost("crashed", "it does not keep to the protocol") from error
        except ItemLost:
            self.end()
            raise
        # its time ended while this thread was about to read the answer
        if self._worker.is_killed:
            self.end()
        return typing.cast("AnswerT", answer)

    def submit(
        self, item: object, *, then: Callable[[AnswerT], Any] = lambda answer: answer
    ) -> Future[Any]:
        """Ask, one item at a time; the future has `then` of the answer. After a lost item another
        process is next.

        TypeError: it is no plain data."""
        body, future = encode(item), Future[Any]()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_busy:
                self._pool._lose(
                    future, ItemLost("raised", "a session takes one item at a time")
                )
                return future
            self._is_busy, self._is_closed = True, False
        threading.Thread(
            target=self._work, args=(body, future, then), name="r3-session", daemon=True
        ).start()
        return future

    def _work(self, body: bytes, future: Future[Any], then: Callable[[AnswerT], Any]) -> None:
        lost = None
        try:
            answer = self.ask(body)
        except ItemLost as error:
            lost = error
        with self._lock:
            self._is_busy = False
            if self._is_closed:
                self._give_back()
        if lost is None:
            future.set_result(then(answer))
        else:
            self._pool._lose(
                future, ItemLost("closed", seconds=lost.seconds) if self._is_closed else lost
            )

    def close(self) -> None:
        """Free the process for other sessions; one at work is killed. Twice is harmless."""
        with self._lock:
            self._is_closed = True
            worker = self._worker
            if not self._is_busy:
                self._give_back()
            elif worker is not None:
                worker.kill()

    def _give_back(self) -> None:
        if self._worker is not None and not self._worker.is_killed:
            with self._pool._lock:
                self._pool._free.append(self._worker)
            self._worker = None
        self.end()

    def end(self) -> None:
        """End the process, where there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool._bury(worker)
