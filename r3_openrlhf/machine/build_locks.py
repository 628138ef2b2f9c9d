"""Locks that a killed build of DeepSpeed's operators leaves in torch's cache: every later run would
wait for them for ever.

torch builds an extension under a file `lock` that it creates and removes (torch/utils/file_baton.py). A process that is
killed meanwhile removes nothing, the file names no process, and the next process waits without a limit and without a word.
But the builder keeps the file open, and the compilers work in its directory. So a lock that no process has is a stale one,
as far as this machine can see."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# Kernels' own local file systems. Everything else (nfs, nfs4, lustre, gpfs, beegfs, ceph, cifs, 9p, fuse.*) may be shared
LOCAL_TYPES = frozenset("ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs tmpfs ramfs overlay".split())
LOOK_S = 0.5  # between two looks at a lock that is waited for
BUILD_S = 15 * 60  # no build takes that long; younger locks on a shared file system may be another machine's


def build_root() -> Path:
    """Where torch builds extensions (torch/utils/cpp_extension.py, `_get_build_directory`), without torch."""
    if found := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(found)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.path.realpath(Path(cache) / "torch_extensions"))


def locks(root: Path) -> list[Path]:
    """All that are there: ROOT/[python and CUDA version/]EXTENSION/lock."""
    return sorted({*root.glob("*/lock"), *root.glob("*/*/lock")})


def held(locks: Iterable[Path]) -> set[Path]:
    """Those of `locks` that a process of this machine has open, or in whose directory one works (proc_pid_fd(5))."""
    by_path = {os.path.realpath(lock): lock for lock in locks}
    by_directory = {os.path.dirname(path): lock for path, lock in by_path.items()}
    alive: set[Path | None] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's, who does not build in our cache
            alive.add(by_directory.get(os.readlink(process / "cwd")))
            for handle in os.listdir(process / "fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    alive.add(by_path.get(os.readlink(process / "fd" / handle)))
    return {lock for lock in alive if lock is not None}


def unheld_locks(root: Path) -> list[Path]:
    """Locks that no process of this machine holds."""
    found = locks(root)
    return sorted(set(found) - held(found)) if found else []


def stale(root: Path) -> tuple[list[Path], list[Path]]:
    """(locks that no one holds, locks that another machine may hold: young ones on a file system that is not local)."""
    unheld: list[Path] = []
    unsure: list[Path] = []
    for lock in unheld_locks(root):
        with contextlib.suppress(FileNotFoundError):  # released meanwhile
            is_young = time.time() - lock.stat().st_mtime < BUILD_S
            (unsure if is_young and not _is_local(lock) else unheld).append(lock)
    return unheld, unsure


def _is_local(path: Path) -> bool:
    """True if no other machine mounts the file system of `path`. False if it is not known."""
    import psutil  # not above: the doctor lists locks without packages

    path, kind, depth = path.resolve(), "", 0
    for mount in psutil.disk_partitions(all=True):  # of two on the same point the later one is on top
        point = Path(mount.mountpoint)
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = mount.fstype, len(point.parts)
    return kind in LOCAL_TYPES


def remove_stale(root: Path) -> list[str]:
    """Removes the locks that no one holds. What a person should know, one sentence per lock."""
    unheld, unsure = stale(root)
    for lock in unheld:
        lock.unlink(missing_ok=True)
    return [
        f"removed {lock}: a build that was killed had left it, and a run would have waited for it" for lock in unheld
    ] + [
        f"{lock} is there: another machine builds DeepSpeed's operators now, or was killed while it did; if none does, remove it"
        for lock in unsure
    ]


@contextlib.contextmanager
def alone(directory: Path, waits: Callable[[Path], None]) -> Iterator[None]:
    """No one else builds in `directory` (ROOT/.../EXTENSION) during the block, on any machine that shares it: a run under a lock
    of ours, which the kernel frees when its process dies, and no other program under torch's, which is looked at again
    while it is waited for. `waits` is told the lock, once."""
    from filelock import FileLock, Timeout  # not above: the doctor lists locks without packages

    ours, torchs = FileLock(directory.with_name(f"{directory.name}.r3-lock")), directory / "lock"
    try:
        ours.acquire(timeout=0)
    except Timeout:
        waits(Path(ours.lock_file))
        ours.acquire()
    told = False
    try:
        while torchs.exists():
            if torchs in stale(directory.parent)[0]:
                torchs.unlink(missing_ok=True)
                break
            if not told:
                told = True
                waits(torchs)
            time.sleep(LOOK_S)  # torch's lock is a file: nothing tells when it goes
        yield
    finally:
        ours.release()
