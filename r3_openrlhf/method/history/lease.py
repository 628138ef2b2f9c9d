"""One writer at a time, across nodes: `filelock.SoftFileLease` on a file next to the protected one.

The file is made with O_EXCL, which NFS has, and names host and process. Its holder touches it every
few seconds. Who finds it

* is refused at once when the holder lives on this host, takes over when it has died here;
* watches a holder on another host, and takes over if untouched for LEASE_S seconds.

Silence is no proof of death, so a writer asks `is_held` before each change: one that was suspended
finds another token in the file and stops."""

from __future__ import annotations

import functools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from r3_openrlhf.method.errors import HistoryError

BEAT_S = 5.0
LEASE_S = 30.0  # six missed beats


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lease."""

    token: str  # no two leases have the same
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('?')[0]}"


class Lease:
    """The right to write, until release() or the end of the process."""

    def __init__(self, lock: SoftFileLease) -> None:
        self._lock = lock
        assert lock.token is not None
        self.token = lock.token

    @classmethod
    def acquire(cls, path: Path, *, name: str) -> Lease:
        """Take the lease on the lock file `path`.

        Args:
            name: what is protected, for messages.

        Raises:
            HistoryError: another writer is there (with its process and host), or the file cannot be
                written."""
        lock = SoftFileLease(
            path, lease_duration=LEASE_S, heartbeat_interval=BEAT_S, thread_local=False
        )
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                owner = lock.owner
                if owner is None or owner.hostname != _this_host():
                    _watch(lock, path)
                elif _lives(owner.pid):
                    raise
                else:  # a zombie, which filelock takes for its holder
                    path.unlink(missing_ok=True)
                    lock.acquire(timeout=0)
        except (Timeout, LeaseSettingsMismatch) as error:
            holder, _ = last_holder(path)
            raise HistoryError(
                f"{name} is being written by {holder or 'another process'}; stop that run first, or give this one another "
                f"run_dir (if no such process is left, remove {path})"
            ) from error
        except OSError as error:
            raise HistoryError(
                f"cannot write the lock file {path}: {error.strerror}"
            ) from error
        return cls(lock)

    def is_held(self) -> bool:
        """Return False when another has taken over, and in a forked child."""
        owner = self._lock.owner
        return self._lock.is_locked and owner is not None and owner.token == self.token

    def release(self) -> None:
        """Lets the next writer in. Harmless when repeated, and in a fork, which holds nothing."""
        self._lock.release()


def last_holder(path: Path) -> tuple[Holder | None, bool]:
    """Return who has the lock file `path`, or was killed with it, and whether it lives.

    On another host it lives as long as it touches the file.
    """
    owner = SoftFileLease(path).owner
    if owner is None:
        return None, False
    holder = Holder(owner.token or "", owner.hostname, owner.pid)
    try:
        is_fresh = time.time() - path.stat().st_mtime < 2 * LEASE_S
    except FileNotFoundError:
        return None, False
    return holder, is_fresh and (owner.hostname != _this_host() or _lives(owner.pid))


def _lives(pid: int) -> bool:
    """Return False of a process of this host that has ended, also if its parent (the first process of
    a container, say) never asks how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _watch(lock: SoftFileLease, path: Path) -> None:
    """Acquires it if no one touches the file for LEASE_S seconds, else raises Timeout."""
    try:
        lock.acquire(timeout=LEASE_S + BEAT_S)
    except Timeout:
        if lock.owner is not None or path.stat().st_size > 0:
            raise
        # The process that made it was killed before it wrote its name, and filelock would wait for
        # it without end. Should it only have been suspended, `is_held` stops it.
        path.unlink(missing_ok=True)
        lock.acquire(timeout=0)


@functools.cache
def _this_host() -> str:
    """Name this host as filelock writes it: in a container with the namespace of the process ids."""
    with (
        tempfile.TemporaryDirectory() as directory,
        SoftFileLease(Path(directory) / "lock") as lock,
    ):
        owner = lock.owner
        return owner.hostname if owner else ""
