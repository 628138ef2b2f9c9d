"""The whole suite again and again: in its order, in reverse, in a random order; half of the runs on busy cores.

    python tools/repeat_tests.py 10 [pytest's arguments]        `make test-repeat N=10` calls this

One line per run, also in build/repeat_tests.txt; the outputs lie beside it. Exit code 1 when any run failed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

ORDERS = {"as written": [], "reverse": ["--reverse"], "random": ["--random-order"]}
BUSY_LOOPS = 2
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


def main(runs: int, arguments: list[str]) -> int:
    OUT.mkdir(exist_ok=True)
    failed = 0
    with (OUT / "repeat_tests.txt").open("w") as table:
        for run in range(1, runs + 1):
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
            print(line, flush=True)
            print(line, file=table, flush=True)
    print(f"{runs} runs, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
