"""Memory that this process may use: the host's, or less by the limit of a cgroup (a job, a container).

A limit of a parent holds for everything below it. Both hierarchies are read: v2 (`memory.max`), and
the memory controller of v1 (`memory.limit_in_bytes`, a huge number where there is no limit).
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Rollouts of a step go through Ray's object store, weights do not. Ray spills to disk.
MAX_OBJECT_STORE = 32 * 2**30  # bytes
MIN_OBJECT_STORE = 80 * 2**20  # Ray takes no less than 75 MiB (ray_constants)
ROOT = Path("/")


class Version(NamedTuple):
    """Names of a hierarchy: of the file system, and of the files of a cgroup."""

    file_system: str
    limit: str
    usage: str
    cache: str  # the line of memory.stat with pages that are given back at once


V1 = Version("cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = Version("cgroup2", "memory.max", "memory.current", "inactive_file")


class Limit(NamedTuple):
    """A cgroup's limit and what its processes use of it, in bytes."""

    total: int
    used: int


def total_memory(root: Path = ROOT) -> int:
    """Return the bytes that this process may have: the smallest of the host's memory and all limits.

    root: the folder that has proc and the cgroups."""
    totals = [limit.total for limit in limits(root)]
    return min([_of_host("MemTotal", root), *totals])


def available_memory(root: Path = ROOT) -> int:
    """Return the bytes that this process may have in addition, of the host and within all limits."""
    left = [limit.total - limit.used for limit in limits(root)]
    return max(0, min([_of_host("MemAvailable", root), *left]))


def object_store_bytes(shared_memory: int, memory: int) -> int:
    """Bytes for a node with this much free /dev/shm and memory: half of the first (NCCL or another
    job have the other), at most a fifth of the second and 32 GiB. Ray takes 30% of all memory."""
    return max(MIN_OBJECT_STORE, min(shared_memory // 2, memory // 5, MAX_OBJECT_STORE))


def limits(root: Path = ROOT) -> list[Limit]:
    """Return the limits of this process's cgroups and of all their parents that are visible here."""
    found = []
    for version, folder in _cgroups(root):
        text = _text(folder / version.limit)
        if not text.isdecimal():  # "max", or the file is missing: the root of v2 has none
            continue
        usage = _text(folder / version.usage)
        cache = re.search(
            rf"^{version.cache} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE
        )
        used = int(usage) if usage.isdecimal() else 0
        if cache is not None:
            used = max(0, used - int(cache[1]))
        found.append(Limit(int(text), used))
    return found


def _cgroups(root: Path) -> Iterator[tuple[Version, Path]]:
    """Yield the folders of this process's cgroups, each followed by its parents up to the mount."""
    paths = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        if not controllers:
            paths[V2] = Path(own)
        elif "memory" in controllers.split(","):
            paths[V1] = Path(own)
    for line in _text(root / "proc/self/mountinfo").splitlines():
        # man 5 proc: mounted root, mount point, ... - type, source, options of the file system
        fields, _, after = line.partition(" - ")
        mounted, point = fields.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == V2.file_system:
            version = V2
        elif kind == V1.file_system and "memory" in options.split(","):
            version = V1
        else:
            continue
        if version not in paths:
            continue
        path, top = paths[version], root / point.lstrip("/")
        below = Path()
        # of another namespace (/../job) or of a mount that shows a part only
        if path.is_relative_to(mounted) and ".." not in path.parts:
            below = path.relative_to(mounted)
        for folder in (below, *below.parents):
            yield version, top / folder


def _of_host(name: str, root: Path) -> int:
    """Bytes of a line of /proc/meminfo."""
    text = _text(root / "proc/meminfo")
    line = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    if line is None:
        raise OSError(f"{root / 'proc/meminfo'} has no {name}")
    return int(line[1]) * 1024


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):  # no such hierarchy here, or a file of another user
        return path.read_text().strip()
    return ""
