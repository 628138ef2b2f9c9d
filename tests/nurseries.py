"""Nurseries of grading processes as forks of one that has warmed up.

A nursery costs 1.5 s of processor time before its first worker, and the suite starts a hundred. Every test has such forks; what that
leaves out, a nursery's own start, is tested where they are refused (`own_nurseries`) and in the commands that tests start as a
user does: tests/grading/processes, tests/docs, tests/openrlhf_adapter/test_end_to_end.py.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from r3_openrlhf.grading.processes import nursery

ADDRESS = "R3_TEST_NURSERIES"  # of the server, for processes that begin with this module
start = nursery._start  # as ever
_servers: list[Server] = []


class Server:
    """One process that forks nurseries until this process ends."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="r3-", dir="/tmp")  # a socket's name has to be short
        self.address = f"{self._folder}/nurseries"
        alive, self._alive = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen()
            passed = (listener.fileno(), alive)
            # with the path, the variables and the directory of a nursery
            path = [
                str(Path(__file__).parents[1]),
                *(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))),
            ]
            program = (
                f"import sys; sys.path[:0] = {path!r}; from {__name__} import serve; serve{(*passed, self._folder)}"
            )
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", program],
                env={"PATH": os.defpath, "LANG": "C.UTF-8", **nursery._NUMERICS},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
            )
        os.close(alive)


def serve(listener_fd: int, alive_fd: int, folder: str) -> None:
    """The server: warm up as a nursery does, and fork one for whoever connects until `alive_fd` is closed at its other end."""
    from r3_openrlhf.grading.processes import worker

    gc.disable()
    worker.warm_up()
    gc.collect()
    gc.freeze()
    gc.enable()
    worker.warm_up = lambda: None
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    listener = socket.socket(fileno=listener_fd)
    try:
        while alive_fd not in select.select([listener, alive_fd], [], [])[0]:
            connection, _ = listener.accept()
            request, (control, errors), _, _ = socket.recv_fds(connection, 2**16, 2)
            pid = os.fork()
            if pid == 0:
                try:
                    _become_nursery(listener, connection, alive_fd, control, errors, *json.loads(request))
                finally:
                    os._exit(1)
            opened = [control, errors]
            try:
                opened.append(os.pidfd_open(pid))
                socket.send_fds(connection, [pid.to_bytes(4, "big")], opened[-1:])
            except OSError:  # it has already ended, or who asked has gone; the others keep their server
                pass
            for descriptor in opened:
                os.close(descriptor)
            connection.close()
    finally:
        shutil.rmtree(folder)


def _become_nursery(listener, connection, alive_fd, control, errors, directory, arguments) -> None:
    from r3_openrlhf.grading.processes import worker

    listener.close()
    connection.close()
    os.close(alive_fd)
    os.dup2(errors, 2)
    os.close(errors)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(directory)
    worker.run_nursery(socket.socket(fileno=control), directory=directory, **arguments)
    os._exit(0)


class _Nursery:
    """What `Nursery` uses of subprocess.Popen."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid, self._pidfd = pid, pidfd

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wait(self) -> None:
        """Until the kernel has reaped it, too: its descriptor is readable a moment before."""
        select.select([self._pidfd], [], [])
        with contextlib.suppress(ProcessLookupError):
            for _ in range(10_000):  # not for ever: nobody may reap it when the server has been killed
                signal.pidfd_send_signal(self._pidfd, 0)
                time.sleep(0.001)
        os.close(self._pidfd)


def _fork(
    address: Callable[[], str], control: socket.socket, directory: str, module: str, arguments: dict, *, trusted: bool
):
    if module != nursery._GRADERS:
        return start(control, directory, module, arguments, trusted=trusted)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address())
        socket.send_fds(connection, [json.dumps([directory, arguments]).encode()], [control.fileno(), 2])
        pid, (pidfd,), _, _ = socket.recv_fds(connection, 4, 1)
    return _Nursery(int.from_bytes(pid, "big"), pidfd)


def address() -> str:
    """Of this process's server, which is started when it is first asked for, and anew where a test has ended it."""
    if not _servers or _servers[-1].process.poll() is not None:
        _servers.append(Server())
    return _servers[-1].address


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Meanwhile this process's nurseries are forks."""
    with mock.patch.object(nursery, "_start", functools.partial(_fork, address)):
        yield


if ADDRESS in os.environ:  # now: a fork has the variables of who asked for it
    nursery._start = functools.partial(_fork, functools.partial(str, os.environ[ADDRESS]))
