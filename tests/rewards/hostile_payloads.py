"""Payloads against a grader: those of hostile_payloads.toml, and those that TOML cannot hold."""

import tomllib
from pathlib import Path


def _determinant(size: int) -> str:
    rows = ("&".join(f"x_{{{i}{j}}}" for j in range(size)) for i in range(size))
    return "\\begin{vmatrix}" + "\\\\".join(rows) + "\\end{vmatrix}"


def endless(i: int = 0) -> str:
    """Return an answer, another for every i, that takes a grader with ENDLESS_REFERENCE to its deadline."""
    return f"x+{i}"


def _payload(entry: str | list[list]) -> str:
    return entry if isinstance(entry, str) else "".join(text * times for text, times in entry)


_FILE = Path(__file__).with_suffix(".toml").read_text("utf-8")
_PAYLOADS = {
    name: [_payload(entry) for entry in entries]
    for name, entries in tomllib.loads(_FILE).items()
}

# no answer makes the grader slow; the determinant of a reference does
ENDLESS_REFERENCE = _determinant(9)
CODE = _PAYLOADS["CODE"]
ENDLESS = _PAYLOADS["ENDLESS"] + [
    "\\sin(x)" + "".join(f"\\sin({k}x)" for k in range(2, 25)),
    _determinant(9),
]
HUGE = _PAYLOADS["HUGE"] + ["\\{" + ",".join(map(str, range(100_000))) + "\\}"]
UNICODE = _PAYLOADS["UNICODE"] + ["\ud800", "5\ud83d"]
PAYLOADS = CODE + [endless()] + ENDLESS + HUGE + UNICODE
