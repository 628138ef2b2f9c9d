"""A look at processes that may end at any moment, and the wait for what they do."""

import time
from collections.abc import Callable
from typing import Any

import psutil


def until(
    condition: Callable[[], Any],
    *,
    seconds: float = 600.0,
    what: str | Callable[[], str] = "it",
) -> Any:
    """The first true value of condition()."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, (
            f"waited {seconds:.0f} s for {what() if callable(what) else what}"
        )
        time.sleep(0.1)  # only the pace of asking
    return value


def command_of(process: psutil.Process) -> list[str]:
    """The words of its command; none where it has ended, collected or not, or is just being started."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
