"""Standard output and error of this process and its children, while a terminal shows something else."""

from __future__ import annotations

import contextlib
import os
import sys


class Outputs:
    """File descriptors 1 and 2, which `send_to` turns elsewhere until `restore`. `terminal` is where 2 led before."""

    def __init__(self) -> None:
        self.flush()
        self._saved = [os.dup(1), os.dup(2)]
        self.terminal = os.fdopen(os.dup(2), "w")

    def flush(self) -> None:
        """What Python still holds goes where it was meant to go."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(
                OSError
            ):  # the log is on a full disk: what is said on the terminal counts for more
                stream.flush()

    def send_to(self, descriptor: int) -> None:
        """From now on both lead to this open file."""
        self.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)

    def restore(self) -> None:
        """Both lead where they led at first. `terminal` stays open."""
        self.flush()
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)
