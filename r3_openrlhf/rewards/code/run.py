"""Running a program of hostile origin: a confined process for each test, which holds nothing that
it is compared with.

    run_program(program, [Call(stdin="1 2\\n"), Call(stdin="3 4\\n")], limits=Limits())

The caller holds the expected outputs. Below it is a zygote (zygote.py): a new interpreter in
namespaces of its own, which never sees a program. It forks a process for each test, and enters
Landlock, seccomp and limits before it runs anything. The test's input and the program reach it by a
file in memory; its output and result return the same way, and is read when it is gone."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from r3_openrlhf.machine.processes.fork_server import Clock, ForkServer, kill, pid_of
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.code.barriers import SYSTEM_PROGRAMS, floor_gap, namespace_command
from r3_openrlhf.rewards.code.data import MAX_INPUT_BYTES, MAX_VALUE_BYTES, NotPlain, encode
from r3_openrlhf.rewards.code.languages import LANGUAGES, Language

logger = logging.getLogger(__name__)

LOOK_S = 0.05  # at what a program uses
ATTEMPTS = 2  # at a test whose process was not to be had
MAX_BOX_FILES = 256
COMPILE_S = 20.0
WALL_FACTOR = 20.0  # without a processor for so many limits: no outcome
MAX_DETAIL_CHARS = 300
ENVIRONMENT = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OPENSSL_CONF": "/dev/null",  # node ends where its own exists and cannot be read
}
_OF_PROGRAMS = ("finished", "error", "syntax_error", "memory", "blocked")  # said by the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One test's input, and never what is expected of a call.

    With function and test the call alone is made, and its value keeps types that JSON lacks
    (data.py)."""

    stdin: str | None = None  # a program's standard input
    # or a function, or a method of `class Solution`, called with arguments
    function: str | None = None
    arguments: tuple[Any, ...] = ()
    # or Python, in a process of its own, whose calls of the program are forwarded (asserts.py)
    test: str | None = None
    setup: str = ""  # goes before it
    names: tuple[str, ...] = ()  # those of the program that it uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one test, and `seconds` all tests of a program together."""

    seconds_per_test: float = 6.0  # the process's own time, waiting for a processor aside
    seconds: float = 60.0  # the same
    memory_mb: int = 1024  # resident
    output_bytes: int = 2**25  # standard output, and each file
    open_files: int = 64
    threads: int = 128  # at one time


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one call."""

    # "finished", "error", "syntax_error", "timeout", "memory", "output" (over output_bytes), "blocked" (forbidden),
    # "crashed" (it ended by itself), "unavailable" (no verdict: no process, or none with a processor)
    status: str
    stdout: str = ""
    # what the function returned, as data.encode wrote it, or a test's `true` or `false`
    value: str = ""
    # type of the exception and line of the program, to be shown, as the program may have written it; nothing of a test
    detail: str = ""
    cpu_s: float = 0.0  # processor time


_BOOTSTRAP = (
    "import sys; sys.dont_write_bytecode = True; sys.path.append(sys.argv[1]);"
    " from r3_openrlhf.rewards.code.zygote import start; start(sys.argv[2:])"
)


def run_program(
    program: str,
    calls: Sequence[Call],
    *,
    limits: Limits | None = None,
    language: str = "python",
) -> Iterator[Outcome]:
    """One outcome per call, in order; each call has processes of its own, which start when its
    outcome is asked for.

    language: an entry of LANGUAGES, or the import path of a Language.

    Raises:
        ConfigError: there is no such language, or calls are no standard input for it.
    """
    runner = _runner(language)
    if LANGUAGES[language].command and any(call.stdin is None for call in calls):
        raise ConfigError(
            "only python has functions and tests to call; give standard input to a program"
        )
    return runner.run_program(program, calls, limits=limits or Limits())


_of_thread = threading.local()


def _runner(language: str) -> Runner:
    """Return this thread's runner; a fork of this process has its own."""
    runners: dict[tuple[int, str], Runner] = _of_thread.__dict__.setdefault("runners", {})
    key = os.getpid(), language
    if key not in runners:
        runners[key] = Runner(LANGUAGES[language])
    return runners[key]


@dataclass(slots=True)
class _Child:
    """A process at work, or one that has ended."""

    number: int
    pidfd: int
    limit_s: float
    files: dict[str, int]
    clock: Clock = field(default_factory=Clock)
    task: int = 0  # its pid at the start, by which its clock knows it
    started: float = field(default_factory=time.monotonic)
    killed: str = ""  # why
    ended: dict[str, Any] | None = None

    def end(self, why: str) -> None:
        self.killed = self.killed or why
        kill(self.pidfd)


class Runner(contextlib.AbstractContextManager["Runner"]):
    """One zygote, and one program at a time. Not for several threads.

    namespaces: "bubblewrap", "unshare" or "none"; None takes the first of them that works here.
    """

    def __init__(
        self, language: Language | None = None, *, namespaces: str | None = None
    ) -> None:
        self._language = language or Language()
        self._wanted = namespaces
        self._zygote: ForkServer | None = None
        self._box: str | None = None
        self._memfds = contextlib.ExitStack()
        self.barriers: dict[str, str | bool] = {}

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """OSError: no process can be started, or barriers are too weak; no program runs."""
        if (compiler := self._language.compile[:1]) and not os.path.exists(compiler[0]):
            raise OSError(f"{compiler[0]} is not installed here")
        if self._zygote is None:
            self._start()
        if gap := floor_gap(self.barriers):
            raise OSError(gap)

    def _start(self) -> None:
        name, command, box = namespace_command(self._wanted, visible=self._language.paths)
        owned = box is None
        if box is None:
            box = self._box = tempfile.mkdtemp(prefix="r3-code-")
        package = str(Path(__file__).absolute().parents[3])
        executable = (*self._language.paths, *SYSTEM_PROGRAMS) if self._language.command else ()
        executable += (box,) if self._language.compile else ()
        arguments = json.dumps(
            [box, owned, name == "unshare", asdict(self._language), executable]
        )
        self._zygote = ForkServer(
            _BOOTSTRAP, package, arguments, environment=ENVIRONMENT, command=command
        )
        try:
            layers = self._zygote.wait_until_ready()["layers"]
        except OSError:
            self.close()
            raise
        self.barriers = {"namespaces": "" if name == "none" else name, **layers}

    def close(self) -> None:
        """End the zygote and, with it, what it runs. The next program starts another one."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        if self._box is not None:
            shutil.rmtree(self._box, ignore_errors=True)
            self._box = None

    __del__ = close

    def run_program(
        self, program: str, calls: Sequence[Call], *, limits: Limits
    ) -> Iterator[Outcome]:
        """Do as the function does."""
        left_s = limits.seconds
        if self._language.compile:
            compiled, _ = self._attempt(partial(self._compiled, program, limits))
            if compiled.status != "finished":
                yield from [compiled] * len(calls)
                return
            program = base64.b85encode(compiled.stdout.encode("latin-1")).decode()
        for call in calls:
            if left_s <= 0:
                yield Outcome(status="timeout", detail="the time for all tests was used up")
                continue
            limit_s = min(limits.seconds_per_test, left_s)
            outcome, seconds = self._attempt(
                partial(self._run_call, program, call, limits, limit_s)
            )
            left_s -= limit_s if outcome.status == "timeout" else max(seconds, outcome.cpu_s)
            yield outcome

    def _compiled(self, program: str, limits: Limits) -> tuple[Outcome, float]:
        """stdout: the bytes of the program, one a character."""
        limits = replace(limits, seconds_per_test=max(limits.seconds_per_test, COMPILE_S))
        child = self._fork(
            {"kind": "compile", "program": program}, "", limits, limits.seconds_per_test
        )
        self._watch([child], limits)
        return self._outcome(
            child, "compile", limits, encoding="latin-1"
        ), child.clock.seconds()

    def _run_call(
        self, program: str, call: Call, limits: Limits, limit_s: float
    ) -> tuple[Outcome, float]:
        if call.test is not None and call.function is None:
            return self._run_test(program, call, limits, limit_s)
        job: dict[str, Any] = {"kind": "program", "program": program}
        is_of_test = call.test is not None
        if call.function is not None:
            try:
                arguments = encode(list(call.arguments), exact=True, max_bytes=MAX_INPUT_BYTES)
            except NotPlain as error:
                return Outcome(status="unavailable", detail=f"the arguments have {error}"), 0.0
            job |= {
                "kind": "function",
                "function": call.function,
                "arguments": arguments,
                "exact": is_of_test,
            }
        # what a row calls by name may lack imports, as the editor of its contest has them
        child = self._fork(
            job | {"usual_names": not is_of_test}, call.stdin or "", limits, limit_s
        )
        self._watch([child], limits)
        return self._outcome(child, job["kind"], limits), child.clock.seconds()

    def _run_test(
        self, program: str, call: Call, limits: Limits, limit_s: float
    ) -> tuple[Outcome, float]:
        serve = {"kind": "serve", "program": program, "usual_names": False}
        test = {"kind": "tests", "setup": call.setup, "test": call.test, "names": call.names}
        ours, theirs = socket.socketpair()
        with ours, theirs:
            served = self._fork(serve, "", limits, limit_s, theirs.fileno())
            tests = self._fork(test, "", limits, limit_s, ours.fileno())
        self._watch([tests, served], limits)
        of_test, of_program = (
            self._outcome(tests, "tests", limits),
            self._outcome(served, "serve", limits),
        )
        ended_it = of_test.status != "finished" and of_program.status not in (
            "over",
            "finished",
        )
        decisive = of_program if ended_it else of_test
        cpu_s = decisive.cpu_s + of_program.cpu_s
        return replace(decisive, stdout="", cpu_s=cpu_s), tests.clock.seconds()

    def _attempt(self, work: Callable[[], tuple[Outcome, float]]) -> tuple[Outcome, float]:
        """Return an outcome and its time. Try again when neither program nor test caused it."""
        outcome, seconds = Outcome(status="unavailable"), 0.0
        for _ in range(ATTEMPTS):
            try:
                self.start()
                outcome, seconds = work()
            except (OSError, ValueError) as error:  # no zygote or descriptor
                logger.debug("a test has no outcome: %s", error)
                self.close()
                outcome = Outcome(status="unavailable", detail=str(error)[:MAX_DETAIL_CHARS])
            finally:
                self._memfds.close()
            if outcome.status != "unavailable":
                break
        return outcome, seconds

    def _memfd(self, name: str, content: bytes = b"") -> int:
        descriptor = os.memfd_create(name)
        self._memfds.callback(os.close, descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _fork(
        self,
        job: dict[str, Any],
        stdin: str,
        limits: Limits,
        limit_s: float,
        link: int | None = None,
    ) -> _Child:
        assert self._zygote is not None
        job = {**asdict(self._language), **job, "limits": asdict(limits)}
        files = {
            "stdin": self._memfd("stdin", stdin.encode("utf-8", "surrogatepass")),
            "stdout": self._memfd("stdout"),
            "job": self._memfd("job", json.dumps(job).encode()),
            "result": self._memfd("result"),
        }
        number, pidfd = self._zygote.fork(*files.values(), *([] if link is None else [link]))
        self._memfds.callback(os.close, pidfd)
        return _Child(number, pidfd, limit_s, files, task=pid_of(pidfd))

    def _watch(self, children: Sequence[_Child], limits: Limits) -> None:
        """Wait for all; kill what uses too much, and all with the first. OSError: no zygote."""
        assert self._zygote is not None
        clock = Clock(*(child.task for child in children), "thread-self")
        for child in children:
            child.clock = clock
        waiting = list(children)
        while waiting:
            nearest = min(child.limit_s - child.clock.seconds() for child in waiting)
            end = self._zygote.next_end(min(LOOK_S, nearest))
            if end is None:
                for child in waiting:
                    self._look(child, limits)
                continue
            ended = next((child for child in waiting if child.number == end["number"]), None)
            if ended is None:
                continue  # of a test that was given up
            ended.ended = end
            clock.learn(ended.task, end["waited_s"])
            waiting.remove(ended)
            if ended is children[0]:
                for child in waiting:
                    child.end("over")

    def _look(self, child: _Child, limits: Limits) -> None:
        pid = pid_of(child.pidfd)
        why = ""
        try:
            schedule = Path(f"/proc/{pid}/schedstat")  # which some kernels do not have
            ran_s = int(schedule.read_text().split()[0]) / 1e9 if schedule.exists() else 0.0
            status = Path(f"/proc/{pid}/status").read_text()
            numbers = {
                line.split(":")[0]: line.split()[1]
                for line in status.splitlines()
                if len(line.split()) > 1
            }
            if int(numbers.get("Threads", 0)) > limits.threads:
                why = "blocked"
            if int(numbers.get("VmRSS", 0)) > limits.memory_mb * 1024:
                why = "memory"
        except (OSError, ValueError):
            return  # it has just ended
        if self._box is not None and _box_bytes(self._box) > limits.output_bytes:
            why = "output"
        # on a busy machine the clock, which waits for this thread too, may stand still
        if max(child.clock.seconds(), ran_s) >= child.limit_s:
            why = "timeout"
        elif time.monotonic() - child.started > WALL_FACTOR * limits.seconds_per_test:
            why = "unavailable"
        if why:
            child.end(why)

    def _outcome(
        self, child: _Child, kind: str, limits: Limits, encoding: str = "utf-8"
    ) -> Outcome:
        assert child.ended is not None
        cpu_s = round(child.ended["cpu_s"], 6)
        stdout_bytes = os.fstat(child.files["stdout"]).st_size
        stdout = os.pread(child.files["stdout"], limits.output_bytes, 0).decode(
            encoding, "replace"
        )
        code = os.waitstatus_to_exitcode(child.ended["status"])
        # it may have ended by itself just before it was to be killed
        status, detail, value = child.killed if code == -signal.SIGKILL else "", "", ""
        if not status and stdout_bytes >= limits.output_bytes:
            status = "output"
        if not status and code == -signal.SIGKILL:
            # by the limit, or by a kernel short of memory
            status = "timeout" if cpu_s >= limits.seconds_per_test else "unavailable"
        if not status and code < 0:
            status = "crashed"
            detail = next(
                (known.name for known in signal.Signals if known == -code), f"signal {-code}"
            )
        if not status:
            status, detail, value = _said(child.files["result"], kind, code)
        return Outcome(status=status, stdout=stdout, value=value, detail=detail, cpu_s=cpu_s)


def _said(result: int, kind: str, code: int) -> tuple[str, str, str]:
    """Status, detail and value as the child wrote them, or as its end implies."""
    text = os.pread(result, 2 * MAX_VALUE_BYTES, 0)
    if not text:
        if kind in ("program", "serve") and code == 0:
            return "finished", "", ""  # os._exit(0), once everything is printed
        return "crashed", "the process ended early", ""
    try:
        head, _, value = text.decode().partition("\n")
        status, detail = json.loads(head)
        if status not in _OF_PROGRAMS or not isinstance(detail, str):
            raise ValueError(status)
    except (ValueError, TypeError, RecursionError):
        return "crashed", "its result is no plain data", ""
    return (
        status,
        ascii(detail)[1:-1][:MAX_DETAIL_CHARS],
        value if status == "finished" and kind != "program" else "",
    )


def _box_bytes(box: str) -> int:
    """Bytes of its files; more than any limit if there are too many files."""
    with contextlib.suppress(FileNotFoundError), os.scandir(box) as files:
        entries = [*itertools.islice(files, MAX_BOX_FILES)]
        total = sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        return total if len(entries) < MAX_BOX_FILES else sys.maxsize
    return 0
