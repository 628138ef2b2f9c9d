"""Signals that were blocked for a process (stop_request.ignore_signals_in_children) stay blocked.

Answers Lib/multiprocessing/resource_tracker.py:145-151 of CPython 3.11: the first process that is
started with multiprocessing, such as vLLM's engine, unblocks SIGTERM in the thread that starts it,
also if it was blocked before. Slurm's SIGTERM then ended the engine in the middle of the step that
was to be saved."""

import signal
from multiprocessing import resource_tracker


def keep_blocked() -> None:
    """Start multiprocessing's tracker with SIGTERM blocked, and block it again. It starts once.

    Called by each actor before it starts anything."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if signal.SIGTERM in before:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
