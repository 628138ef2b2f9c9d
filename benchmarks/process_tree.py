"""Runs a command and prints its wall-clock seconds and the peak memory of its whole process tree.

    python benchmarks/peak_memory.py make quickstart

Memory is the proportional set size (PSS: a page shared by n processes counts 1/n in each), summed over the command and all its
descendants, sampled every two seconds. Linux only. The exit code is the command's.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

SAMPLE_S = 2.0


def tree_pss(process: psutil.Process) -> dict[str, int]:
    """Bytes per process name. A process that ends while it is read counts as gone."""
    found: dict[str, int] = {}
    for member in [process, *process.children(recursive=True)]:
        try:
            rollup = Path(
                f"/proc/{member.pid}/smaps_rollup"
            ).read_text()  # the kernel adds up; psutil reads every mapping
            pss = next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
            found[member.name()] = found.get(member.name(), 0) + pss
        except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError, StopIteration):
            continue  # it has ended, or is ending and has no memory left
    return found


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    started = time.monotonic()
    command = subprocess.Popen(sys.argv[1:])
    peak: dict[str, int] = {}
    while True:
        try:
            code = command.wait(timeout=SAMPLE_S)
            break
        except subprocess.TimeoutExpired:
            try:
                sample = tree_pss(psutil.Process(command.pid))
            except psutil.NoSuchProcess:
                continue
            if sum(sample.values()) > sum(peak.values()):
                peak = sample
    print(f"{time.monotonic() - started:.0f} s, peak {sum(peak.values()) / 2**30:.2f} GiB", file=sys.stderr)
    for name, size in sorted(peak.items(), key=lambda item: -item[1])[:8]:
        print(f"  {size / 2**30:6.2f} GiB  {name}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
