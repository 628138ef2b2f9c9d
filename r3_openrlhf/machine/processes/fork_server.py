"""A process from which others are forked on request, so that what they need is loaded once; and
their clock.

It is a new interpreter: nothing of its owner (CUDA, Ray, threads) is in it or its forks, and it
never sees their work. It ends with its owner, and its forks end with it. Both ends are here.
Standard library only: it is loaded where programs of a model run."""

import gc
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from r3_openrlhf.machine.processes.sandbox import adopt_orphans, die_with_parent

START_TIMEOUT_S = 120.0  # of an interpreter that imports libraries
FORK_TIMEOUT_S = 30.0  # of a server that is stopped
END_S = 3.0  # to end what it forked
MAX_DESCRIPTORS = 5
MAX_MESSAGE_BYTES = 4096
# When the owner was stopped for longer, so was what it watches: that is not its time.
LOOK_S = 1.0


class Clock:
    """The own time of a process: wall clock, less the time in which it waited for a processor.

    So whether it is late does not depend on how busy the machine is. Read once per LOOK_S or more
    often.

    Args:
        tasks: Names in /proc of processes or threads that wait for each other: the time that any of
            them waited does not count."""

    def __init__(self, *tasks: int | str) -> None:
        self._waited = {task: waited_s(task) for task in tasks}  # when it was last known
        self._waited_before = sum(self._waited.values())
        self._looked = time.monotonic()
        self._wall = 0.0

    def seconds(self) -> float:
        """Return the seconds since this clock was made, without those of waiting."""
        now = time.monotonic()
        self._wall += min(now - self._looked, 2 * LOOK_S)
        self._looked = now
        for task in self._waited:
            self.learn(task, waited_s(task))
        return max(0.0, self._wall - (sum(self._waited.values()) - self._waited_before))

    def learn(self, task: int | str, waited_s: float) -> None:
        """Take how long a task has waited in all from who knows it when the task has ended."""
        self._waited[task] = max(self._waited[task], waited_s)


def waited_s(task: int | str) -> float:
    """Return how long a task waited for a processor.

    0.0 where the kernel does not count it (no CONFIG_SCHED_INFO), and when the process has just
    ended."""
    try:
        with open(f"/proc/{task}/schedstat", "rb") as file:  # ns running, ns waiting, turns
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class ForkServer:
    """The owner's end. `fork` may be called by several threads.

    Args:
        program: Python that sends a JSON object through standard input when it is ready, then calls
            `serve`. An "error" in the object says why it cannot.
        arguments: of the program.
        command: that starts the interpreter.

    Raises:
        OSError: no process or socket to be had.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        environment: Mapping[str, str],
        command: Sequence[str] = (),
    ) -> None:
        self._lock = threading.Lock()
        self._ends: deque[bytes] = deque(maxlen=64)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-I", "-c", program, *arguments],
                env=environment,
                stdin=theirs.fileno(),  # a number that no child keeps
                stdout=subprocess.DEVNULL,
            )
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()

    def wait_until_ready(self) -> dict[str, Any]:
        """Return what the program sent. OSError: why it is not ready, or it takes too long."""
        self._channel.settimeout(START_TIMEOUT_S)
        message = self._channel.recv(MAX_MESSAGE_BYTES)
        if not message:
            raise OSError("the interpreter ended before it was ready; its reason is in stderr")
        answer: dict[str, Any] = json.loads(message)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer

    def fork(self, *descriptors: int) -> tuple[int, int]:
        """Fork a process with these descriptors. Returns number and pidfd. OSError: no server."""
        with self._lock:
            self._channel.settimeout(FORK_TIMEOUT_S)
            socket.send_fds(self._channel, [b"fork"], descriptors)
            while True:
                message, pidfds, _, _ = socket.recv_fds(self._channel, MAX_MESSAGE_BYTES, 1)
                if pidfds:
                    return int(message), pidfds[0]
                self._note_end(message)

    def next_end(self, limit_s: float) -> dict[str, Any] | None:
        """Return how the next process ended (`serve`); None: none in time. OSError: no server."""
        if not self._ends:
            self._channel.settimeout(max(0.001, limit_s))
            try:
                self._note_end(self._channel.recv(MAX_MESSAGE_BYTES))
            except TimeoutError:
                return None
        end: dict[str, Any] = json.loads(self._ends.popleft())
        return end

    def _note_end(self, message: bytes) -> None:
        if not message:
            raise OSError("the process that others are forked from has ended")
        self._ends.append(message)

    def close(self) -> None:
        """End it and, with it, what it has forked and what these have started."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._channel.shutdown(socket.SHUT_RDWR)
            self.process.wait(END_S)
        self.process.kill()
        self.process.wait()  # from now on no one waits for its answer
        with self._lock:
            self._channel.close()


def pid_of(pidfd: int) -> int:
    """Return the pid of a process as this one sees it; 0 when it is gone."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return max(0, int(line.split()[1]))
    return 0


def kill(pidfd: int) -> None:
    """End a process; harmless when it is gone."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def serve(
    channel: socket.socket,
    run: Callable[[Sequence[int]], object],
    *,
    owner: int | None = None,
    adopts: bool = False,
    on_idle: Callable[[], object] = lambda: None,
) -> None:
    """Fork a process for each request, until the owner closes its end of `channel` or ends.

    A request has descriptors, with which `run` is called in the process. It is answered with a
    number and a pidfd; when the process has ended, a message has the number, its status, and what
    it used.

    Args:
        owner: pid of the process that started this one, where it can be seen.
        adopts: what a process started and left is killed when it has ended.
        on_idle: called when no process is left."""
    libraries = _children_of_this() if adopts else set()  # what they have started
    gc.collect()
    gc.freeze()  # else the collector would touch, and thereby copy, the libraries' pages
    if adopts:
        adopt_orphans()
    children: dict[int, tuple[int, int, float]] = {}  # pidfd -> pid, number, waited
    numbers = itertools.count()
    try:
        while owner is None or os.getppid() == owner:
            for ready in select.select([channel.fileno(), *children], [], [], 1.0)[0]:
                if ready != channel.fileno():
                    _bury(channel, ready, *children.pop(ready))
                    if adopts:
                        _kill_orphans(libraries | {pid for pid, _, _ in children.values()})
                    if not children:
                        on_idle()  # after the end was told: an error here costs no verdict
                    continue
                message, descriptors, _, _ = socket.recv_fds(channel, 16, MAX_DESCRIPTORS)
                if not message:
                    return
                pid = _fork(run, descriptors, siblings=list(children))
                pidfd = os.pidfd_open(pid)
                children[pidfd] = pid, next(numbers), waited_s(os.getpid())
                socket.send_fds(channel, [str(children[pidfd][1]).encode()], [pidfd])
    except OSError:
        return  # the owner is gone
    finally:
        for pid, _, _ in children.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if adopts:
            _kill_orphans(libraries)


def _fork(
    run: Callable[[Sequence[int]], object],
    descriptors: Sequence[int],
    *,
    siblings: Sequence[int],
) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            die_with_parent(signal.SIGKILL)
            for pidfd in siblings:
                os.close(pidfd)
            if os.getppid() == parent:
                run(descriptors)
        finally:
            os._exit(70)  # whatever happens, it never runs the server's code
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _bury(channel: socket.socket, pidfd: int, pid: int, number: int, before_s: float) -> None:
    # as long as there is something of it
    waited = waited_s(pid) + waited_s(os.getpid()) - before_s
    _, status, used = os.wait4(pid, 0)
    os.close(pidfd)
    end = {
        "number": number,
        "status": status,
        "waited_s": waited,
        "cpu_s": used.ru_utime + used.ru_stime,
    }
    channel.send(json.dumps(end).encode())


def _children_of_this() -> set[int]:
    files = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}


def _kill_orphans(known: set[int]) -> None:
    """Kill what a gone process had started, and theirs, which the nearest adopter gets."""
    while orphans := _children_of_this() - known:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
