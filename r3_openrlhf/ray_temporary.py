"""Where Ray keeps its own files, its sockets among them."""

from __future__ import annotations

import os
from pathlib import Path

# A Unix socket's path has 107 bytes (unix(7)); below the directory Ray makes the longest one of them like this.
MAX_BYTES = 107 - len("/ray/session_2026-01-31_12-00-00_000000_4194304/sockets/plasma_store")
REMEDY = "set RAY_TMPDIR to a shorter one, such as /tmp"


def ray_temporary() -> Path:
    """The directory for temporary files, as Ray chooses it (ray/_common/utils.py:323, `get_default_system_temp_dir`)."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def bytes_of(path: Path | str) -> int:
    """Of the path's name, as the kernel counts them."""
    return len(os.fsencode(path))
