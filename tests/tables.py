"""Tables that tests read from a file beside them."""

import tomllib
from pathlib import Path
from typing import Any


def rows_of(file: Path) -> list[list[str]]:
    """Of `what is given => what comes of it`, one a line; a line that begins with # is a comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line.split(" => ", 1) for line in lines if not line.startswith("#")]


def tables_beside(test_file: str) -> dict[str, Any]:
    """The tables of NAME.toml beside test_NAME.py."""
    file = Path(test_file)
    return tomllib.loads(
        file.with_name(file.stem.removeprefix("test_") + ".toml").read_text("utf-8")
    )
