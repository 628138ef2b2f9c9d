"""One writer per store, across nodes.

Beside the store lies STORE.lock. The writer holds a POSIX byte-range lock on it (which dies with the process, and
which NFSv4 and Lustre's `flock` mount option carry to other nodes), and writes into it who it is and, every few
seconds, a new beat. Who finds the lock free takes over

* at once, when the last holder ran under the same kernel boot: there the lock's release proves that it is gone;
* from another machine, when the record did not change while we watched it for `watch_s` seconds: there the lock
  proves nothing, because some network file systems keep locks to each node.

A store has one lock file for each of its names. So that a hard link, or a symbolic one, admits no second writer, the
writer also locks one byte of the store itself, far behind those that SQLite locks: an open-file-description lock, because
SQLite, when it unlocks, takes every POSIX lock of the process away.

A holder that was taken for dead (suspended, cut off) and comes back meets the token in the store's own `lease` table,
which every transaction checks: it cannot write any more.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import struct
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from r3_openrlhf.errors import HistoryError

BEAT_S = 5.0
WATCH_S = 30.0  # six missed beats
_RECORD_BYTES = 1024  # written in one piece, padded, never grown: a full disk cannot stop the beat
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_log = logging.getLogger(__name__)

# A POSIX lock belongs to the process: a second lock of this process would succeed, and closing any descriptor of the
# file would drop the first. So our own leases are looked up here, by process (a forked child owns none of them).
_own: dict[tuple[int, str], Holder] = {}
_own_guard = threading.Lock()
_own_inodes: set[tuple[int, int, int]] = set()  # (process, device, inode) of stores that this process writes to
_OWN_BYTE = 2**62  # of the store; SQLite's own locks are at 2**30 (sqlite.org/src/file/src/os.h, PENDING_BYTE)
_own_stores: set[int] = set()  # descriptors that hold such a lock


def _forget_stores() -> None:
    """A forked child would share the lock, and keep it when its parent is killed."""
    for descriptor in _own_stores:
        os.close(descriptor)
    _own_stores.clear()


os.register_at_fork(after_in_child=_forget_stores)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease."""

    token: str
    host: str
    pid: int
    started: str  # start time of the process in kernel ticks: a process id is used again, this pair is not
    boot_id: str  # names one boot of one kernel
    since: str  # UTC, ISO 8601

    @classmethod
    def me(cls) -> Holder:
        """This process, with a token that no other lease has."""
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_process_start(os.getpid()) or "",
            boot_id=_boot_id(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


class Lease:
    """The right to write to one store, until release()."""

    def __init__(self, path: Path, descriptor: int, holder: Holder, *, beat_s: float) -> None:
        self.holder = holder
        self._path = path
        self._descriptor = descriptor
        self._beat_s = beat_s
        self._beat = 0
        self._store: int | None = None  # a descriptor of the store
        self._inode: tuple[int, int, int] | None = None
        self._stop = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._keep_beating, name="r3-history-lease", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls, store: Path, *, lock: Path | None = None, beat_s: float = BEAT_S, watch_s: float = WATCH_S
    ) -> Lease:
        """Raises HistoryError, with the holder's host, process and time, when another writer is there.

        lock: the lock file, by itself STORE.lock; with it, `store` is the name for messages only."""
        path = lock or store.with_name(store.name + ".lock")
        me = Holder.me()
        key = os.getpid(), str(path.resolve())
        with _own_guard:
            if key in _own:
                raise _refusal(store, _own[key])
            _own[key] = me
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                locked = _lock(descriptor, store)
                _check_last_holder(descriptor, path, store, me, locked=locked, watch_s=watch_s)
                return cls(path, descriptor, me, beat_s=beat_s)
            except BaseException:
                os.close(descriptor)
                raise
        except BaseException as error:
            with _own_guard:
                _own.pop(key, None)
            if isinstance(error, OSError):
                raise HistoryError(f"cannot write the lock file {path}: {error.strerror}") from error
            raise

    def claim(self, store: Path) -> None:
        """Raises HistoryError when this process writes to the file at `store` under another name. Opens nothing: closing any
        descriptor of a file drops every POSIX lock of this process on it."""
        try:
            status = os.stat(store)
        except FileNotFoundError:
            return
        key = os.getpid(), status.st_dev, status.st_ino
        with _own_guard:
            if key in _own_inodes and key != self._inode:
                raise _linked(store)
            _own_inodes.add(key)
        self._inode = key

    def lock_store(self, store: Path) -> None:
        """Raises HistoryError when another process does. Call it behind SQLite's connect, and release() behind its close."""
        self.claim(store)
        self._store = os.open(store, os.O_RDWR)
        try:
            with _own_guard:
                _own_stores.add(self._store)
            fcntl.fcntl(self._store, fcntl.F_OFD_SETLK, struct.pack("hhqqii", fcntl.F_WRLCK, 0, _OWN_BYTE, 1, 0, 0))
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise _linked(store) from error

    def release(self) -> None:
        """Lets the next writer in at once. Harmless when repeated, and in a forked child, which holds nothing."""
        with _own_guard:
            if _own.pop((os.getpid(), str(self._path.resolve())), None) is None:
                return
        self._stop.set()
        self._thread.join()
        if self._is_ours():
            os.pwrite(self._descriptor, b" " * _RECORD_BYTES, 0)
        os.close(self._descriptor)
        with _own_guard:
            if self._store is not None:
                os.close(self._store)
                _own_stores.discard(self._store)
            _own_inodes.discard(self._inode)

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._beat_s):
            try:
                if not self._is_ours():
                    _log.warning("%s was taken over by %s", self._path, _read(self._descriptor)[0])
                    return
                self._write()
            except OSError as error:
                _log.warning("cannot renew the lock file %s: %s", self._path, error)

    def _is_ours(self) -> bool:
        holder, _ = _read(self._descriptor)
        return holder is not None and holder.token == self.holder.token

    def _write(self) -> None:
        self._beat += 1
        record = json.dumps({**asdict(self.holder), "beat": self._beat}).encode()
        os.pwrite(self._descriptor, record.ljust(_RECORD_BYTES), 0)
        os.fsync(self._descriptor)


def last_holder(store: Path, *, lock: Path | None = None) -> tuple[Holder | None, str]:
    """Who wrote to a store last, and whether it still does: "running", "gone", or "unknown" (on another machine)."""
    path = lock or store.with_name(store.name + ".lock")
    with _own_guard:  # reading the file here would drop our own lock
        own = _own.get((os.getpid(), str(path.resolve())))
    if own is not None:
        return own, "running"
    holder = _parse(path.read_bytes()) if path.exists() else None
    if holder is None:
        return None, "gone"
    if holder.boot_id != _boot_id():
        return holder, "unknown"
    return holder, "running" if _process_start(holder.pid) == holder.started else "gone"


def _lock(descriptor: int, store: Path) -> bool:
    """True: the lock is ours. False: this file system has no locks. Raises HistoryError when another has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
    raise _refusal(store, _read(descriptor)[0])


def _check_last_holder(descriptor: int, path: Path, store: Path, me: Holder, *, locked: bool, watch_s: float) -> None:
    """Returns when the last holder is gone, else raises HistoryError."""
    holder, record = _read(descriptor)
    if holder is None:
        return
    if holder.boot_id == me.boot_id:
        if locked or _process_start(holder.pid) != holder.started:
            return
        raise _refusal(store, holder)
    _log.warning("%s was last written by %s; watching its lock file for %.0f s", store, holder, watch_s)
    deadline = time.monotonic() + watch_s
    pause = threading.Event()
    while (left := deadline - time.monotonic()) > 0:
        pause.wait(min(1.0, left))
        # A fresh descriptor: network file systems look at the server again on open. But not under our own POSIX
        # lock, which closing it would drop; the lock is taken again below.
        fresh = os.open(path, os.O_RDONLY)
        try:
            seen = os.pread(fresh, _RECORD_BYTES, 0)
        finally:
            os.close(fresh)
        if locked:
            _lock(descriptor, store)
        if seen != record:
            raise _refusal(store, _parse(seen) or holder)


def _refusal(store: Path, holder: Holder | None) -> HistoryError:
    who = str(holder) if holder else "another process"
    return HistoryError(f"{store} is being written by {who}; stop that run first, or give this one another run_dir")


def _linked(store: Path) -> HistoryError:
    return HistoryError(
        f"{store} is being written under another name of the same file (it is linked); stop that run first, or give this one "
        "another run_dir"
    )


def _read(descriptor: int) -> tuple[Holder | None, bytes]:
    record = os.pread(descriptor, _RECORD_BYTES, 0)
    return _parse(record), record


def _parse(record: bytes) -> Holder | None:
    try:
        values = json.loads(record)
        return Holder(**{name: values[name] for name in Holder.__dataclass_fields__})
    except (ValueError, KeyError, TypeError):
        return None


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else socket.gethostname()


def _process_start(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat (proc_pid_stat(5)); None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
