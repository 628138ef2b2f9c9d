"""The whole suite again and again: in its order, in reverse, in a random order; half of the runs on busy cores.

    python tools/repeat_tests.py 10 [pytest's arguments]        `make test-repeat N=10` calls this

One line per run, also in build/repeat_tests.txt; the outputs lie beside it. Exit code 1 when any run failed. Ten runs take hours:
called again, it goes on behind the runs that the table has, if they are of this commit and these arguments and nothing has been changed.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from pathlib import Path

ORDERS = {"as written": [], "reverse": ["--reverse"], "random": ["--random-order"]}
BUSY_LOOPS = 2
FAILED = ", FAILED"
OUT = Path(__file__).parents[1] / "build"


@contextlib.contextmanager
def busy(loops: int):
    """`loops` processes that do nothing but use a core."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def options_of(run: int) -> tuple[str, list[str]]:
    """The order of run 1, 2, ...: its name, and pytest's arguments. Every random order has a seed of its own."""
    order = list(ORDERS)[(run - 1) % len(ORDERS)]
    seed = [f"--random-order-seed={run}"] if order == "random" else []
    return " ".join([order, *(["seed", str(run)] if seed else [])]), [*ORDERS[order], *seed]


def tested(arguments: list[str]) -> str | None:
    """What the runs are of: the commit and pytest's arguments; None where the files are not those of a commit."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
    )
    if described.returncode != 0 or described.stdout.strip().endswith("-dirty"):
        return None
    return f"commit {described.stdout.strip()}, pytest {shlex.join(arguments)}"


def main(runs: int, arguments: list[str]) -> int:
    OUT.mkdir(exist_ok=True)
    subject, before = tested(arguments), []
    if subject is not None and (OUT / "repeat_tests.txt").exists():
        first, *lines = (OUT / "repeat_tests.txt").read_text().splitlines() or [""]
        before = lines[:runs] if first == subject else []
    failed = sum(line.endswith(FAILED) for line in before)
    with (OUT / "repeat_tests.txt").open("w") as table:
        print(subject or "files that were changed, or no commit", *before, sep="\n", file=table, flush=True)
        if before:
            print(f"{len(before)} runs of before count", *before, sep="\n", flush=True)
        for run in range(len(before) + 1, runs + 1):
            order, options = options_of(run)
            loops = BUSY_LOOPS if run > runs / 2 else 0
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
