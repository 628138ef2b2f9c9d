"""Runs a command and prints its wall-clock seconds, its processor seconds and the peak memory of its whole process tree.

    python benchmarks/process_tree.py make quickstart

Memory is the proportional set size (PSS: a page shared by n processes counts 1/n in each), summed over the command and all its
descendants. Processor seconds are those of every process that was seen, by name, with the number of processes: so many
`raylet` are so many starts of Ray. What a process did after it was last looked at is missing; it is looked at every second.
A process that left the tree (its parent ended) is missing from both. Linux only. The exit code is the command's.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

SAMPLE_S = 1.0
ROWS = 12


def kind(process: psutil.Process) -> str:
    """What the process calls itself: "ray::R3PolicyActor" keeps the actor and loses the method that runs."""
    title = process.cmdline()
    name = title[0].split("/")[-1] if title else process.name()
    return name.partition(".")[0].split(" ")[0] if name.startswith("ray::") else process.name()


def proportional_set_size(process: psutil.Process) -> int:
    """Bytes. The kernel adds up in smaps_rollup; psutil would read every mapping. 0: the process is ending."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


class Tree:
    """What is known of a command and all its descendants so far."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.peak: Counter[str] = Counter()  # bytes per name at the moment with the highest sum
        self.seconds: dict[tuple[int, float], tuple[str, float]] = {}  # (id, start) -> name, processor seconds

    def look(self) -> None:
        """Takes one sample. A process that ends meanwhile keeps what was known of it."""
        memory: Counter[str] = Counter()
        try:
            root = psutil.Process(self.root)
            members = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for member in members:
            try:
                name, spent = kind(member), member.cpu_times()
                self.seconds[member.pid, member.create_time()] = name, spent.user + spent.system
                memory[name] += proportional_set_size(member)
            except (psutil.NoSuchProcess, psutil.ZombieProcess, ProcessLookupError, FileNotFoundError):
                continue
        if memory.total() > self.peak.total():
            self.peak = memory

    def report(self) -> list[str]:
        """Lines: memory at its peak, then processor seconds, the greatest first."""
        lines = [f"  {size / 2**30:8.2f} GiB  {name}" for name, size in self.peak.most_common(ROWS)]
        spent: Counter[str] = Counter()
        number: Counter[str] = Counter()
        for name, seconds in self.seconds.values():
            spent[name] += seconds
            number[name] += 1
        return lines + [
            f"  {seconds:8.1f} s    {number[name]:4d} x {name}" for name, seconds in spent.most_common(ROWS)
        ]


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    started = time.monotonic()
    command = subprocess.Popen(sys.argv[1:])
    tree = Tree(command.pid)
    while True:
        try:
            code = command.wait(timeout=SAMPLE_S)
            break
        except subprocess.TimeoutExpired:
            tree.look()
    total = sum(seconds for _, seconds in tree.seconds.values())
    wall = time.monotonic() - started
    print(f"{wall:.0f} s, {total:.0f} s of processor time, peak {tree.peak.total() / 2**30:.2f} GiB", file=sys.stderr)
    print("\n".join(tree.report()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
