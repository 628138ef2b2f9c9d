"""The open runs and evaluations, each with a short name for its address; shared by pages."""

import threading
from collections.abc import Iterable
from pathlib import Path

from r3_openrlhf.comparison.runs import directories_below
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.view.evaluation import EvaluationReader
from r3_openrlhf.view.run_reader import NotThere, RunReader

RESERVED = {"static", "api", "search", "compare", "help"}  # first parts of other addresses


class Library:
    """The directories of the command line. `refresh` finds new runs. For any number of threads."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        """Open the paths. Raises R3Error for one that does not exist, and when there is nothing to open."""
        self.paths = [Path(path).expanduser().absolute() for path in paths]
        for path in self.paths:
            if not path.exists():
                raise R3Error(
                    f"{path} does not exist; name run directories, or directories that hold some"
                )
        self._refreshing = threading.Lock()
        # replaced, never changed: others may be reading it
        self.runs: dict[str, RunReader] = {}
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
            known = {
                reader.path for reader in [*self.runs.values(), *self.evaluations.values()]
            }
            for path, is_run in (
                entry for root in self.paths for entry in directories_below(root)
            ):
                if path in known:
                    continue
                known.add(path)
                name = self._free_name(path)
                if is_run:
                    self.runs = {**self.runs, name: RunReader(path, name=name)}
                else:
                    self.evaluations = {
                        **self.evaluations,
                        name: EvaluationReader(path, name=name),
                    }

    def _free_name(self, path: Path) -> str:
        """Return the directory's name, with as many of its parents as tell it from the others."""
        parts = [part for part in path.parts if part not in ("/", "..")]
        for count in range(1, len(parts) + 1):
            name = "-".join(parts[-count:])
            if name not in self.runs and name not in self.evaluations and name not in RESERVED:
                return name
        return f"{path.name}-{len(self.runs) + len(self.evaluations)}"

    def run(self, name: str) -> RunReader:
        """Return the run of this name. Raises NotThere."""
        if name not in self.runs:
            raise NotThere(f"there is no run called {name} here; the page / lists what is open")
        return self.runs[name]

    def evaluation(self, name: str) -> EvaluationReader:
        """Return the evaluation of this name. Raises NotThere."""
        if name not in self.evaluations:
            raise NotThere(
                f"there is no evaluation called {name} here; the page / lists what is open"
            )
        return self.evaluations[name]

    def statement(self, uid: str) -> str | None:
        """Return the text of a problem, where an open run has it: an evaluation keeps its hash alone."""
        for run in self.runs.values():
            if problem := run.problem(uid):
                return problem.label.problem
        return None
