"""Processes below another."""

import contextlib

import psutil


def descendants(pid: int) -> list[str]:
    """The names of the processes below one."""
    names = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names
