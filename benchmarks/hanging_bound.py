"""How fast benign rows can be graded at best while items hang that nobody can tell from them beforehand.

    python benchmarks/hanging_bound.py [--data ../shared/data] [--rows 4000] [--hanging 80] [--processes 2]

The argument. K items hang and one row needs s seconds; until one of them has run for s seconds nothing tells it from the row. Let a
scheduler be any rule that does not know which is which. In the order in which it brings the K + 1 items to s seconds, the row is
equally likely to stand anywhere. So it has given at least s seconds to K / 2 of the hanging items, in the mean, when the row ends.
On P processors, which have T seconds of benign work in all, the last row ends after T / P + K s / 2 P. Its rate is then T / (T + K s / 2).
For the first rows up to a share, T and s are those of the quickest rows of that share. The program measures both, in this process.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.reward_service import SHARES, make_rows  # noqa: E402
from r3_openrlhf.grading.answers.request import Item  # noqa: E402
from r3_openrlhf.grading.answers.safe_expressions import replace_in_sympy  # noqa: E402
from r3_openrlhf.grading.answers.tasks import grade_item  # noqa: E402
from r3_openrlhf.grading.processes.worker import warm_up  # noqa: E402


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
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"{options.data} does not exist; give the directory of the data with --data")
    replace_in_sympy()
    warm_up()
    rows = make_rows(options.data, "short", options.rows)
    seconds = sorted(processor_seconds(Item("math", response, (gold,), False)) for response, gold in rows)
    print(f"{len(rows)} rows need {sum(seconds):.2f} s of processor time; {options.hanging} items hang")
    print(f"{'share':>6} {'seconds':>8} {'slowest ms':>10} {'ends after at least s':>21} {'rate at most':>12}")
    for share in SHARES:
        quickest = seconds[: max(1, round(share * len(seconds)))]
        work, slowest = sum(quickest), quickest[-1]
        extra = options.hanging * slowest / 2
        print(
            f"{share:6.1%} {work:8.2f} {slowest * 1e3:10.1f} {(work + extra) / options.processes:21.2f}"
            f" {work / (work + extra):12.2f}"
        )


if __name__ == "__main__":
    main()
