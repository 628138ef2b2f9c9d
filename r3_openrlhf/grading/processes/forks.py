"""The nursery's own side, whatever its workers do: it forks one whenever it is asked to, and none outlives it."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable

from r3_openrlhf.grading.processes.sandbox import die_with_parent


def serve_forks(
    control: socket.socket, become: Callable[[socket.socket], None], prepare: Callable[[str], None] | None = None
) -> None:
    """Serves requests until the other end of `control` is closed.

    A fork request is b"f" with the worker's socket attached; the answer is the worker's pid with a pidfd attached. The
    worker calls `become(socket)` and ends when that returns or raises. b"p" and a name: `prepare(name)` before further forks.
    """
    while True:
        readable, _, _ = select.select([control], [], [], 1.0)
        while _reap():
            pass
        if not readable:
            continue
        request, descriptors, _, _ = socket.recv_fds(control, 128, 1)
        if not request:
            return
        if request[:1] == b"p":
            if prepare is not None:
                prepare(request[1:].decode())
            continue
        nursery = os.getpid()
        # the interpreter swallows what is raised while it forks, SystemExit included
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid == 0:
            try:
                control.close()
                _begin_worker(nursery)
                become(socket.socket(fileno=descriptors[0]))
            finally:
                os._exit(1)  # whatever happens, a worker never runs the nursery's code
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(descriptors[0])
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [pid.to_bytes(4, "big")], [pidfd])
        os.close(pidfd)


def _begin_worker(nursery: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    die_with_parent(signal.SIGKILL)
    if os.getppid() != nursery:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False
