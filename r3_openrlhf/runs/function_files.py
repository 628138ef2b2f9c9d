"""Copies of a user's reward functions in the run directory: a run that was moved can be evaluated, and a changed function shows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

FOLDER = "reward_functions"


def file_of(path: str) -> Path | None:
    """The file of an import path "file.py:name"; None for a module."""
    file = path if path.endswith(".py") else path.rpartition(":")[0]
    return Path(file) if file.endswith(".py") else None


def copy_in(run: Path, path: str) -> str:
    """The import path of the run's copy, which need not be there."""
    file = file_of(path)
    return path if file is None else f"{run / FOLDER / file.name}{path.removeprefix(str(file))}"


def keep_functions(run: Path, paths: Sequence[str]) -> list[str]:
    """Copy the file of each function into the run, once. Returns a sentence for each that is another one now than it was then."""
    changed = []
    for file in dict.fromkeys(filter(None, map(file_of, paths))):
        copy = run / FOLDER / file.name
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists():
            shutil.copyfile(file, copy)
        elif copy.read_bytes() != file.read_bytes():
            changed.append(
                f"{file} is not what the run began with, which is {copy}; its steps so far were graded by that"
            )
    return changed
