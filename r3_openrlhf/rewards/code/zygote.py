"""The process from which a confined process is forked for each test. It sees no program, no test and no result.

It is a new interpreter, inside namespaces where there are some (run.py starts it), with the modules loaded that programs use.
A request has descriptors alone; what the child is to do it reads from one of them. Standard library only.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import itertools
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence

from r3_openrlhf.machine.processes.sandbox import Barriers, die_with_parent, library_paths

STACK_BYTES = 2**29
NUM_DESCRIPTORS = 4  # standard input, standard output, job, result; a fifth is a link to another child
_HIGH = 64  # descriptors on the way to their places
JOB, RESULT, LINK = 40, 41, 42  # their places in a child
PRELOADED = (
    "array atexit bisect collections contextlib copy dataclasses datetime decimal enum fractions functools heapq"
    " io itertools json linecache math operator queue random re statistics string sys threading time types typing"
).split()


def main(box: str, owned: bool, preload: Sequence[str], readable: Sequence[str], executable: Sequence[str]) -> None:
    """Serve until the other end of standard input, a SOCK_SEQPACKET socket, is closed.

    Each request is answered with a number and a pidfd of the child; when the child has ended, another message has how, and what it used.

    Args:
        box: the directory of programs, emptied after the last child has ended.
        owned: it goes when this process ends.
        preload: modules in addition to the usual ones.
        readable: beyond the interpreter's own files.
        executable: files and directories from which programs may be started; none: no program may be.
    """
    channel = socket.socket(fileno=0)
    try:
        run = _load(preload)
        os.chdir(box)
        barriers = Barriers(
            readable=[*library_paths(), *readable],
            writable=[box, "/dev/null"],
            executable=executable,
            threads=True,
            programs=bool(executable),
        )
        channel.send(json.dumps({"layers": _try(barriers)}).encode())
    except Exception as error:
        channel.send(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode())
        return
    children: dict[int, tuple[int, int, float]] = {}  # pidfd -> pid, number, how long this process had waited
    numbers = itertools.count()
    try:
        while _serve(channel, children, numbers, box, lambda: run(barriers)):
            pass
    except OSError:
        return  # the owner is gone
    finally:
        for pid, _, _ in children.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if owned:
            _empty(box)
            os.rmdir(box)


def _load(preload: Sequence[str]) -> Callable[[Barriers], None]:
    """What programs use, and what runs them; the package's own directory is no place for their imports."""
    from r3_openrlhf.rewards.code import child

    for name in (*PRELOADED, *preload):
        importlib.import_module(name)
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.path[:] = [path for path in sys.path if path != package]
    gc.collect()
    gc.freeze()
    return child.run


def _serve(
    channel: socket.socket,
    children: dict[int, tuple[int, int, float]],
    numbers: Iterator[int],
    box: str,
    run: Callable[[], None],
) -> bool:
    """Wait for a request or the end of a child, and answer. False: there is no one to serve."""
    for ready in select.select([channel.fileno(), *children], [], [])[0]:
        if ready != channel.fileno():
            _bury(channel, box, children, ready)
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, 16, NUM_DESCRIPTORS + 1)
        if not message:
            return False
        own, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                die_with_parent(signal.SIGKILL)
                if os.getppid() == own:
                    _settle(descriptors)
                    run()
            finally:
                os._exit(70)
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        children[pidfd] = pid, next(numbers), _waited_s(own)
        socket.send_fds(channel, [str(children[pidfd][1]).encode()], [pidfd])
    return True


def _bury(channel: socket.socket, box: str, children: dict[int, tuple[int, int, float]], pidfd: int) -> None:
    pid, number, before_s = children.pop(pidfd)
    waited_s = _waited_s(pid) + _waited_s(os.getpid()) - before_s  # as long as there is something of it
    _, status, used = os.wait4(pid, 0)
    os.close(pidfd)
    ended = {
        "number": number,
        "status": status,
        "waited_s": waited_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "memory_bytes": used.ru_maxrss * 1024,
    }
    channel.send(json.dumps(ended).encode())
    if not children:  # after its end was told: what cannot be removed ends this process, and not the verdict
        _empty(box)


def _waited_s(pid: int) -> float:
    """For a processor; 0.0 where the kernel does not count it."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _empty(box: str) -> None:
    """It has no directories: a program may not make one."""
    with os.scandir(box) as entries:
        for entry in entries:
            os.unlink(entry.path)


def _settle(descriptors: Sequence[int]) -> None:
    """Puts them where the child expects them, standard error aside, which goes nowhere."""
    stdin, stdout, *others = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH) for descriptor in descriptors]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for place, descriptor in enumerate((stdin, stdout, nowhere)):
        os.dup2(descriptor, place)
    for place, descriptor in enumerate(others, JOB):
        os.dup2(descriptor, place, inheritable=False)


def _try(barriers: Barriers) -> dict[str, bool]:
    """Which layers hold: one child enters them and says so."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(barriers.enter()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return dict(json.loads(said))


def start(arguments: Sequence[str]) -> None:
    """As the program of a new interpreter. The main thread's stack can grow as far as the limit that held at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    if soft == resource.RLIM_INFINITY or soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
        os.execv(sys.executable, sys.orig_argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(*json.loads(arguments[0]))
