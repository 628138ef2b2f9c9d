"""Work of a confined process: one program against one call, or the two sides of a test that is
written as code.

Everything here runs in the process of a hostile program: nothing is trusted that comes out of it.
Standard library only."""

import atexit
import base64
import builtins
import contextlib
import io
import json
import linecache
import os
import resource
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from r3_openrlhf.machine.processes.sandbox import Barriers, set_limits
from r3_openrlhf.rewards.code.asserts import NAME, ProgramGone, failure, run_test, serve_program
from r3_openrlhf.rewards.code.data import (
    JOB,
    MAX_INPUT_BYTES,
    STACK_BYTES,
    NotPlain,
    decode,
    encode,
)

RESULT, LINK = JOB + 1, JOB + 2  # descriptors
THREAD_STACK_BYTES = 2**23  # the C library would give the main thread's size


def run(barriers: Barriers, of_compiler: Barriers) -> None:
    """Read the job, give up what the job has no use for, do it. Does not return."""
    with os.fdopen(JOB, "rb") as file:
        job = json.load(file)
    limits = job["limits"]
    with open("/proc/self/statm", encoding="ascii") as sizes:
        loaded = int(sizes.read().split()[0]) * resource.getpagesize()
    set_limits(
        memory_bytes=2**46
        if job["reserves_memory"]
        else limits["memory_mb"] * 2**20 + STACK_BYTES + loaded,
        file_bytes=limits["output_bytes"],
        open_files=limits["open_files"],
    )
    seconds = int(limits["seconds_per_test"]) + 2  # in case the owner's exact clock is gone
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    (of_compiler if job["kind"] == "compile" else barriers).enter()
    keep = {"serve": LINK, "tests": LINK}.get(job["kind"], RESULT)
    os.closerange(3, RESULT)
    os.closerange(keep + 1, 4096)
    if job["kind"] == "program" and job["command"]:
        _become(job)
    threading.stack_size(THREAD_STACK_BYTES)
    _KINDS[job["kind"]](job)
    os._exit(0)


_OUTPUT = "program"  # of a compiler


def _become(job: dict[str, Any]) -> None:
    """Another language: the program's file is there, this process becomes its command."""
    name, content = job["file"], job["program"].encode("utf-8", "surrogatepass")
    if job["compile"]:
        name, content = _OUTPUT, base64.b85decode(job["program"])
    with open(name, "wb", opener=partial(os.open, mode=0o700)) as file:
        file.write(content)
    command = [word.replace("{file}", name) for word in job["command"]]
    os.execv(command[0], command)


def _compile(job: dict[str, Any]) -> None:
    """Write what the compiler makes of the program to standard output."""
    with open(job["file"], "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(job["program"])
    command = [
        word.replace("{file}", job["file"]).replace("{output}", _OUTPUT)
        for word in job["compile"]
    ]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": os.getcwd()}, stdin=subprocess.DEVNULL, stdout=2
    )
    if done.returncode:
        return report(
            "syntax_error", f"{os.path.basename(command[0])} ended with {done.returncode}"
        )
    with open(_OUTPUT, "rb") as output:
        os.sendfile(1, output.fileno(), 0, os.fstat(output.fileno()).st_size)
    report("finished")


def report(status: str, detail: str = "", value: str = "") -> None:
    """Replace the result: a line with status and detail, then the value, which is encoded."""
    text = f"{json.dumps([status, detail[:300]])}\n{value}".encode()
    os.ftruncate(RESULT, 0)
    done = 0
    while done < len(text):
        done += os.pwrite(RESULT, text[done : done + 2**20], done)


def _load(source: str, name: str) -> tuple[types.ModuleType, types.CodeType]:
    """Make a fresh module and its code. SystemExit after a report: the program cannot be compiled."""
    try:
        code = compile(source, NAME, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        line = getattr(error, "lineno", None)
        report("syntax_error", type(error).__name__ + (f" at line {line}" if line else ""))
        os._exit(0)
    module = types.ModuleType(name)
    module.__file__ = NAME
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules[name] = module
    sys.argv = sys.orig_argv = [NAME]
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdin = stdin
    sys.__stdin__ = stdin  # type: ignore[misc]
    for number, stream in ((1, "stdout"), (2, "stderr")):
        text = io.TextIOWrapper(
            open(number, "wb", closefd=False), encoding="utf-8", errors="surrogateescape"
        )
        text.mode = "w"  # type: ignore[misc]  # PyRival's FastIO reads it
        setattr(sys, stream, text)
        setattr(sys, f"__{stream}__", text)
    return module, code


def _program(job: dict[str, Any]) -> None:
    """Run it as `python solution.py` does: also threads and exit functions."""
    module, code = _load(job["program"], "__main__")
    result = ("finished", "")
    try:
        exec(code, module.__dict__)
    except SystemExit:
        pass  # its code is no verdict
    except BaseException as error:  # whatever a program raises is its own failure
        result = failure(error)
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # the threads that no one joined
        atexit._run_exitfuncs()
    except BaseException as error:
        result = failure(error)
    for stream in (sys.stdout, sys.__stdout__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:  # of a stream that the program closed or made itself
            pass
    report(*result)


def _function(job: dict[str, Any]) -> None:
    """Call a function, or a method of `class Solution`, with arguments."""
    module = _imported(job)
    function, solution = vars(module).get(job["function"]), vars(module).get("Solution")
    if not job["exact"] and isinstance(solution, type) and hasattr(solution, job["function"]):
        function = getattr(solution(), job["function"])
    if function is None:
        return report("error", f"there is no function {job['function'][:80]}")
    try:
        value = encode(
            function(*decode(job["arguments"], max_bytes=MAX_INPUT_BYTES)), exact=job["exact"]
        )
    except NotPlain as error:
        report("error", f"it returned {error}")
    except BaseException as error:
        report(*failure(error))
    else:
        report("finished", value=value)


def _imported(job: dict[str, Any]) -> types.ModuleType:
    """Import the program as a module. SystemExit after a report: it raises something."""
    module, code = _load(job["program"], "solution")
    if job["usual_names"]:
        builtins.__dict__.update(_USUAL_NAMES)  # found last, so they hide nothing
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        report(*failure(error))
        os._exit(0)
    return module


# names that function tasks leave out: `List`, `deque`, `inf`, and modules; of two the last
_USUAL_NAMES: dict[str, object] = {}
for _module in [
    "operator",
    "math",
    "bisect",
    "heapq",
    "functools",
    "itertools",
    "collections",
    "typing",
]:
    exec(f"from {_module} import *", _USUAL_NAMES)
exec(
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string",
    _USUAL_NAMES,
)
_USUAL_NAMES = {
    name: value for name, value in _USUAL_NAMES.items() if not hasattr(builtins, name)
}


def _serve(job: dict[str, Any]) -> None:
    """Serve the program's side of tests that are code. The other side reports its result."""
    module = _imported(job)
    with contextlib.suppress(ProgramGone):  # the tests are over
        serve_program(LINK, module)


_KINDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "program": _program,
    "compile": _compile,
    "function": _function,
    "serve": _serve,
    # what the tests' side reports is the verdict; nothing of a program runs there
    "tests": lambda job: report(*run_test(LINK, job["setup"], job["test"], job["names"])),
}
