"""The grading processes: a nursery that imports the libraries once and forks a worker whenever it is asked to.

Started by nursery.py as `python -I -c ...` with an empty environment; imports only what grading needs.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from functools import partial

import msgspec

from r3_openrlhf.grading.answers import parser_decisions
from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.answers.tasks import complexity_of, data_set_of, grade_item, prepare, subject_of
from r3_openrlhf.grading.processes.forks import serve_forks
from r3_openrlhf.grading.processes.sandbox import confine, die_with_parent, take_violations, watch_for_code
from r3_openrlhf.grading.processes.wire import DEFERRED, Outcome, decode_batch, frame, take_frame

LONG_RESPONSE_CHARS = 4096
_read_entry = msgspec.json.Decoder(dict).decode
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
# The parser remembers how it decided (antlr4.dfa); these are the forms of common answers, each of which costs a new process
# 10 to 100 ms the first time.
_FORMS = (
    r"(3, \frac{\pi}{2})",
    r"x^{\frac{1}{3}}",
    r"1A_{16}",
    r"x^{-2}",
    r"\cos(\frac{60\pi}{180})",
    r"a_{10} = 55",
    r"e^{2x}",
    r"f(x)=x^2",
    r"(a,b) = \left(\frac{1}{2}, -\frac{1}{3}\right)",
    r"(x^2+2x+2)(x^2-2x+2)",
    r"\frac{n(n+1)}{2}",
    r"A = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"x = \frac{-b + \sqrt{b^2-4ac}}{2a}, x = \frac{-b - \sqrt{b^2-4ac}}{2a}",
    r"\{(1,2),(3,4)\}",
    r"\log_{2}8",
    r"\tan^{-1}(1)",
    r"x_1 = 1, x_2 = 2",
    r"4 \cdot \pi \cdot r^{2}",
    r"x=\frac{y^2}{4}",
    r"2k\pi, k \in \mathbb{Z}",
    r"2e^{i\pi/3}",
    r"\{\sqrt2,-\sqrt2\}",
    r"1/\sqrt{3}",
    r"a \in [3, +\infty)",
    r"\begin{vmatrix} 2 & 1 \\ 0 & 3 \end{vmatrix}",
    r"x \in \{1,2\}",
    r"\ln 2 + \ln x",
    r"\sqrt3 i, -\sqrt3 i",
    r"[1,\infty)",
    r"\sum_{k=1}^{n} k",
    r"\left\{\frac{1}{3},\frac{1}{2}\right\}",
    r"3\frac{1}{2}",
    r"\frac{2}{3}x^{3/2}",
    r"\frac{8!}{5!3!}",
    r"\left|-3\right|",
    r"2\sin x\cos x",
    r"(2-\sqrt3)^2",
    r"x \in (-\infty,-2)\cup(2,\infty)",
    r"(x-1)^2+(y+2)^2=9",
    r"\frac{x^2}{9}+\frac{y^2}{4}=1",
    r"\frac{1}{x-1} - \frac{1}{x+1}",
    r"\frac{1}{2}+\frac{\sqrt{3}}{2}i",
    r"3\cdot 10^{8}",
    r"x^{3} - 3 x + 2",
    r"\frac{\ln 5}{\ln 3}",
    r"2^{n+1}-1",
    r"\sqrt{5+2\sqrt{6}}",
    r"\left\lfloor \frac{n}{2} \right\rfloor",
    r"1 - \frac{1}{e}",
    r"\binom{8}{3}",
    r"30^\circ",
    r"\frac{a^2+b^2}{c}",
    r"-2 \le x < 5",
    r"\sqrt[3]{54}",
    r"\text{(C) } 12",
    r"y-3=2(x-1)",
)
# Where an answer may stand: each place has patterns of its own, which cost a new process 25 ms to compile.
_TEXTS = (
    (r"We have $x^2=4$, so \[x = 2.\] Therefore the answer is $\boxed{2}$ units.", "$2$"),
    (r"So it is \boxed{x+1} or so.", "$1+x$"),
    ("The final answer is $5$. I hope it is correct.", "5"),
    ("The answer is x+1", "1+x"),
    ("Answer: 5", "6"),
    ("#### 5", "5"),
    ("It is 5.", "5"),
    ("I do not know.", "x"),
)


def run_nursery(control: socket.socket, *, memory_bytes: int, cpu_seconds: int, directory: str) -> None:
    """Serves fork requests (forks.py) until the pool closes its end of `control`; prepares data sets of reasoning_gym."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    die_with_parent(signal.SIGTERM)
    gc.disable()  # until all is there: it took a fifth of the time, and found nothing
    try:
        warm_up()
        gc.collect()
        gc.freeze()  # so that the collector in a worker does not touch, and thereby copy, the pages of the libraries
        gc.enable()
        control.send(b"ready")
        become = partial(_become_worker, memory_bytes=memory_bytes, cpu_seconds=cpu_seconds, directory=directory)
        serve_forks(control, become, prepare)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def warm_up(*, from_file: bool = True) -> None:
    """Grades one example of each kind, so that the forked workers find modules imported and caches filled.

    from_file: what the parser learns from them is read before (parser_decisions.py)."""
    if from_file:
        parser_decisions.load()
    pairs = [*_WARM_UP, *zip(_FORMS[::2], _FORMS[1::2], strict=True)]
    for response, reference in (*((f"\\boxed{{{answer}}}", reference) for answer, reference in pairs), *_TEXTS):
        for task in ("math", "exact"):
            grade_item(Item(task, response, (reference,), False), may_take_long=True)
    entry = {"question": "", "answer": "1", "metadata": {"source_dataset": "chain_sum"}}
    grade_item(Item("reasoning_gym", "1", ("1",), False, entry), may_take_long=True)


def _become_worker(connection: socket.socket, *, memory_bytes: int, cpu_seconds: int, directory: str) -> None:
    own_directory = tempfile.mkdtemp(dir=directory)
    os.chdir(own_directory)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # scorers print; what they print is model text
    watch_for_code()
    confine(own_directory, memory_bytes=memory_bytes)
    serve(connection, cpu_seconds)


def serve(connection: socket.socket, cpu_seconds: int) -> None:
    """Grades batches of items in order until the connection is closed."""
    buffer = bytearray()
    outcomes: list[Outcome] = []

    def flush() -> None:
        if outcomes:
            connection.sendall(frame(outcomes))
            outcomes.clear()

    while True:
        body = take_frame(buffer)
        if body is None:
            received = connection.recv(2**18)
            if not received:
                return
            buffer += received
            continue
        may_take_long, items = decode_batch(body)
        if may_take_long:
            _limit_processor_time(cpu_seconds)
        for number, item in items:
            if len(item.response) > LONG_RESPONSE_CHARS:
                flush()  # so that the pool knows which item it is, should this one take long after all
            outcomes.append(_grade(number, item, may_take_long))
        flush()


def _grade(number: int, item: Item, may_take_long: bool) -> Outcome:
    started = time.perf_counter()
    if item.task == "reasoning_gym" and isinstance(item.metadata, bytes):
        try:
            item = msgspec.structs.replace(item, metadata=_read_entry(item.metadata))
        except (msgspec.DecodeError, RecursionError):
            return Outcome(number, "ungraded", "bad_metadata", None, None, round(time.perf_counter() - started, 6))
    try:
        result = grade_item(item, may_take_long=may_take_long)
    except MemoryError:
        raise  # nothing in this process can be relied on any more
    except Exception:  # a grader's own mistake: it must not look like the item's
        result = "ungraded", "grader_error", None, None
    if take_violations():
        result = "wrong", "blocked", 0.0, None
        if not _is_harmless(Item(item.task, r"\boxed{0}", item.references, False, item.metadata)):
            result = "ungraded", "blocked", None, None  # the reference's doing
    if result is None:
        seconds = round(time.perf_counter() - started, 6)
        return Outcome(number, DEFERRED, data_set_of(item), None, None, seconds, complexity_of(item), subject_of(item))
    verdict, reason, score, extracted = result
    return Outcome(number, verdict, reason, score, extracted, round(time.perf_counter() - started, 6))


def _is_harmless(item: Item) -> bool:
    """Whether grading it does not try to run code from a string."""
    try:
        grade_item(item, may_take_long=True)
    except MemoryError:
        raise
    except Exception:  # what becomes of the answer does not matter here, only what was tried
        return not take_violations()
    return not take_violations()


def _limit_processor_time(seconds: int) -> None:
    """A second line behind the pool's deadline, should the pool be unable to act."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + seconds + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
