"""One line of the table."""

from __future__ import annotations

from dataclasses import dataclass

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
            raise ValueError(f"status is {self.status!r}; use {OK}, {NOTE} or {FAIL}")
        if (self.status == OK) != (not self.remedy):
            raise ValueError(f"{self.what}: a remedy stands on a line that is not ok, and only there")


def judged(good: bool, remedy: str, **line: str) -> Line:
    """OK, or FAIL with the remedy."""
    return Line(**line, status=OK if good else FAIL, remedy="" if good else remedy)
