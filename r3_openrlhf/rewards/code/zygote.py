"""The process from which a confined process is forked for each test. It sees no program, no test
and no result.

It is a new interpreter, in namespaces where there are some (run.py), with common modules loaded.
A child reads its task from one of its descriptors. Standard library only."""

import contextlib
import ctypes
import fcntl
import importlib
import itertools
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent import futures
from importlib.machinery import FileFinder
from multiprocessing import context, dummy
from typing import Any

from r3_openrlhf.machine.processes.fork_server import serve
from r3_openrlhf.machine.processes.sandbox import Barriers, installed_paths, library_paths
from r3_openrlhf.rewards.code import child
from r3_openrlhf.rewards.code.data import JOB, STACK_BYTES

BOX_BYTES, MAX_BOX_FILES = 2**28, 1024
# standard input, standard output, job, result; a fifth descriptor is a link to another child
_HIGH = 64  # descriptors on the way to their places


def main(
    box: str, owned: bool, mounts: bool, language: dict[str, Any], executable: Sequence[str]
) -> None:
    """Serve until the owner closes its end of standard input.

    Args:
        box: the directory of programs, emptied after the last child has ended.
        owned: it goes when this process ends.
        mounts: give `box` a private tmpfs of BOX_BYTES.
        language: fields of a Language (languages.py).
        executable: files and directories from which programs may be started; none: no program may
            be."""
    channel = socket.socket(fileno=0)
    try:
        for name in language["preload"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        if not language["command"]:
            _threads_for_processes()
        package = os.path.dirname(
            os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        )
        # no program imports this package
        sys.path[:] = [path for path in sys.path if path != package]
        _hide_others(language["packages"])
        if mounts:
            _mount(box)
        os.chdir(box)
        barriers, of_compiler = (
            Barriers(
                readable=[*library_paths(language["packages"]), *language["paths"]],
                writable=[box, "/dev/null"],
                executable=executable,
                threads=True,
                programs=bool(executable),
                processes=processes,
            )
            for processes in (False, True)
        )
        channel.send(json.dumps({"layers": _try(barriers)}).encode())
    except Exception as error:
        channel.send(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode())
        return

    def begin(descriptors: Sequence[int]) -> None:
        _settle(descriptors)
        child.run(barriers, of_compiler)

    adopts = bool(language["compile"])  # a compiler starts others, which outlive it
    serve(channel, begin, adopts=adopts, on_idle=lambda: _empty(box))
    _empty(box)
    if owned and not mounts:
        os.rmdir(box)


def _threads_for_processes() -> None:
    """Let threads do what a program asks of `multiprocessing` and of ProcessPoolExecutor, as the
    standard library's multiprocessing.dummy does: a program has one process."""
    threads = {name: getattr(dummy, name) for name in (*dummy.__all__, "Array", "Value")}
    vars(multiprocessing).update(threads)
    for name, kind in itertools.product(
        threads, (context.BaseContext, *context.BaseContext.__subclasses__())
    ):
        setattr(kind, name, staticmethod(threads[name]))

    def executor(
        max_workers: int | None = None,
        *_: Any,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **__: Any,
    ) -> object:
        return futures.ThreadPoolExecutor(max_workers, "", initializer, initargs)

    futures.ProcessPoolExecutor = executor  # type: ignore[assignment,misc]


def _hide_others(packages: Sequence[str]) -> None:
    """Other installed packages are not there, instead of there and unreadable: their directory is
    not read again, as its time stays what it was."""
    for finder in map(sys.path_importer_cache.get, installed_paths()):
        if isinstance(finder, FileFinder):
            known = vars(finder)
            known["_path_cache"] = {
                name for name in known["_path_cache"] if name.partition(".")[0] in packages
            }


def _mount(box: str) -> None:
    """Also files that no directory counts any more are of its size. OSError: it cannot be mounted."""
    options = f"size={BOX_BYTES},nr_inodes={MAX_BOX_FILES}".encode()
    # NOSUID, NODEV
    if (
        ctypes.CDLL(None, use_errno=True).mount(b"tmpfs", box.encode(), b"tmpfs", 6, options)
        != 0
    ):
        raise OSError(ctypes.get_errno(), "no file system for programs can be mounted")


def _empty(box: str) -> None:
    with os.scandir(box) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):  # of any depth
                subprocess.run(["rm", "-rf", "--", entry.path], check=True)
            else:
                os.unlink(entry.path)


def _settle(descriptors: Sequence[int]) -> None:
    """Put them where the child expects them, standard error aside, which goes nowhere."""
    stdin, stdout, *others = [
        fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH) for descriptor in descriptors
    ]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, descriptor in enumerate((stdin, stdout, nowhere)):
        os.dup2(descriptor, number)
    for number, descriptor in enumerate(others, JOB):
        os.dup2(descriptor, number, inheritable=False)


def _try(barriers: Barriers) -> dict[str, bool]:
    """Return which layers hold: one child enters them and reports."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(barriers.enter()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        layers = answer.read()
    os.waitpid(pid, 0)
    return dict(json.loads(layers))


def start(arguments: Sequence[str]) -> None:
    """Run as a new interpreter's program. The main stack grows to the limit held at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    if soft == resource.RLIM_INFINITY or soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
        os.execv(sys.executable, sys.orig_argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(*json.loads(arguments[0]))
