"""Locks that a killed build of DeepSpeed's operators leaves in torch's cache: every later run would
wait for them without end.

torch builds an extension under a file `lock` that it makes and removes (torch/utils/file_baton.py).
A killed process removes nothing, the file names no process, and the next one waits without a limit
or word. But the builder keeps the file open, and the compilers work in its directory: a lock that
no process has is stale, as far as this machine can see."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from r3_openrlhf.machine.places import mount_of
from r3_openrlhf.machine.shared_memory import held, node_is_visible

# Kernels' own local file systems. All others (nfs, nfs4, lustre, gpfs, ceph, fuse.*) may be shared
LOCAL_TYPES = frozenset(
    [
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "bcachefs",
        "tmpfs",
        "ramfs",
        "overlay",
    ]
)
LOOK_S = 0.5  # between two looks at a lock that is waited for
BUILD_S = 15 * 60  # no build is longer; younger locks may be another machine's or container's


def is_stale(lock: Path) -> bool:
    """Return True if no process has the lock: none of those that are seen here, and none elsewhere
    that shares the file system, unless it is older than a build."""
    with contextlib.suppress(FileNotFoundError):  # just released
        if not _is_held(lock):
            is_shared = mount_of(lock)[1] not in LOCAL_TYPES or not node_is_visible()
            return not is_shared or time.time() - lock.stat().st_mtime > BUILD_S
    return False


def _is_held(lock: Path) -> bool:
    """Return True if a process of this user has the lock open, or works in its directory."""
    if held({lock}):
        return True
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is somebody else's
            if process.cwd() == os.path.realpath(lock.parent):
                return True
    return False


@contextlib.contextmanager
def alone(directory: Path, waits: Callable[[Path], None]) -> Iterator[None]:
    """Let no one else build in `directory` (ROOT/.../EXTENSION) during the block, on any machine: a
    run under a lock of ours, freed by the kernel with its process, other programs under torch's,
    which is looked at again while it is waited for. `waits` is told the lock, once."""
    ours, torchs = (
        FileLock(directory.with_name(f"{directory.name}.r3-lock")),
        directory / "lock",
    )
    try:
        ours.acquire(timeout=0)
    except Timeout:
        waits(Path(ours.lock_file))
        ours.acquire()
    try:
        if torchs.exists() and not is_stale(torchs):
            waits(torchs)
        while torchs.exists() and not is_stale(torchs):
            time.sleep(LOOK_S)  # torch's lock is a file: nothing tells when it goes
        torchs.unlink(missing_ok=True)
        yield
    finally:
        ours.release()
