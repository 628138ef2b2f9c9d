"""Rows per second of the grading pool, of a reward function and of the reward service, beside math-verify and OpenRLHF's in-thread
function.

    python benchmarks/reward_service.py [--data ../shared/data] [--rows 4000] [--memory-items 100000] [--parts ...] [--hanging one_problem --where local_pool ...]

Rows are references of MATH-500 and DeepScaleR with a right or a wrong answer in a box: `short` (one sentence), `long` (24,000
characters of thinking before it); `hard` are the pairs of the vectors file. No row occurs twice. Everything is measured
in one run; ratios are to a loop over math-verify in one process on the same rows. On a machine that others use as well, the
second ratio says more: rows per second of processor time, of all processes together.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from r3_openrlhf.config import RewardConfig  # noqa: E402
from r3_openrlhf.method.types import Verdict  # noqa: E402
from r3_openrlhf.rewards.answers.request import GradeRequest  # noqa: E402
from r3_openrlhf.rewards.client import make_grader  # noqa: E402
from tests.rewards.hostile_payloads import ENDLESS, ENDLESS_REFERENCE, endless  # noqa: E402
from tests.rewards.server.service import running  # noqa: E402

Row = tuple[str, str]  # response, reference
THINKING_CHARS = 24_000
SERVICE_OPTIONS = ("--workers", "2", "--timeout", "2", "--max-pending", "100000")
SHARES = (0.9, 0.99, 0.995, 1.0)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_rows(data: Path, kind: str, count: int) -> list[Row]:
    rng = random.Random(0)
    if kind == "hard":
        pairs = [(row["prediction"], row["gold"]) for row in read(data / "grader/vectors.jsonl")]
        return [
            (f"{pairs[i % len(pairs)][0]}" + " " * (i // len(pairs)), pairs[i % len(pairs)][1]) for i in range(count)
        ]
    problems = read(data / "math/eval/math500.jsonl") + read(data / "math/train/deepscaler_clean.jsonl")[:5000]
    solutions = [row["response"] for row in read(data / "grader/outputs_rho_math500.jsonl")]
    rows = []
    for i, row in zip(range(count), itertools.cycle(problems), strict=False):
        answer = row["answer"] if i % 2 else rng.choice(problems)["answer"]
        response = f"Row {i}: the answer is $\\boxed{{{answer}}}$."
        if kind == "long":
            thinking = ""
            while len(thinking) < THINKING_CHARS:
                thinking += rng.choice(solutions) + "\nWait, let me check that.\n"
            response = f"<think>{thinking[:THINKING_CHARS]}</think>\n{response}"
        rows.append((response, row["answer"]))
    return rows


def requests_of(rows: list[Row]) -> list[GradeRequest]:
    return [
        GradeRequest(response=response, references=(gold,), task="math", num_tokens=100, truncated=False)
        for response, gold in rows
    ]


# Others, each in a process of its own


def math_verify_loop(rows: list[Row]) -> tuple[float, float]:
    """Seconds, and seconds of processor time. Its time-outs are off: they cost a signal per call, and these rows end by themselves."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def grade(response: str, gold: str) -> bool:
        return verify(
            parse(f"${gold}$", parsing_timeout=None), parse(response, parsing_timeout=None), timeout_seconds=None
        )

    for response, gold in rows[:20]:
        grade(response, gold)
    started, started_cpu = time.perf_counter(), time.process_time()
    for response, gold in rows:
        grade(response, gold)
    return time.perf_counter() - started, time.process_time() - started_cpu


def openrlhf_in_threads(rows: list[Row]) -> tuple[float, float]:
    """Seconds, and seconds of processor time. As SingleTurnAgentExecutor calls a reward function: asyncio.to_thread, one sample each."""
    from openrlhf.utils.math_utils import extract_boxed_answer, grade_answer

    def reward_func(response: str, gold: str) -> bool:
        return bool(grade_answer(extract_boxed_answer(response) or response, gold))

    async def run() -> tuple[float, float]:
        await asyncio.gather(*(asyncio.to_thread(reward_func, *row) for row in rows[:20]))
        started, started_cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(asyncio.to_thread(reward_func, *row) for row in rows))
        return time.perf_counter() - started, time.process_time() - started_cpu

    return asyncio.run(run())


def in_another_process(function, rows: list[Row]) -> tuple[float, float]:
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        return processes.apply(function, (rows,))


# Ours


async def grade_all(grader, requests: list[GradeRequest]) -> list:
    return await asyncio.gather(*map(grader.grade, requests))


def processor_seconds(pid: int | None = None) -> float:
    """Of a process and all below it, those that have ended included."""
    top = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:4]) for process in [top, *top.children(recursive=True)])


def ours(config: RewardConfig, requests: list[GradeRequest]) -> tuple[float, float]:
    """Seconds, and seconds of processor time: of this process and all below it, a service that it started included."""

    async def run() -> tuple[float, float]:
        grader = make_grader(config)
        await grade_all(grader, requests_of([(f"\\boxed{{{i}}}", "1") for i in range(200)]))
        started, started_cpu = time.perf_counter(), processor_seconds()
        await grade_all(grader, requests)
        seconds = time.perf_counter() - started, processor_seconds() - started_cpu
        grader.close()
        return seconds

    return asyncio.run(run())


@contextmanager
def fresh(where: str) -> Iterator[RewardConfig]:
    """A pool or a service that has seen nothing yet, so that a second run does not find the caches of the first."""
    if where == "local_pool":
        yield RewardConfig(num_workers=2, timeout_s=2.0)
    else:
        with running(*SERVICE_OPTIONS) as service:
            yield RewardConfig(urls=[service.url], timeout_s=2.0)


def hanging_items(where: str, rows: list[Row], hanging_rows: list[Row]) -> tuple[list[float], list[float], float]:
    """Seconds until each benign row was answered, alone; with 2% hanging ones among them; until those were answered too."""

    async def run(config: RewardConfig, with_hanging: bool) -> tuple[list[float], float]:
        grader = make_grader(config)
        await grade_all(grader, requests_of([("\\boxed{1}", "2")] * 50))
        hanging, benign, seconds = [], [], []
        started = time.perf_counter()

        async def timed(request: GradeRequest) -> None:
            grade = await grader.grade(request)
            if grade.verdict is Verdict.UNGRADED and grade.reason == "timeout":
                raise RuntimeError(f"a benign row was taken for a hanging one: {request}")
            seconds.append(time.perf_counter() - started)

        for i, request in enumerate(requests_of([(f"{with_hanging} {response}", gold) for response, gold in rows])):
            if with_hanging and i % 50 == 0:
                response, gold = hanging_rows[i // 50 % len(hanging_rows)]
                bad = requests_of([(f"{i} {response}", gold)])[0]
                hanging.append(asyncio.create_task(grader.grade(bad)))
            benign.append(asyncio.create_task(timed(request)))
        await asyncio.gather(*benign)
        await asyncio.gather(*hanging)
        everything = time.perf_counter() - started
        grader.close()
        return seconds, everything

    with fresh(where) as config:
        alone, _ = asyncio.run(run(config, False))
    with fresh(where) as config:
        mixed, everything = asyncio.run(run(config, True))
    return alone, mixed, everything


def latency_at_half_load(config: RewardConfig, rows: list[Row], rate: float) -> list[float]:
    """Seconds of each row when rows arrive one by one, evenly, at `rate` a second."""

    async def timed(grader, request: GradeRequest) -> float:
        started = time.perf_counter()
        await grader.grade(request)
        return time.perf_counter() - started

    async def run() -> list[float]:
        grader = make_grader(config)
        await grade_all(grader, requests_of([("\\boxed{1}", "2")] * 50))
        loop, tasks = asyncio.get_running_loop(), []
        started = loop.time()
        for i, request in enumerate(requests_of(rows)):
            await asyncio.sleep(max(0.0, started + i / rate - loop.time()))
            tasks.append(asyncio.create_task(timed(grader, request)))
        seconds = await asyncio.gather(*tasks)
        grader.close()
        return seconds

    return asyncio.run(run())


def tree_mb(pid: int) -> float:
    """Unique memory of a process and all below it, in MB."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_full_info().uss for process in processes) / 2**20


def memory_over_time(config: RewardConfig, pid: int, rows: list[Row], items: int) -> list[float]:
    async def run() -> list[float]:
        grader, found = make_grader(config), []
        step = items // 10
        for part in range(10):
            batch = [(f"{part} {i} {rows[i % len(rows)][0]}", rows[i % len(rows)][1]) for i in range(step)]
            for i in range(0, step, 1000):
                await grade_all(grader, requests_of(batch[i : i + 1000]))
            found.append(tree_mb(pid))
        grader.close()
        return found

    return asyncio.run(run())


PARTS = ("throughput", "hanging", "latency", "memory")
HANGING = ("recognised", "one_problem", "many_problems")
WHERE = ("local_pool", "service")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--rows", type=int, default=4000, help="short rows; a quarter as many long, a tenth as many hard ones"
    )
    parser.add_argument("--memory-items", type=int, default=100_000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="all, unless said otherwise")
    parser.add_argument("--hanging", nargs="+", choices=HANGING, default=HANGING, help="which hanging items")
    parser.add_argument("--where", nargs="+", choices=WHERE, default=WHERE, help="where they hang")
    parser.add_argument("--rounds", type=int, default=1, help="of the hanging items")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"{options.data} does not exist; give the directory of the data with --data")
    print(f"{os.cpu_count()} cores, load average before the start {os.getloadavg()[0]:.1f}")
    local = RewardConfig(num_workers=2, timeout_s=2.0)
    started = time.perf_counter()
    with running(*SERVICE_OPTIONS) as service:
        remote = RewardConfig(urls=[service.url], timeout_s=2.0)
        asyncio.run(ready(remote))
        print(f"start-up until the first grade: {time.perf_counter() - started:.2f} s (target below 5)", flush=True)
        short = make_rows(options.data, "short", options.rows)
        if "throughput" in options.parts:
            print_throughput(options, local, remote)
        if "hanging" in options.parts:
            print_hanging(short, options)
        if "latency" in options.parts:
            rate = len(short) / ours(remote, requests_of([(f"again {text}", gold) for text, gold in short]))[0] / 2
            seconds = sorted(latency_at_half_load(remote, [(f"once more {text}", gold) for text, gold in short], rate))
            print(
                f"\nservice at half load ({rate:.0f} short rows/s): median {statistics.median(seconds) * 1e3:.1f} ms,"
                f" p99 {seconds[int(len(seconds) * 0.99)] * 1e3:.1f} ms (target below 100)",
                flush=True,
            )
        if "memory" in options.parts:
            memory = memory_over_time(remote, service.process.pid, short, options.memory_items)
            print(
                f"\nservice and workers after each tenth of {options.memory_items} items, MB: "
                + " ".join(f"{megabytes:.0f}" for megabytes in memory)
            )


def print_throughput(options: argparse.Namespace, local: RewardConfig, remote: RewardConfig) -> None:
    print(
        f"\n{'rows/s':8} {'rows':>6} {'math-verify':>12} {'grade_answer':>13} {'local pool':>20} {'function':>20} {'service':>20}"
    )
    example = Path(__file__).parents[1] / "examples" / "own_reward.py"
    function = replace(local, function=f"{example}:is_right")
    for kind, count in {"short": options.rows, "long": options.rows // 4, "hard": options.rows // 10}.items():
        rows = make_rows(options.data, kind, count)
        base = in_another_process(math_verify_loop, rows)
        threads = in_another_process(openrlhf_in_threads, rows) if kind != "hard" else (float("nan"),) * 2
        found = [ours(config, requests_of(rows)) for config in (local, function, remote)]
        columns = [f"{count / wall:6.0f} ({base[0] / wall:4.1f}x {base[1] / cpu:4.1f}x)" for wall, cpu in found]
        print(
            f"{kind:8} {count:6} {count / base[0]:12.0f} {count / threads[0]:13.0f} " + " ".join(columns),
            flush=True,
        )


def print_hanging(short: list[Row], options: argparse.Namespace) -> None:
    shares = ", ".join(f"{100 * share:g}%" for share in SHARES)
    print(
        f"\n2% hanging items among short rows, deadline 2 s: rate of the first {shares} benign rows, with / without them"
    )
    numbers = range(len(short) // 50 + 1)
    rows = {
        "recognised": [(f"\\boxed{{{answer}}}", "5") for answer in ENDLESS],
        "one_problem": [(f"\\boxed{{{endless(i)}}}", ENDLESS_REFERENCE) for i in numbers],
        "many_problems": [(f"\\boxed{{{endless(i)}}}", f"{ENDLESS_REFERENCE}+{i}") for i in numbers],
    }
    for name, where, _ in itertools.product(options.hanging, options.where, range(options.rounds)):
        alone, mixed, everything = hanging_items(where, short, rows[name])
        ratios = []
        for share in SHARES:
            last = max(1, round(share * len(short))) - 1
            ratios.append(f"{alone[last] / mixed[last]:5.2f}")
        print(
            f"{name:14} {where:11} {' '.join(ratios)}; all after {mixed[-1]:.1f} s with them, {alone[-1]:.1f} s"
            f" without; the hanging ones were answered after {everything:.1f} s",
            flush=True,
        )


async def ready(config: RewardConfig) -> None:
    grader = make_grader(config)
    await grade_all(grader, requests_of([("\\boxed{1}", "1")]))
    grader.close()
    await asyncio.sleep(0)


if __name__ == "__main__":
    main()
