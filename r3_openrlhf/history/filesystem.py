"""Which journal a path can have: SQLite's WAL keeps its index in shared memory, which no network file system has."""

from __future__ import annotations

import re
from pathlib import Path

# Kernels' own local file systems. Everything else (nfs, nfs4, lustre, gpfs, beegfs, ceph, cifs, 9p, fuse.*, unknown)
# gets the rollback journal, which needs nothing but byte-range locks and fsync.
LOCAL_TYPES = frozenset("ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs tmpfs ramfs overlay".split())


def file_system_type(path: Path, *, mountinfo: str | None = None) -> str | None:
    """The type of the file system that holds `path` (which need not exist yet), or None where it cannot be known.

    `mountinfo` is the text of /proc/self/mountinfo (proc_pid_mountinfo(5)): fields 5 and, after " - ", the type.
    """
    if mountinfo is None:
        table = Path("/proc/self/mountinfo")
        if not table.exists():
            return None
        mountinfo = table.read_text()
    target = path.resolve()
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 5 or not kind:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))
        # Of two mounts on the same point the later one is on top.
        if (target == point or point in target.parents) and (best is None or len(point.parts) >= best[0]):
            best = len(point.parts), kind.split(" ")[0]
    return best[1] if best else None


def choose_journal(path: Path) -> str:
    """ "wal" where the file system is known to be local, else "delete"."""
    return "wal" if file_system_type(path) in LOCAL_TYPES else "delete"
