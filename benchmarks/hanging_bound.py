"""How fast benign rows can be graded at best while items hang that nobody can tell from them beforehand.

    python benchmarks/hanging_bound.py [--data ../shared/data] [--rows 4000] [--hanging 80]

The argument. K items hang, each of another problem, and one row needs s seconds. Until one of them has run for s seconds, nothing tells
it from the row, if the row is as complex as they are (tasks.complexity_of). Let a scheduler be any rule that does not know which is which.
In the order in which it brings the K + 1 items to s seconds, the row is equally likely to stand anywhere: X, the number of hanging items
before it, is uniform on 0 ... K. All benign work is T seconds of processor time. On P processors it takes T / P without the hanging items,
and at least (T + X s) / P with them, so P cancels: the rate to the last row, with them over without, is at most T / (T + X s).
At the mean, X = K / 2, that is T / (T + K s / 2). The mean of the rate, E[T / (T + X s)], is at least this (Jensen's inequality: the rate
is convex in X); both are printed. s is the largest time of one run in this process, so the bound is an estimate: another run has
another s.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.reward_service import make_rows  # noqa: E402
from r3_openrlhf.grading.answers.request import Item  # noqa: E402
from r3_openrlhf.grading.answers.safe_expressions import replace_in_sympy  # noqa: E402
from r3_openrlhf.grading.answers.tasks import complexity_of, grade_item  # noqa: E402
from r3_openrlhf.grading.processes.worker import warm_up  # noqa: E402
from tests.grading.hostile_payloads import ENDLESS_REFERENCE, endless  # noqa: E402


def processor_seconds(item: Item) -> float:
    """As a grading process needs for it: cheap comparisons, then, where they do not decide, symbolic ones."""
    started = time.process_time()
    if grade_item(item, may_take_long=False) is None:
        grade_item(item, may_take_long=True)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--hanging", type=int, default=80)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"{options.data} does not exist; give the directory of the data with --data")
    replace_in_sympy()
    warm_up()
    hanging = complexity_of(Item("math", rf"\boxed{{{endless(0)}}}", (ENDLESS_REFERENCE,), False))
    items = [
        Item("math", response, (gold,), False) for response, gold in make_rows(options.data, "short", options.rows)
    ]
    seconds = [processor_seconds(item) for item in items]
    alike = [taken for taken, item in zip(seconds, items, strict=True) if complexity_of(item) >= hanging]
    work, slowest = sum(seconds), max(alike, default=0.0)
    print(
        f"{len(items)} rows need {work:.2f} s of processor time; {len(alike)} are as complex as what hangs ({hanging})"
    )
    rates = [work / (work + before * slowest) for before in range(options.hanging + 1)]
    print(
        f"the slowest of those needs {slowest * 1e3:.0f} ms, so {options.hanging} hanging items cost"
        f" {options.hanging * slowest / 2:.2f} s in the mean before it ends: rate {work / (work + options.hanging * slowest / 2):.2f} where"
        f" they cost that, {sum(rates) / len(rates):.2f} in the mean of all orders, at most"
    )


if __name__ == "__main__":
    main()
