r"""What the rules of grading cost: rows per second of processor time, over those of another commit, in turn within one run.

    python benchmarks/grading_speed.py --against COMMIT [--data ../shared/data] [--rows 1200] [--rounds 3] [--kinds short long hard]

The other commit is one after the pool of processes was made simple (0.2.0). The rows are those of reward_service.py. Each side is
one process, which warms up as a template of workers does and then grades 400 other rows. The two take turns, `--chunk` rows each, one at a time; who is
first changes every turn. Each round begins in a fork of the warm process, so nobody finds a row in a cache. A round's ratio is that of the
processor times of all its turns; the interval is that of the ratio of all rounds' sums. `with problem`: this code is given the text of the problem too, which the other commit may not know.
`pool`: the same rows through a local pool, processor time of all its processes. --list prints the rows on which the verdicts differ.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
KINDS = ("short", "long", "hard")
WARM_UP_ROWS = 400
POOL_CHUNKS = 4  # a turn through the pool has so many times as many rows: it starts and ends with idle workers


# One side, a process of its own


def serve(checkout: Path, rows_file: Path) -> None:
    """Grades what the lines of standard input ask for with the code of `checkout`, and prints seconds and verdicts.

    "begin": a fork, which grades until "end", takes over: each round begins with what a new grading process knows.
    """
    sys.path.insert(0, str(checkout))
    from r3_openrlhf.config import RewardConfig
    from r3_openrlhf.rewards.answers.request import Item
    from r3_openrlhf.rewards.answers.warm_up import warm_up

    rows = json.loads(rows_file.read_text(encoding="utf-8"))
    config = RewardConfig(num_workers=2, timeout_s=20.0)
    warm_up()
    _grade(
        rows.pop("warm-up"), "alone"
    )  # the parser remembers forms; a process that has worked for a minute knows these
    gc.collect()
    gc.freeze()
    print(json.dumps("problem" in Item.__struct_fields__), flush=True)
    for line in sys.stdin:
        kind, start, stop, way = json.loads(line)
        if kind == "begin":
            if child := os.fork():
                os.waitpid(child, 0)
            print(0, flush=True)  # so that nothing is read here before the other process has ended
        elif kind == "end":
            os._exit(0)
        else:
            part = rows[kind][start:stop]
            print(json.dumps(_through_pool(config, part) if way == "pool" else _grade(part, way)), flush=True)


def _grade(rows: list, way: str) -> list:
    from r3_openrlhf.rewards.answers.mathematics import grade
    from r3_openrlhf.rewards.answers.request import Item

    more = [{"problem": row[2]} if way == "with problem" else {} for row in rows]
    items = [Item("math", row[0], (row[1],), False, **extra) for row, extra in zip(rows, more, strict=True)]
    verdicts = []
    started = time.process_time()
    for item in items:
        try:
            verdicts.append(grade(item)[0])
        except Exception as error:  # a worker answers "grader_error"; both sides are only timed here
            verdicts.append(type(error).__name__)
    return [time.process_time() - started, verdicts]


def _through_pool(config, rows: list) -> list:
    import asyncio

    import psutil

    from r3_openrlhf.rewards.answers.request import GradeRequest
    from r3_openrlhf.rewards.client import make_grader

    def processor_seconds() -> float:
        top = psutil.Process()
        return sum(sum(process.cpu_times()[:4]) for process in [top, *top.children(recursive=True)])

    def request(response: str, gold: str) -> GradeRequest:
        return GradeRequest(response=response, references=(gold,), task="math", num_tokens=0, truncated=False)

    async def run() -> list:
        grader = make_grader(config)
        await asyncio.gather(*(grader.grade(request(rf"\boxed{{{i}}}", "1")) for i in range(200)))
        started = processor_seconds()
        grades = await asyncio.gather(*(grader.grade(request(row[0], row[1])) for row in rows))
        seconds = processor_seconds() - started
        grader.close()
        return [seconds, [grade.verdict.value for grade in grades]]

    return asyncio.run(run())


# Both, in turn


class Side:
    """One checkout's process."""

    def __init__(self, checkout: Path, rows_file: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-P", __file__, "--serve", str(checkout), str(rows_file)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.knows_problems = self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"one side ended with code {self._process.wait()}; its error stands above")
        return json.loads(line)

    def say(self, *words: object) -> None:
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def grade(self, kind: str, start: int, stop: int, way: str) -> tuple[float, list[str]]:
        self.say(kind, start, stop, way)
        return self._answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def make_all_rows(data: Path, count: int, kinds: list[str]) -> dict[str, list]:
    """(response, reference, problem) triples of each kind; of hard rows the problem is not known."""
    sys.path.insert(0, str(HERE))
    from benchmarks.reward_service import make_rows, read

    problems = read(data / "math/eval/math500.jsonl") + read(data / "math/train/deepscaler_clean.jsonl")[:5000]
    found = {}
    for kind in kinds:
        rows = make_rows(data, kind, {"short": count, "long": count // 2, "hard": 284}[kind])
        texts = ["" if kind == "hard" else problems[i % len(problems)]["problem"] for i in range(len(rows))]
        found[kind] = [(*row, text) for row, text in zip(rows, texts, strict=True)]
    found["warm-up"] = [(*row, "") for row in make_rows(data, "short", 5400)[-WARM_UP_ROWS:]]
    return found


def measure(new: Side, old: Side, kind: str, rows: list, way: str, chunk: int) -> tuple[float, float, list]:
    """Processor seconds of each side for all rows, in turns, and the rows on which they disagree."""
    size = chunk * POOL_CHUNKS if way == "pool" else chunk
    seconds, others = {new: 0.0, old: 0.0}, []
    for side in (new, old):
        side.grade("begin", 0, 0, way)
    for turn, start in enumerate(range(0, len(rows), size)):
        stop = min(start + size, len(rows))
        verdicts = {}
        for side in (new, old) if turn % 2 else (old, new):
            taken, verdicts[side] = side.grade(kind, start, stop, way if side is new or way == "pool" else "alone")
            seconds[side] += taken
        for row, mine, theirs in zip(rows[start:stop], verdicts[new], verdicts[old], strict=True):
            if mine != theirs:
                others.append((mine, theirs, row[0][-80:], row[1]))
    for side in (new, old):
        side.grade("end", 0, 0, way)
    return seconds[new], seconds[old], others


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", required=True, help="a commit of this repository, or the directory of a checkout")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=1200, help="short rows; half as many long ones; 284 hard ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=50, help="rows of one turn")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--ways", nargs="+", choices=("alone", "with problem", "pool"), default=["alone"])
    parser.add_argument("--list", action="store_true", help="print every row on which the two disagree")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"{options.data} does not exist; give the directory of the data with --data")
    rows = make_all_rows(options.data, options.rows, options.kinds)
    with tempfile.TemporaryDirectory() as directory:
        rows_file, checkout = Path(directory) / "rows.json", Path(options.against)
        rows_file.write_text(json.dumps(rows), encoding="utf-8")
        made = not checkout.is_dir()
        if made:
            checkout = Path(directory) / "checkout"
            subprocess.run(
                ["git", "-C", HERE, "worktree", "add", "--quiet", "--detach", checkout, options.against], check=True
            )
        try:
            compare(options, rows, rows_file, checkout)
        finally:
            if made:
                subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", checkout], check=True)


def interval(rounds: list[tuple[float, float]], resamples: int = 10_000) -> tuple[float, float]:
    """95% of the other side's seconds over ours, both summed over rounds that are drawn with replacement."""
    draw = random.Random(0).choices
    ratios = sorted(
        sum(theirs for _, theirs in sample) / sum(mine for mine, _ in sample)
        for sample in (draw(rounds, k=len(rounds)) for _ in range(resamples))
    )
    return ratios[int(0.025 * resamples)], ratios[int(0.975 * resamples)]


def compare(options: argparse.Namespace, rows: dict[str, list], rows_file: Path, checkout: Path) -> None:
    print(
        f"load average before the start {os.getloadavg()[0]:.1f}; rows per processor second, this code over {options.against}"
    )
    new, old = Side(HERE, rows_file), Side(checkout, rows_file)
    print(f"{'rows':6} {'way':13} {'number':>6} {'other, 1/s':>11} {'ratio':>6}  interval, each round", flush=True)
    for way in options.ways:
        for kind in options.kinds:
            if way == "with problem" and kind == "hard":
                continue
            found = [measure(new, old, kind, rows[kind], way, options.chunk) for _ in range(options.rounds)]
            ratios = [theirs / mine for mine, theirs, _ in found]
            low, high = interval([(mine, theirs) for mine, theirs, _ in found])
            rate = len(rows[kind]) / statistics.median(theirs for _, theirs, _ in found)
            print(
                f"{kind:6} {way:13} {len(rows[kind]):6} {rate:11.0f} {statistics.median(ratios):6.3f}  "
                f"of the sums [{low:.3f}, {high:.3f}]  {' '.join(f'{ratio:.3f}' for ratio in ratios)}; verdicts that differ: {len(found[0][2])}",
                flush=True,
            )
            if options.list:
                for mine, theirs, response, gold in found[0][2]:
                    print(f"    ours {mine}, theirs {theirs}: {response!r} for {gold!r}")
    for side in (new, old):
        side.close()


if __name__ == "__main__":
    main()
