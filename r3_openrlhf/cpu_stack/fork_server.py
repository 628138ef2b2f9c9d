"""Workers as forks of one process that has imported the stack. Only where `r3 train` starts Ray itself, on CPUs.

A run has five processes that import torch, DeepSpeed, transformers and vLLM, 6 s of processor time each. On a machine of two
cores that was more than half of the start. Here one process imports, before any thread exists in it, and forks: Python's own
forkserver (Lib/multiprocessing/forkserver.py), with two kinds of children.

Ray's workers: ray/_private/runtime_env/context.py:41 executes `py_executable default_worker.py ...`. The executable is
`worker_shim`, which asks for a fork that runs the script, and lives as long as it. Ray's own script that does so imports Ray for
it; `quick_setup()` has Ray start `setup_worker` instead (ray/_private/node.py:146).

vLLM's engine: vllm/v1/engine/utils.py:164 starts it with `get_mp_context()`, which inside of a Ray actor is "spawn"
(utils/system_utils.py:134); `engine_context()` stands in for it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import multiprocessing.context
import multiprocessing.forkserver
import os
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import reduction, resource_tracker
from pathlib import Path
from typing import Any

from r3_openrlhf.errors import R3Error
from r3_openrlhf.ray_start import replaced

PRELOADED = ("r3_openrlhf.cpu_stack.preloaded",)
_server_path: list[str] = []  # sys.path of the server, and so of every fork


class ForkServer:
    """The server of one run, as a context manager: it ends with the block, or with this process however that ends.

    environment: variables of the server, so of every import. temporary: where its socket may lie, a path of at most 80 bytes.
    modules: what it imports. Who can write to the socket runs code as this user: only this user can (mode 700)."""

    def __init__(self, environment: dict[str, str], temporary: Path, modules: tuple[str, ...] = PRELOADED) -> None:
        temporary.mkdir(parents=True, exist_ok=True)  # as Ray does
        self._folder = Path(tempfile.mkdtemp(prefix="r3-", dir=temporary))
        self.address = str(self._folder / "fork")
        ready_r, ready_w = os.pipe()
        alive_r, self._alive = os.pipe()
        # Ray blocks SIGINT for what it starts (ray/_private/services.py:1021): a terminal's ^C is for `r3 train` alone
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with socket.socket(socket.AF_UNIX) as listener, (self._folder / "log").open("wb") as log:
            listener.bind(self.address)
            listener.listen()
            passed = (listener.fileno(), alive_r, ready_w)
            arguments = (*passed, str(self._folder), modules)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import serve; serve{arguments}"],
                env={**os.environ, **environment, **_of_raylet()},
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(alive_r)
        os.close(ready_w)
        self._ready = ready_r

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()  # it has nothing to save, and may be importing still
        self._process.wait()
        os.close(self._alive)
        os.close(self._ready)
        shutil.rmtree(self._folder)

    def wait(self) -> None:
        """Until everything is imported; what was written meanwhile goes to standard output. R3Error: the server has ended."""
        imported = os.read(self._ready, 1)
        sys.stdout.write((self._folder / "log").read_text(errors="replace"))
        if not imported:
            raise R3Error(
                f"the process that imports the stack ended with exit code {self._process.wait()} (the whole story is in the "
                "run's train.log); `r3 doctor` says what is missing"
            )

    @property
    def pid(self) -> int:
        """Of the server; its forks are its children."""
        return self._process.pid

    @property
    def py_executable(self) -> str:
        """For Ray's runtime_env: a worker's command line begins with it."""
        return py_executable(self.address)


def py_executable(address: str) -> str:
    """Of the server at `address`."""
    return shlex.join([sys.executable, "-P", "-m", f"{__package__}.worker_shim", address])


@contextlib.contextmanager
def quick_setup() -> Iterator[None]:
    """A Ray that is started meanwhile begins its workers with our setup_worker.py. os.path.join, with which Ray makes the path, takes
    an absolute name as it is. And it has neither autoscaler nor dashboard, nor a dashboard's part on its node: one machine of one size,
    for one run, with include_dashboard=False (ray/_private/node.py:1342, :1354, services.py:1873)."""
    from ray._private import node, ray_constants, utils

    script = str(Path(__file__).with_name(ray_constants.SETUP_WORKER_FILENAME))
    no_dashboard = ImportError("this Ray has no dashboard")
    with (
        replaced(ray_constants, SETUP_WORKER_FILENAME=script),
        replaced(node.Node, start_monitor=lambda _: None, start_api_server=lambda _, **__: None),
        replaced(utils, get_dashboard_dependency_error=lambda: no_dashboard),
    ):
        yield


def _of_raylet() -> dict[str, str]:
    """What Ray's library reads from a worker's environment when it is loaded, and never again (its RAY_INTERNAL_FLAGs):
    before there is a raylet. The first job of a cluster is number 1, and a worker ends when this process does: the raylet's
    end it notices by its connection."""
    return {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}


def serve(listener_fd: int, alive_fd: int, ready_fd: int, folder: str, modules: tuple[str, ...]) -> None:
    """The server: import, say so, and fork for whoever asks until `alive_fd` is closed at its other end."""
    import ray

    gc.disable()  # a fifth of the time: everything that an import makes stays
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # and a collection in a fork leaves its pages shared
    gc.enable()
    _server_path.extend(sys.path)
    # The first call finds out where the title lies, which a fork with another environment no longer can
    ray._raylet.setproctitle("r3::ForkServer")
    os.write(ready_fd, b"1")
    os.close(ready_fd)
    try:
        multiprocessing.forkserver.main(listener_fd, alive_fd, [])
    finally:  # not in a fork, which ends inside of main()
        shutil.rmtree(folder)


class _Client(multiprocessing.forkserver.ForkServer):
    """Asks a server that another process started. CPython's own would start one more (forkserver.py:105)."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._forkserver_address = address
        self._forkserver_alive_fd = os.open(
            os.devnull, os.O_RDONLY
        )  # the server ends with its run, whoever else lives

    def ensure_running(self) -> None:
        resource_tracker.ensure_running()


class Fork(multiprocessing.context.ForkServerProcess):
    """A fork with the environment and the outputs of whoever starts it, which never outlives that process."""

    outputs: Any = (1, 2)  # descriptors

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.environment = dict(os.environ)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "outputs": [reduction.DupFd(number) for number in self.outputs]}

    def run(self) -> None:
        """In the fork. A spawned process runs what was registered for its exit; a fork of multiprocessing does not."""
        for number, output in enumerate(self.outputs, start=1):
            descriptor = output.detach()
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:] = _server_path
        threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
        try:
            super().run()
        finally:
            atexit._run_exitfuncs()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


class Engine(Fork):
    """vLLM's own call for its title (v1/engine/core.py) finds no place for it in a fork; Ray's does."""

    def run(self) -> None:
        """In the fork."""
        import ray

        ray._raylet.setproctitle(f"VLLM::{self.name}")
        super().run()


class EngineContext(multiprocessing.context.ForkServerContext):
    """What multiprocessing offers, with `Engine`s for processes."""

    Process = Engine


def connect(address: str) -> None:
    """From now on processes of multiprocessing's forkserver are forks of the server at `address`."""
    multiprocessing.forkserver.connect_to_new_process = _Client(address).connect_to_new_process


def engine_context() -> EngineContext | None:
    """For a process that is a fork itself: forks of the same server. None: this process is none."""
    if not _server_path:
        return None
    server: Any = multiprocessing.forkserver._forkserver
    connect(server._forkserver_address)  # which main() has written there, forkserver.py:209
    return EngineContext()


def run_script(argv: list[str], variables: dict[str, str]) -> None:
    """What `python argv[0] argv[1] ...` would do with these variables of a runtime_env."""
    if variables:
        from ray._private.utils import update_envs  # it fills in those that they name

        update_envs(variables)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")
