"""Check the file systems that a run writes to, before anything starts; each sentence names the mount."""

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from r3_openrlhf.machine.ray_temporary import MAX_BYTES, REMEDY, bytes_of, ray_temporary

SHARED_MEMORY = Path("/dev/shm")
# Ray's object store has 0.5 GiB there on CPUs (stack/ray_cluster.py), vLLM's and torch's queues
# need some too. For GPUs OpenRLHF starts its container with --shm-size=10g.
MIN_SHARED_MEMORY = {"cpu": 2**30, "cuda": 10 * 2**30}
# bytes of logs and sockets; Ray waits 46 s for what cannot be written
MIN_TEMPORARY = 64 * 2**20
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def mount_of(path: Path) -> tuple[Path, str]:
    """Return (mount point, type of the file system); the type is "" where it is not known."""
    import psutil  # not above: the doctor has no packages

    path, point, kind = path.resolve(), Path("/"), ""
    for mount in psutil.disk_partitions(all=True):  # the later of two on a point is on top
        here = Path(mount.mountpoint)
        if path.is_relative_to(here) and len(here.parts) >= len(point.parts):
            point, kind = here, mount.fstype
    return point, kind


def fault_of_run_directory(path: Path) -> str | None:
    """Say that its file system cannot be written, or has no locks: SQLite takes it for busy."""
    parent = next(one for one in (path, *path.parents) if one.is_dir())
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        why = (
            "has no file locks, which the run needs"
            if error.errno in NO_LOCKS
            else "cannot be written"
        )
        where = "the file system at {} ({})".format(*mount_of(parent))
        return f"run_dir {path}: {where} {why}: {error.strerror}; choose another run_dir"
    return None


def fault_of_temporary() -> str | None:
    """Say why Ray or Python cannot use the directory for temporary files. Ray makes its own."""
    path = ray_temporary()
    if bytes_of(path) > MAX_BYTES:
        return (
            f"the directory for temporary files, {path}, has a path of {bytes_of(path)} bytes, and Ray's sockets in it "
            f"leave room for {MAX_BYTES}; {REMEDY}"
        )
    if not Path(given := os.environ.get("TMPDIR", "/tmp")).is_dir():
        return f"TMPDIR is {given}, which is no directory; make it, or set another TMPDIR"
    existing = next(one for one in (path, *path.parents) if one.is_dir())
    free = shutil.disk_usage(existing).free if os.access(existing, os.W_OK | os.X_OK) else 0
    if free < MIN_TEMPORARY:
        return (
            "the file system at {} ({}), ".format(*mount_of(existing))
            + f"of the temporary files in {path}, has {free >> 20} "
            f"MB that can be written, and a run needs {MIN_TEMPORARY >> 20}; free some, or set RAY_TMPDIR and TMPDIR"
        )
    return None


def shared_memory(platform: str) -> tuple[str, str, str]:
    """Return (what /dev/shm has, what the stack needs of it, what to do; "" where it is enough)."""
    least = MIN_SHARED_MEMORY[platform]
    mounted, writable = os.path.ismount(SHARED_MEMORY), os.access(SHARED_MEMORY, os.W_OK)
    total, _, free = shutil.disk_usage(SHARED_MEMORY) if mounted else (0, 0, 0)
    state = "no shared memory is mounted" if not mounted else "" if writable else "not writable"
    remedy = (
        f"Ray and NCCL need it: --shm-size={least >> 30}g for a container, or mount -t tmpfs -o size={least >> 30}g "
        f"tmpfs {SHARED_MEMORY}; else delete what fills it"
    )
    state = state or f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB free"
    return state, f"{least >> 30} GiB free", "" if writable and free >= least else remedy
