"""Measure how long `r3 view` takes over a run of full size: pages and searches over HTTP, memory of the server.

    python benchmarks/viewer.py --make DIR                     # 945 steps x 128 problems x 16 rollouts, up to 8,192 tokens
    python benchmarks/viewer.py --make DIR --few-problems 2    # 945 steps of which three are whole; made in seconds
    python benchmarks/viewer.py DIR [--rounds 10]

The run is synthetic (benchmarks/_synthetic_run.py). Its directory is written to, and then only read. Each time is that of a first
request, then the median and the largest of --rounds further ones; the file system's cache is warm.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _synthetic_run import Size, make

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.rollout_files import read_step, steps_in

SEARCHES = {
    "a rare number": "q=terms+54321",
    "a common word": "q=the",
    "a phrase": "q=%22so+the+final+answer+is%22",
    "nothing there": "q=xyzzy+54321",
    "common, right and short": "q=the&verdict=correct&max_tokens=400",
}


TOKEN = "of-this-measurement-alone"


@contextmanager
def served(run: Path) -> Iterator[tuple[str, int]]:
    """Start `r3 view RUN`. Yields its address and process id."""
    command = [sys.executable, "-m", "r3_openrlhf", "view", str(run), "--no-browser"]
    environment = {**os.environ, "R3_VIEW_TOKEN": TOKEN}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/"), process.pid
    finally:
        process.terminate()
        process.wait()


def fetch(address: str) -> tuple[float, int, int]:
    """Return seconds, bytes of the page and bytes that were sent."""
    request = urllib.request.Request(
        address, headers={"Accept-Encoding": "gzip", "Authorization": f"Bearer {TOKEN}"}
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        body = answer.read()
    seconds = time.perf_counter() - started
    return seconds, len(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body), len(body)


def pages_of(run: Path) -> dict[str, str]:
    step, file = max(steps_in(RunDirectory(run).rollouts).items())
    row = next(row for row in read_step(file, without=("text", "prompt")) if row["group"] == 0)
    name, uid = run.name, urllib.parse.quote(row["uid"])
    return {
        "first view: the page": f"/{name}",
        "first view: the curves": f"/api/curves?run={name}",
        "a step": f"/{name}/step/{step}",
        "a group of full length": f"/{name}/step/{step}/plain/{uid}",
        "its tokens": f"/api/tokens/{name}/step/{step}/plain/{uid}",
        "one response": f"/{name}/tokens/{step}/0/plain/{uid}",
        "the life of a problem": f"/{name}/problem/{uid}",
        **{f"search: {what}": f"/search?{query}" for what, query in SEARCHES.items()},
    }


def measure(run: Path, rounds: int) -> None:
    with served(run) as (address, pid):
        print(f"{'':<34}   first  median largest of {rounds} more")
        for name, path in pages_of(run).items():
            first, *more = (fetch(address + path) for _ in range(rounds + 1))
            times = (
                first[0],
                statistics.median(page[0] for page in more),
                max(page[0] for page in more),
            )
            shown = " ".join(f"{1000 * seconds:7.0f}" for seconds in times)
            print(
                f"  {name:<32} {shown} ms  {first[1] / 1000:,.0f} kB, {first[2] / 1000:,.0f} sent",
                flush=True,
            )
        status = Path(f"/proc/{pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        print(f"  server memory {int(peak[1]) / 1000 if peak else float('nan'):.0f} MB at most")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--make", type=Path, metavar="DIR")
    sizes = (
        "steps",
        "problems",
        "samples",
        "epoch_steps",
        "max_tokens",
        "mean_tokens",
        "few_problems",
    )
    for name in sizes:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=getattr(Size(), name)
        )
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if options.make:
        make(options.make, Size(*(getattr(options, name) for name in sizes)))
    elif options.run:
        measure(options.run, options.rounds)
    else:
        parser.error("name a run directory, or --make DIR")


if __name__ == "__main__":
    main()
