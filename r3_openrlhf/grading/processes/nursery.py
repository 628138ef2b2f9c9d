"""The parent's side of the grading processes: starts the nursery, asks it for workers, holds a handle on each.

The nursery (worker.py) is a fresh interpreter with an empty environment that has imported the libraries once; a worker is
a fork of it, there in milliseconds. Nothing of the parent, CUDA and Ray included, is in either. The environments of agents
live in such processes as well (agents/processes).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

_PREFIX = "r3-graders-"
_FRESH_S = 60.0  # so old is no directory that is about to be locked

_PROGRAM = (
    "import sys, socket; sys.path[:0] = {path!r}; from {module} import run_nursery;"
    " run_nursery(socket.socket(fileno={fd}), directory={directory!r}, **{arguments!r})"
)
_GRADERS = "r3_openrlhf.grading.processes.worker"
_PACKAGES = ("site-packages", "dist-packages")
_NUMERICS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """One worker: its socket and, once the nursery has answered, a file descriptor that names its process."""

    connection: socket.socket
    pid: int = 0
    pidfd: int | None = None
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)

    @property
    def is_running(self) -> bool:
        """Whether its process is known: the nursery has answered, and `kill` was not called."""
        return self.pidfd is not None

    def processor_seconds(self) -> float:
        """Processor time that the process has used; 0.0 when it has just ended."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # CPUCLOCK_SCHED, see clock_getcpuclockid(3)
        except OSError:
            return 0.0

    def waiting_seconds(self) -> float:
        """How long the process was ready to run while others had the processors; 0.0 where the kernel does not count it
        (no CONFIG_SCHED_INFO), and when the process has just ended."""
        try:
            with open(f"/proc/{self.pid}/schedstat") as file:  # nanoseconds running, nanoseconds waiting, turns
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0

    @property
    def is_runnable(self) -> bool:
        """Does it compute, or wait for a processor? (It could also sleep, be stopped or have ended.)"""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "R"
        except OSError:
            return False

    def set_nice(self, nice: int) -> bool:
        """False when it is not allowed, or when the process has just ended and its end of file is about to be read."""
        try:
            os.setpriority(os.PRIO_PROCESS, self.pid, nice)
        except OSError:
            return False
        return True

    def pause(self) -> None:
        """Stops the process where it is; it keeps what it has computed."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets a paused process run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.pidfd is None:
            raise ValueError("this worker is not running yet; is_running says when it is")
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:  # it has just ended; its end of file is about to be read
            pass

    def send_some(self) -> None:
        """Sends as much of the outbox as the socket takes. OSError: the worker is gone."""
        try:
            while self.outbox:
                sent = self.connection.send(memoryview(self.outbox)[: 2**18].tobytes())
                del self.outbox[:sent]
        except BlockingIOError:
            pass

    def receive_some(self) -> bool:
        """Appends to the inbox what has arrived; False when the worker is gone."""
        try:
            received = self.connection.recv(2**18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.inbox += received
        return bool(received)

    def kill(self) -> None:
        """Ends the process and closes its socket; twice is harmless."""
        self.connection.close()
        if self.pidfd is not None:
            self._signal(signal.SIGKILL)
            os.close(self.pidfd)
            self.pidfd = None


def sweep() -> None:
    """Removes the directories of nurseries that were killed together with the process that started them."""
    for entry in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # somebody else's, or just removed
            continue
        try:
            found = os.fstat(descriptor)
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > _FRESH_S:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry, ignore_errors=True)
        except BlockingIOError:  # in use
            continue
        finally:
            os.close(descriptor)


def _start(
    control: socket.socket, directory: str, module: str, arguments: dict[str, object], *, trusted: bool
) -> subprocess.Popen:
    package_parent = str(Path(__file__).absolute().parents[3])
    program = _PROGRAM.format(
        path=[package_parent, *(os.path.abspath(entry) for entry in sys.path if trusted or entry.endswith(_PACKAGES))],
        module=module,
        fd=control.fileno(),
        directory=directory,
        arguments=arguments,
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        env={**(os.environ if trusted else {"PATH": os.defpath, "LANG": "C.UTF-8"}), **_NUMERICS},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[control.fileno()],
    )


class Nursery:
    """Must be started, and lives, in one thread: the kernel ends it together with the thread that started it."""

    def __init__(self, module: str = _GRADERS, *, trusted: bool = False, **arguments: object) -> None:
        """`run_nursery(control, directory=..., **arguments)` of `module` in a new interpreter; plain values as arguments.

        trusted: it gets this process's environment variables and import path.
        OSError: no process, socket or directory to be had.
        """
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sweep()
        # it removes this itself when it ends, so the next one needs another
        self._directory = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # free again however this process ends
        try:
            self._process = _start(theirs, self._directory, module, arguments, trusted=trusted)
        except OSError:
            self.control.close()
            os.rmdir(self._directory)
            os.close(self._lock)
            raise
        finally:
            theirs.close()
        self.started = time.monotonic()
        self.is_ready = False
        self._asked_for: deque[WorkerHandle] = deque()

    def fork(self) -> WorkerHandle | None:
        """Asks for a worker, which runs a little later; None when the nursery is gone or no socket is to be had now."""
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return None
        ours.setblocking(False)
        try:
            socket.send_fds(self.control, [b"f"], [theirs.fileno()])
        except OSError:
            ours.close()
            return None
        finally:
            theirs.close()
        worker = WorkerHandle(ours)
        self._asked_for.append(worker)
        return worker

    def prepare(self, data_set: str) -> None:
        """Has a reasoning_gym data set (a short ASCII name) loaded, for the workers that are forked from now on."""
        try:
            self.control.send(b"p" + data_set.encode("ascii"))
        except OSError:  # its end of file is about to be read
            pass

    def read(self) -> bool:
        """Takes one message of the nursery; False when it is gone, or when the worker in the message has no handle here."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self.control, 16, 1)
        except OSError:
            return False
        if message == b"ready":
            self.is_ready = True
        elif message:
            if not descriptors:  # this process has as many open files as it may
                return False
            worker = self._asked_for.popleft()
            worker.pid, worker.pidfd = int.from_bytes(message, "big"), descriptors[0]
            if worker.connection.fileno() < 0:  # given up before its process was known
                worker.kill()
        return bool(message)

    def end(self) -> None:
        """Ends the nursery and, with it, every worker."""
        self.control.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)
