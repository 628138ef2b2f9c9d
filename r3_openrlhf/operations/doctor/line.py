"""One line of the table, and the line of a terminal that says what is being looked at."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from r3_openrlhf.method.errors import quoted

OK, NOTE, FAIL = "ok", "note", "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A NOTE is worth reading but stops nothing; a FAIL always has a remedy."""

    what: str
    found: str
    wanted: str
    status: str = OK
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in (OK, NOTE, FAIL):
            raise ValueError(f"status is {quoted(self.status)}; use {OK}, {NOTE} or {FAIL}")
        if (self.status == OK) != (not self.remedy):
            raise ValueError(f"{self.what}: a line has a remedy if it is not ok, and only then")

    @property
    def verdict(self) -> str:
        """The last cell: "ok", or the status and the remedy."""
        return OK if self.status == OK else f"{self.status.upper()}: {self.remedy}"


def judged(good: bool, remedy: str, **line: str) -> Line:
    """OK, or FAIL with the remedy."""
    return Line(**line, status=OK if good else FAIL, remedy="" if good else remedy)


def progress(name: str) -> None:
    """Importing takes seconds each: a terminal gets one line that is written over, and "" clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{name and f'looking at {name}'}")
        sys.stderr.flush()
