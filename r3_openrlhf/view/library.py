"""The runs and evaluations that are open, each with a short name for its address."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.view.evaluation_reader import EvaluationReader
from r3_openrlhf.view.run_reader import RunReader

RESERVED = {"static", "api", "search", "compare", "help"}  # first parts of other addresses


@dataclass(frozen=True, slots=True)
class Found:
    """A directory that can be opened."""

    path: Path
    is_run: bool


class Library:
    """What was named on the command line. `refresh` finds runs that began since."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        """Raises R3Error for a path that does not exist, and when there is nothing to open."""
        self.paths = [Path(path).expanduser().absolute() for path in paths]
        for path in self.paths:
            if not path.exists():
                raise R3Error(f"{path} does not exist; name run directories, or directories that hold some")
        self._refreshing = threading.Lock()
        self.runs: dict[str, RunReader] = {}  # replaced, never changed: others may be reading it
        self.evaluations: dict[str, EvaluationReader] = {}
        self.refresh()
        if not self.runs and not self.evaluations:
            raise R3Error(
                f"there is no run in {', '.join(map(str, self.paths))}; a run directory has a config.yaml, an evaluation "
                "a samples.jsonl"
            )

    def refresh(self) -> None:
        """Names that were given stay; what is new gets one."""
        with self._refreshing:
            self._look()

    def _look(self) -> None:
        known = {run.path for run in self.runs.values()} | {one.path for one in self.evaluations.values()}
        for path in self.paths:
            for found in find(path):
                if found.path in known:
                    continue
                known.add(found.path)
                name = self._free_name(found.path)
                if found.is_run:
                    self.runs = {**self.runs, name: RunReader(found.path, name=name)}
                else:
                    self.evaluations = {**self.evaluations, name: EvaluationReader(found.path, name=name)}

    def _free_name(self, path: Path) -> str:
        """The directory's name, with as many of its parents as tell it from the others."""
        parts = [part for part in path.parts if part not in ("/", "..")]
        for count in range(1, len(parts) + 1):
            name = "-".join(parts[-count:])
            if name not in self.runs and name not in self.evaluations and name not in RESERVED:
                return name
        return f"{path.name}-{len(self.runs) + len(self.evaluations)}"


def find(path: Path) -> Iterator[Found]:
    """Runs and evaluations at `path` or below it, by name. Below a run only its evaluations are looked for."""
    for folder, folders, files in os.walk(path):
        folders.sort()
        if "config.yaml" in files:
            folders[:] = [name for name in folders if name == "evaluations"]
            yield Found(Path(folder), is_run=True)
        elif "samples.jsonl" in files and "settings.json" in files:
            folders.clear()
            yield Found(Path(folder), is_run=False)
