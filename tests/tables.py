"""Tables of text that tests read: `what is given => what comes of it`, one a line; a line that begins with # is a comment."""

from pathlib import Path


def rows_of(file: Path) -> list[list[str]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line.split(" => ", 1) for line in lines if not line.startswith("#")]
