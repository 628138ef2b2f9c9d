"""Files that a killed job or run leaves in /dev/shm, and whose it still is."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

FOLDER = Path("/dev/shm")
FIRST_NAMESPACE = 0xEFFFFFFC
# Python's SharedMemory and semaphores (vLLM, torch), torch's file sharing, Ray's store, NCCL
SEMAPHORES = ("sem.mp-*",)  # Python's: what no process holds is of no use to any
STACK_NAMES = (*SEMAPHORES, "psm_*", "sem.loky-*", "torch_*", "plasma*", "nccl-*")


def sweep(folder: Path = FOLDER, *, names: tuple[str, ...] = STACK_NAMES) -> list[str]:
    """Remove this user's files of the stack that no process has open or mapped; returns their
    names.

    Another running job keeps its own, because its processes hold them. Where the processes of the
    node cannot be seen (a container with process ids of its own) nothing is removed."""
    if not node_is_visible():
        return []
    files = {
        path
        for name in names
        for path in folder.glob(name)
        if (seen := look(path)) is not None and seen.st_uid == os.getuid()
    }
    left = sorted(files - held(files)) if files else []
    for path in left:
        path.unlink(missing_ok=True)
    return [path.name for path in left]


def look(path: Path) -> os.stat_result | None:
    """Look at a file; None: it is gone. Another agent of this node may remove it at any time."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def node_is_visible() -> bool:
    """Return True if process ids here are the node's. With Slurm: the task's id there is an ancestor
    of ours. Without: they are the kernel's first ones (PROC_PID_INIT_INO in linux/proc_ns.h)."""
    if (task := os.environ.get("SLURM_TASK_PID")) is None:
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_NAMESPACE
    return int(task) in {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def held(paths: set[Path]) -> set[Path]:
    """Return those that a process of this user has mapped or open, by inode: glibc's sem_open maps
    a semaphore under another name first, so /proc/PID/maps lacks the name that others open."""
    names = {
        (seen.st_dev, seen.st_ino): path for path in paths if (seen := look(path)) is not None
    }
    used: set[tuple[int, int]] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):  # it ended while it was looked at
            if process.uids().real == os.getuid():
                used |= {*_mapped(process.pid), *_open(process.pid)} & names.keys()
    return {names[file] for file in used}


def _mapped(pid: int) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        _, _, _, device, inode, *_ = line.split(None, 5)
        major, minor = device.split(":")
        yield os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _open(pid: int) -> Iterator[tuple[int, int]]:
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            status = os.stat(entry.path)
        except FileNotFoundError:
            continue  # closed while it was looked at
        yield status.st_dev, status.st_ino
