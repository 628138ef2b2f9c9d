"""The directory of Ray's files and sockets, which only this user can enter."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "r3-"
# A Unix socket's path has 107 bytes (unix(7)); the longest below the directory is this.
MAX_BYTES = 107 - len(
    f"/{PREFIX}12345678/ray/session_2026-01-31_12-00-00_000000_4194304/sockets/plasma_store"
)
REMEDY = "set RAY_TMPDIR to a shorter one, such as /tmp"


def ray_temporary() -> Path:
    """Ray's directory for temporary files (ray/_common/utils.py:323)."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def bytes_of(path: Path | str) -> int:
    """Bytes of the path, as the kernel counts them."""
    return len(os.fsencode(path))


@contextlib.contextmanager
def private_directory(parent: Path) -> Iterator[Path]:
    """Make a directory for one Ray, removed after the block, or by `sweep` after a kill.

    Ray opens its own directory to everybody (ray/_common/utils.py:453 gives it mode 777), so that
    is one inside of a directory of mode 700."""
    parent.mkdir(parents=True, exist_ok=True)  # as Ray does
    outer = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    unlocked = outer / "not_yet_in_use"
    with unlocked.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # locked when it appears, so that no one sweeps it away
        unlocked.rename(outer / "in_use")
        inner = outer / "ray"
        inner.mkdir()
        try:
            yield inner
        finally:
            shutil.rmtree(outer, ignore_errors=True)


def sweep(parent: Path) -> list[str]:
    """Remove this user's private directories whose process is gone; returns their names."""
    removed = []
    for left in parent.glob(f"{PREFIX}*"):
        try:
            with (left / "in_use").open("r") as lock:
                if left.stat().st_uid != os.getuid():
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
                removed.append(str(left))
        except OSError:
            continue  # held by a living process, another user's, or just removed
    return removed
