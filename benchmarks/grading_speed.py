"""How fast the grader is beside that of another checkout: ratios of processor time, above 1 where ours is faster.

    python benchmarks/grading_speed.py --before CHECKOUT [--repetitions 15]

Short rows: a number in a box, and wrong ones. Long rows: a worked solution of about 3,000 characters before the box. Hard rows: the
pairs of the test tables, most of which need the libraries. Each checkout is loaded in a process of its own, and the two take
turns with every repetition, so that whatever else the machine does meets both. No row is the same twice, so that no cache of
whole answers helps; a row's number is the median over the repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TABLES = HERE / "tests/rewards/answers"
NUM_SHORT, NUM_LONG, NUM_HARD = 400, 100, 120

# Reads lists of [response, reference], one a line, and prints the seconds of processor time that each list took.
WORKER = """
import json, sys, time
from r3_openrlhf.rewards.answers.mathematics import grade_mathematics
from r3_openrlhf.rewards.answers.warm_up import warm_up
warm_up()
for line in sys.stdin:
    rows = json.loads(line)
    start = time.process_time()
    for response, reference in rows:
        grade_mathematics(response, (reference,), False)
    print(time.process_time() - start, flush=True)
"""


def rows_of(kind: str, repetition: int) -> list[tuple[str, str]]:
    """Rows of one kind, others in each repetition."""
    first = 1_000_000 + 10_000 * repetition
    if kind == "short":
        return [
            (rf"So the answer is $\boxed{{{first + i}}}$.", str(first + i + (i % 3 == 0))) for i in range(NUM_SHORT)
        ]
    if kind == "long":
        step = "We add the two sides, so that $x^2 + 2x = 3$, and then $(x+1)^2 = 4$ (as above).\n"
        return [
            (step * 36 + rf"Therefore \[x = \frac{{{first + i}}}{{7}}.\] So it is \boxed{{\frac{{{first + i}}}{{7}}}}.",
             rf"\frac{{{first + i + (i % 3 == 0)}}}{{7}}")
            for i in range(NUM_LONG)
        ]  # fmt: skip
    lines = (TABLES / "pairs_correct.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" === ") for line in lines if "\\" in line]
    start = repetition * NUM_HARD % len(pairs)
    return [(rf"\boxed{{{answer}}}", reference) for answer, reference in (pairs + pairs)[start : start + NUM_HARD]]


def worker(checkout: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=environment, cwd=checkout, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def seconds(process: subprocess.Popen, rows: list) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(rows) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="another checkout of this project")
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    ours, theirs = worker(HERE), worker(options.before.resolve())
    print(f"{'rows':6} {'ours, ms a row':>15} {'before':>8} {'ratio':>6}")
    for kind in ("short", "long", "hard"):
        times: tuple[list[float], list[float]] = ([], [])
        for repetition in range(options.repetitions):
            rows = rows_of(kind, repetition)
            for which in (0, 1) if repetition % 2 else (1, 0):
                times[which].append(1000 * seconds((ours, theirs)[which], rows) / len(rows))
        ratio = statistics.median(before / now for now, before in zip(*times, strict=True))
        print(
            f"{kind:6} {statistics.median(times[0]):15.3f} {statistics.median(times[1]):8.3f} {ratio:6.2f}", flush=True
        )
    for process in (ours, theirs):
        process.communicate("")


if __name__ == "__main__":
    main()
