"""Signals that were blocked for a process (stop_request.deaf_children) stay blocked.

Answers Lib/multiprocessing/resource_tracker.py:145-151 of CPython 3.11: the first process that is started with
multiprocessing, such as vLLM's engine, unblocks SIGTERM in the thread that starts it, whatever was blocked before. Slurm's
SIGTERM then ended the engine in the middle of the step that was to be saved.
"""

from __future__ import annotations

import signal
from multiprocessing import resource_tracker


def keep_blocked() -> None:
    """From now on multiprocessing leaves this process's mask alone, if SIGTERM is blocked here; else nothing changes.

    Called by each actor before it starts anything."""
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        resource_tracker._HAVE_SIGMASK = False  # type: ignore[attr-defined]
