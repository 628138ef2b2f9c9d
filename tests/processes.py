"""A look at processes that may end at any moment."""

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """The words of its command; none where it has ended, collected or not, or is just being started."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
