"""How fast benign rows can be graded at best while items hang that nobody can tell from them beforehand.

    python benchmarks/hanging_bound.py [--data ../shared/data] [--rows 4000] [--hanging 80]

The argument. K items hang, each of another problem, and one row needs s seconds. Until one of them has run for s seconds, nothing tells
it from the row, if the row is as complex as they are (tasks.complexity_of). Let a scheduler be any rule that does not know which is which.
In the order in which it brings the K + 1 items to s seconds, the row is equally likely to stand anywhere. So in the mean it has given
s seconds to K / 2 of the hanging items when the row ends. All benign work is T seconds: the rate to the last row, with the hanging
items over without them, is at most T / (T + K s / 2), on any number of processors. Measured in this process.
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
    print(
        f"the slowest of those needs {slowest * 1e3:.0f} ms, so {options.hanging} hanging items cost at least"
        f" {options.hanging * slowest / 2:.2f} s before it ends: rate at most {work / (work + options.hanging * slowest / 2):.2f}"
    )


if __name__ == "__main__":
    main()
