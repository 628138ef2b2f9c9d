"""Processes of the stack as forks of one that has imported it: `r3` itself, its workers, ranks without Ray. On CPUs.

A training run on CPUs needs 28 s of processor time, and 16 of them are the imports of the command and of its own fork server.
Here one process imports for all that a test process starts. What this leaves out is tested with the program as it is:
tests/openrlhf_adapter/test_end_to_end.py, tests/docs, tests/cpu_stack.
"""

from __future__ import annotations

import contextlib
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import psutil

from r3_openrlhf.cpu_stack import fork_server
from r3_openrlhf.cpu_stack.fork_server import PRELOADED, Fork, ForkServer, _Client, py_executable

ROOT = Path(__file__).parents[1]
R3 = Path(sys.executable).with_name("r3")
_servers: list[ForkServer] = []
_clients: dict[str, _Client] = {}  # by the server's address; each holds a descriptor


def _server() -> ForkServer:
    """One for this process, with which it ends; another one where a test has ended it."""
    if _servers and _servers[-1]._process.poll() is None:
        return _servers[-1]
    server = ForkServer(
        {"PYTHONPATH": str(ROOT)},
        Path("/tmp"),
        modules=(*PRELOADED, "r3_openrlhf.openrlhf_adapter.launch"),
    )
    server.wait()
    _servers.append(server)
    return server


def start(process: Fork) -> None:
    """As a fork of that server; other processes of multiprocessing are started as ever."""
    address = _server().address
    client = _clients.get(address) or _clients.setdefault(address, _Client(address))
    with mock.patch.object(multiprocessing.forkserver, "connect_to_new_process", client.connect_to_new_process):
        process.start()


def descendants() -> list[psutil.Process]:
    """All living forks of that server, a run's workers among them: they are not descendants of the run's command."""
    alive = [psutil.Process(server._process.pid) for server in _servers if server._process.poll() is None]
    return [one for server in alive for one in server.children(recursive=True)]


def engines(monkeypatch) -> None:
    """As long as the fixture lives, vLLM's engines of this process are forks, too."""
    monkeypatch.setattr(multiprocessing.forkserver, "connect_to_new_process", None)
    fork_server.connect(_server().address)
    monkeypatch.setattr(fork_server, "engine_context", fork_server.EngineContext)


class Command:
    """What the tests use of subprocess.Popen(..., text=True, start_new_session=True) with pipes, in a fork.

    arguments: what stands behind `r3`. environment: all of it, as for Popen."""

    def __init__(
        self, *arguments: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self.args = [str(R3), *map(str, arguments)]
        self._out, self._said = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._texts: tuple[str, str] | None = None  # of both, when it has ended and they are closed
        self._process = Fork(target=_r3, args=(self.args, str(cwd or Path.cwd()), _server().address))
        self._process.environment = dict(os.environ if environment is None else environment)
        self._process.outputs = (self._out.fileno(), self._said.fileno())
        start(self._process)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        if self._texts is None:
            with self._out, self._said:
                self._out.seek(0)
                self._said.seek(0)
                self._texts = self._out.read().decode(), self._said.read().decode()
        return self._texts

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)


def r3(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    """`r3 ARGUMENTS` until its end."""
    command = Command(*arguments, **options)
    out, said = command.communicate()
    return subprocess.CompletedProcess(command.args, command.returncode, out, said)


class _Shared:
    """In the place of a run's own fork server: the one that this process is a fork of."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def wait(self) -> None:
        pass

    @property
    def py_executable(self) -> str:
        return py_executable(self.address)


def _r3(argv: list[str], cwd: str, address: str) -> None:
    """In the fork: what the script `r3` does, in a session of its own."""
    os.setsid()
    os.chdir(cwd)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = argv

    from r3_openrlhf.cli import main
    from r3_openrlhf.openrlhf_adapter import launch

    launch.start_fork_server = lambda config: _Shared(address)
    main()
