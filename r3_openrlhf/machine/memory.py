"""Memory that this process may use: the host's, or less by the limit of a cgroup (a job, a container).

A limit of a parent holds for everything below it. Both hierarchies are read: v2 (`memory.max`), and
the memory controller of v1 (`memory.limit_in_bytes`, a huge number where there is no limit).
"""

import re
from pathlib import Path
from typing import NamedTuple

from r3_openrlhf.machine import cgroups

# Rollouts of a step go through Ray's object store, weights do not. Ray spills to disk.
MAX_OBJECT_STORE = 32 * 2**30  # bytes
MIN_OBJECT_STORE = 80 * 2**20  # Ray takes no less than 75 MiB (ray_constants)
ROOT = Path("/")


class Version(NamedTuple):
    """Names of a hierarchy's files of memory."""

    limit: str
    usage: str
    cache: str  # the line of memory.stat with pages that are given back at once


V1 = Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = Version("memory.max", "memory.current", "inactive_file")
VERSIONS = {cgroups.V1: V1, cgroups.V2: V2}


class Limit(NamedTuple):
    """A cgroup's limit and what its processes use of it, in bytes."""

    total: int
    used: int


def total_memory(root: Path = ROOT) -> int:
    """Return the bytes that this process may have: the smallest of the host's memory and all limits.

    root: the folder that has proc and the cgroups."""
    totals = [limit.total for limit in limits(root)]
    return min([_of_host("MemTotal", root), *totals])


def host_memory(root: Path = ROOT) -> int:
    """Return the bytes of the host, whatever this process may have of them."""
    return _of_host("MemTotal", root)


def available_memory(root: Path = ROOT) -> int:
    """Return the bytes that this process may have in addition, of the host and within all limits."""
    left = [limit.total - limit.used for limit in limits(root)]
    return max(0, min([_of_host("MemAvailable", root), *left]))


def object_store_bytes(shared_memory: int, memory: int) -> int:
    """Return the store's bytes for a node with this much free /dev/shm and memory: half of the first (NCCL or another
    job have the other), at most a fifth of the second and 32 GiB. Ray takes 30% of all memory."""
    return max(MIN_OBJECT_STORE, min(shared_memory // 2, memory // 5, MAX_OBJECT_STORE))


def limits(root: Path = ROOT) -> list[Limit]:
    """Return the limits of this process's cgroups and of all their parents that are visible here."""
    found = []
    for kind, folder in cgroups.folders(root, "memory"):
        version = VERSIONS[kind]
        text = cgroups.text(folder / version.limit)
        if not text.isdecimal():  # "max", or the file is missing: the root of v2 has none
            continue
        usage = cgroups.text(folder / version.usage)
        cache = re.search(
            rf"^{version.cache} (\d+)$", cgroups.text(folder / "memory.stat"), re.MULTILINE
        )
        used = int(usage) if usage.isdecimal() else 0
        if cache is not None:
            used = max(0, used - int(cache[1]))
        found.append(Limit(int(text), used))
    return found


def _of_host(name: str, root: Path) -> int:
    """Return the bytes of a line of /proc/meminfo."""
    text = cgroups.text(root / "proc/meminfo")
    line = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    if line is None:
        raise OSError(f"{root / 'proc/meminfo'} has no {name}")
    return int(line[1]) * 1024
