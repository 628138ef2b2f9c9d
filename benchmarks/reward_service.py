"""Rows per second of the grading pool, of a reward function and of the reward service, compared with math-verify.

    python benchmarks/reward_service.py [--data ../shared/data] [--rows 4000] [--parts throughput hanging] [--where local_pool service]

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
from tests.rewards.hostile_payloads import ENDLESS_REFERENCE, endless  # noqa: E402
from tests.rewards.server.service import running  # noqa: E402

Row = tuple[str, str]  # response, reference
THINKING_CHARS = 24_000
SERVICE_OPTIONS = ("--workers", "2", "--timeout", "2", "--max-pending", "100000")


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_rows(data: Path, kind: str, count: int) -> list[Row]:
    rng = random.Random(0)
    if kind == "hard":
        pairs = [
            (row["prediction"], row["gold"]) for row in read(data / "grader/vectors.jsonl")
        ]
        return [
            (f"{pairs[i % len(pairs)][0]}" + " " * (i // len(pairs)), pairs[i % len(pairs)][1])
            for i in range(count)
        ]
    problems = (
        read(data / "math/eval/math500.jsonl")
        + read(data / "math/train/deepscaler_clean.jsonl")[:5000]
    )
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
        GradeRequest(
            response=response, references=(gold,), task="math", num_tokens=100, truncated=False
        )
        for response, gold in rows
    ]


# Math-Verify, in a process of its own


def math_verify_loop(rows: list[Row]) -> tuple[float, float]:
    """Seconds, and seconds of processor time. Its time-outs are off: they cost a signal per call, and these rows end by themselves."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def grade(response: str, gold: str) -> bool:
        return verify(
            parse(f"${gold}$", parsing_timeout=None),
            parse(response, parsing_timeout=None),
            timeout_seconds=None,
        )

    for response, gold in rows[:20]:
        grade(response, gold)
    started, started_cpu = time.perf_counter(), time.process_time()
    for response, gold in rows:
        grade(response, gold)
    return time.perf_counter() - started, time.process_time() - started_cpu


def in_another_process(function, rows: list[Row]) -> tuple[float, float]:
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        return processes.apply(function, (rows,))


# Ours


async def grade_all(grader, requests: list[GradeRequest]) -> list:
    return await asyncio.gather(*map(grader.grade, requests))


def processor_seconds(pid: int | None = None) -> float:
    """Sum the processor time of a process and all below it, those that have ended included."""
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
    """Start a pool or a service that has seen nothing yet, so that a second run does not find the caches of the first."""
    if where == "local_pool":
        yield RewardConfig(num_workers=2, timeout_s=2.0)
    else:
        with running(*SERVICE_OPTIONS) as service:
            yield RewardConfig(urls=[service.url], timeout_s=2.0)


def hanging_items(
    where: str, rows: list[Row], hanging_rows: list[Row]
) -> tuple[float, float, float]:
    """Seconds until all benign rows were answered, alone; with 2% hanging ones among them; until those were answered too."""

    async def run(config: RewardConfig, with_hanging: bool) -> tuple[float, float]:
        grader = make_grader(config)
        await grade_all(grader, requests_of([("\\boxed{1}", "2")] * 50))
        hanging, benign = [], []
        started = time.perf_counter()

        async def timed(request: GradeRequest) -> None:
            grade = await grader.grade(request)
            if grade.verdict is Verdict.UNGRADED and grade.reason == "timeout":
                raise RuntimeError(f"a benign row was taken for a hanging one: {request}")

        for i, request in enumerate(
            requests_of([(f"{with_hanging} {response}", gold) for response, gold in rows])
        ):
            if with_hanging and i % 50 == 0:
                response, gold = hanging_rows[i // 50 % len(hanging_rows)]
                bad = requests_of([(f"{i} {response}", gold)])[0]
                hanging.append(asyncio.create_task(grader.grade(bad)))
            benign.append(asyncio.create_task(timed(request)))
        await asyncio.gather(*benign)
        benign_s = time.perf_counter() - started
        await asyncio.gather(*hanging)
        everything_s = time.perf_counter() - started
        grader.close()
        return benign_s, everything_s

    with fresh(where) as config:
        alone, _ = asyncio.run(run(config, False))
    with fresh(where) as config:
        mixed, everything = asyncio.run(run(config, True))
    return alone, mixed, everything


PARTS = ("throughput", "hanging")
WHERE = ("local_pool", "service")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--rows",
        type=int,
        default=4000,
        help="short rows; a quarter as many long, a tenth as many hard ones",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--where", nargs="+", choices=WHERE, default=WHERE, help="where items hang"
    )
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"{options.data} does not exist; give the directory of the data with --data")
    print(f"{os.cpu_count()} cores, load average before the start {os.getloadavg()[0]:.1f}")
    if "throughput" in options.parts:
        started = time.perf_counter()
        with running(*SERVICE_OPTIONS) as service:
            remote = RewardConfig(urls=[service.url], timeout_s=2.0)
            ours(remote, [])
            print(
                f"start-up until the first grades: {time.perf_counter() - started:.2f} s",
                flush=True,
            )
            print_throughput(options, RewardConfig(num_workers=2, timeout_s=2.0), remote)
    if "hanging" in options.parts:
        print_hanging(options)


def print_throughput(
    options: argparse.Namespace, local: RewardConfig, remote: RewardConfig
) -> None:
    columns = "".join(f"{name:>21}" for name in ("local pool", "function", "service"))
    print(f"\n{'rows/s':8} {'rows':>6} {'math-verify':>12}{columns}")
    example = Path(__file__).parents[1] / "examples" / "own_reward.py"
    function = replace(local, function=f"{example}:is_right")
    for kind, count in {
        "short": options.rows,
        "long": options.rows // 4,
        "hard": options.rows // 10,
    }.items():
        rows = make_rows(options.data, kind, count)
        base = in_another_process(math_verify_loop, rows)
        seconds = [ours(config, requests_of(rows)) for config in (local, function, remote)]
        columns = [
            f"{count / wall:6.0f} ({base[0] / wall:4.1f}x {base[1] / cpu:4.1f}x)"
            for wall, cpu in seconds
        ]
        print(f"{kind:8} {count:6} {count / base[0]:12.0f} " + " ".join(columns), flush=True)


def print_hanging(options: argparse.Namespace) -> None:
    print("\n2% hanging items, each of another problem, among short rows; deadline 2 s")
    short = make_rows(options.data, "short", options.rows)
    rows = [
        (f"\\boxed{{{endless(i)}}}", f"{ENDLESS_REFERENCE}+{i}")
        for i in range(len(short) // 50 + 1)
    ]
    for where in options.where:
        alone, mixed, everything = hanging_items(where, short, rows)
        print(
            f"{where:11} all benign rows after {mixed:.1f} s, {alone:.1f} s without hanging ones;"
            f" the hanging ones were answered after {everything:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
