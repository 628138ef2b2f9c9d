"""The whole suite again and again: in its order, in reverse, in a random order; every second run on busy cores.

    python tools/repeat_tests.py 10 [pytest's arguments]        `make test-repeat N=10` calls this

One line per run, also in build/repeat_tests.txt; the outputs lie beside it. Exit code 1 when any run failed. Ten runs take hours:
called again, it goes on behind the runs of the same files with the same arguments that this table has or, on another machine, the copy
of it that is committed as docs/repeat_tests.txt.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ORDERS = {"as written": [], "reverse": ["--reverse"], "random": ["--random-order"]}
BUSY_LOOPS = 2
FAILED = ", FAILED"
ROOT = Path(__file__).parents[1]
OUT = ROOT / "build"
COPY = "docs/repeat_tests.txt"


@contextlib.contextmanager
def busy(loops: int):
    """`loops` processes that do nothing but use a core, as long as this one lives."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(loops)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def options_of(run: int) -> tuple[str, list[str]]:
    """The order of run 1, 2, ...: its name, and pytest's arguments. Every random order has a seed of its own."""
    order = list(ORDERS)[(run - 1) % len(ORDERS)]
    seed = [f"--random-order-seed={run}"] if order == "random" else []
    return " ".join([order, *(["seed", str(run)] if seed else [])]), [*ORDERS[order], *seed]


def unchanged_since(commit: str) -> bool:
    """Are the files that git knows those of `commit`? The copy of the table does not matter."""
    command = ["git", "diff", "--quiet", commit, "--", ".", f":(exclude){COPY}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def runs_before(arguments: list[str]) -> tuple[str, list[str]]:
    """What the runs are of, and the lines of those that were made of it before."""
    for table in (OUT / "repeat_tests.txt", ROOT / COPY):
        first, *lines = table.read_text().splitlines() if table.exists() else [""]
        commit, _, pytest = first.removeprefix("commit ").partition(", pytest ")
        if pytest == shlex.join(arguments) and unchanged_since(commit):
            return first, lines
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if head.returncode == 0 and unchanged_since("HEAD"):
        return f"commit {head.stdout.strip()}, pytest {shlex.join(arguments)}", []
    return "files that were changed, or no commit", []


def main(runs: int, arguments: list[str]) -> int:
    OUT.mkdir(exist_ok=True)
    subject, before = runs_before(arguments)
    before = before[:runs]
    failed = sum(line.endswith(FAILED) for line in before)
    with (OUT / "repeat_tests.txt").open("w") as table:
        print(subject, *before, sep="\n", file=table, flush=True)
        if before:
            print(f"{len(before)} runs of before count", *before, sep="\n", flush=True)
        for run in range(len(before) + 1, runs + 1):
            order, options = options_of(run)
            loops = BUSY_LOOPS if run % 2 == 0 else 0
            command = [sys.executable, "-m", "pytest"]
            started = time.monotonic()
            with (OUT / f"repeat_tests_{run}.log").open("w") as log, busy(loops):
                code = subprocess.run(
                    [*command, *options, *arguments], stdout=log, stderr=subprocess.STDOUT
                ).returncode
            last = (OUT / f"repeat_tests_{run}.log").read_text().strip().splitlines()[-1].strip("= ")
            failed += code != 0
            line = f"run {run}, {order}, {loops} busy loops: {last} ({time.monotonic() - started:.0f} s in all)"
            line += FAILED if code else ""
            print(line, flush=True)
            print(line, file=table, flush=True)
    print(f"{runs} runs, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
