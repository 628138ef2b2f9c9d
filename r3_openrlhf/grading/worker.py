"""The grading processes: a nursery that imports the libraries once and forks a worker whenever it is asked to.

Started by pool.py as `python -I -c ...` with an empty environment; imports only what grading needs.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time

from r3_openrlhf.grading.sandbox import confine, die_with_parent, take_violations, watch_for_code
from r3_openrlhf.grading.tasks import grade_item
from r3_openrlhf.grading.wire import Item, Outcome, decode_batch, frame, take_frame

LONG_RESPONSE_CHARS = 4096  # shorter ones cannot take long before `before_slow`
_WARM_UP = (
    ("x^2+1", "(x+1)^2-2x"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    ("x=1, y=2", "(1,2)"),
    (r"(-\infty,3]\cup[4,5)", r"x\le 3"),
    ("2x+y=3", "y=3-2x"),
    (r"\{1,2\}", "2,1"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    ("28\\%", "0.28"),
    (r"\sin(x)^2+\cos(x)^2", "2"),
    ("3+4i", "4i+2"),
)


def run_nursery(control: socket.socket, *, memory_bytes: int, cpu_seconds: int, directory: str) -> None:
    """Serves fork requests until the pool closes its end of `control`.

    A request is one byte with the worker's socket attached; the answer is one byte with a pidfd of the worker.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    die_with_parent(signal.SIGTERM)
    try:
        warm_up()
        gc.collect()
        gc.freeze()  # so that the collector in a worker does not touch, and thereby copy, the pages of the libraries
        control.send(b"ready")
        _serve_forks(control, memory_bytes, cpu_seconds, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _serve_forks(control: socket.socket, memory_bytes: int, cpu_seconds: int, directory: str) -> None:
    while True:
        readable, _, _ = select.select([control], [], [], 1.0)
        while _reap():
            pass
        if not readable:
            continue
        request, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not request:
            return
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                control.close()
                _become_worker(nursery, socket.socket(fileno=descriptors[0]), memory_bytes, cpu_seconds, directory)
            finally:
                os._exit(1)  # whatever happens, a worker never runs the nursery's code
        os.close(descriptors[0])
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [pid.to_bytes(4, "big")], [pidfd])
        os.close(pidfd)


def warm_up() -> None:
    """Grades one example of each kind, so that the forked workers find modules imported and caches filled."""
    for answer, reference in _WARM_UP:
        for task in ("math", "exact"):
            grade_item(Item(task, f"\\boxed{{{answer}}}", (reference,), False), lambda: None)
    entry = {"question": "", "answer": "1", "metadata": {"source_dataset": "chain_sum"}}
    grade_item(Item("reasoning_gym", "1", ("1",), False, entry), lambda: None)


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _become_worker(
    nursery: int, connection: socket.socket, memory_bytes: int, cpu_seconds: int, directory: str
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent(signal.SIGKILL)
    if os.getppid() != nursery:
        os._exit(1)
    own_directory = tempfile.mkdtemp(dir=directory)
    os.chdir(own_directory)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # scorers print; what they print is model text
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's business
    watch_for_code()
    confine(own_directory, memory_bytes=memory_bytes)
    serve(connection, cpu_seconds)


def serve(connection: socket.socket, cpu_seconds: int) -> None:
    """Grades batches of items in order until the connection is closed.

    Outcomes are sent before an item may take long, so that the pool always knows which item is being graded.
    """
    buffer, outcomes = bytearray(), []

    def flush() -> None:
        if outcomes:
            connection.sendall(frame(outcomes))
            outcomes.clear()

    def before_slow() -> None:
        flush()
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + cpu_seconds + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))

    while True:
        body = take_frame(buffer)
        if body is None:
            received = connection.recv(2**18)
            if not received:
                return
            buffer += received
            continue
        for number, item in decode_batch(body):
            if len(item.response) > LONG_RESPONSE_CHARS:
                flush()
            started = time.perf_counter()
            try:
                verdict, reason, score, extracted = grade_item(item, before_slow)
            except MemoryError:
                raise  # nothing in this process can be relied on any more
            except Exception:  # a grader's own mistake: it must not look like the item's
                verdict, reason, score, extracted = "ungraded", "grader_error", None, None
            if take_violations():
                verdict, reason, score = "ungraded", "blocked", None
            outcomes.append(
                Outcome(number, verdict, reason, score, extracted, round(time.perf_counter() - started, 6))
            )
        flush()
