"""Locks that a killed build of DeepSpeed's operators leaves in torch's cache: every later run would
wait for them for ever.

torch builds an extension under a file `lock` that it makes and removes (torch/utils/file_baton.py).
A killed process removes nothing, the file names no process, and the next one waits without a limit
or word. But the builder keeps the file open, and the compilers work in its directory: a lock that
no process has is stale, as far as this machine can see."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# Kernels' own local file systems. All others (nfs, nfs4, lustre, gpfs, ceph, fuse.*) may be shared
LOCAL_TYPES = frozenset("ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs tmpfs ramfs overlay".split())
LOOK_S = 0.5  # between two looks at a lock that is waited for
BUILD_S = 15 * 60  # no build is longer; younger locks may be another machine's


def build_root() -> Path:
    """Torch's directory of extensions (torch/utils/cpp_extension.py, `_get_build_directory`)."""
    if found := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(found)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.path.realpath(Path(cache) / "torch_extensions"))


def locks(root: Path) -> list[Path]:
    """All that are there: ROOT/[python and CUDA version/]EXTENSION/lock."""
    return sorted({*root.glob("*/lock"), *root.glob("*/*/lock")})


def held(locks: Iterable[Path]) -> set[Path]:
    """Return the `locks` that a process here has open, or in whose directory it works."""
    by_path = {os.path.realpath(lock): lock for lock in locks}
    by_directory = {os.path.dirname(path): lock for path, lock in by_path.items()}
    alive: set[Path | None] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
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
    """(locks that no one holds, young locks on a shared file system, maybe of other machines)."""
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
    for mount in psutil.disk_partitions(all=True):  # the later of two on a point is on top
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
    """Let no one else build in `directory` (ROOT/.../EXTENSION) during the block, on any machine: a
    run under a lock of ours, freed by the kernel with its process, other programs under torch's,
    which is looked at again while it is waited for. `waits` is told the lock, once."""
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
