"""The indexes of the open runs, kept current in a thread of its own while pages are served."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.view.library import Library
from r3_openrlhf.view.run_reader import RunReader
from r3_openrlhf.view.search_index import RunIndex

LOOK_S = 2.0  # between two looks for new steps


@dataclass(slots=True)
class Indexed:
    """One run's index, and what was counted in it."""

    index: RunIndex
    counted: dict[int, dict[str, int]] = field(default_factory=dict)  # step -> curves.counts_of it
    done: int = 0  # steps of the current update
    total: int = 0


class Indexing:
    """`start` and `stop` belong together. Everything else may be called from any thread, also without a start."""

    def __init__(self, library: Library, *, cache: Path | None = None) -> None:
        self._library = library
        self._cache = cache
        self._indexed: dict[str, Indexed] = {}
        self._faults: dict[str, str] = {}
        self._guard = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="r3 view index", daemon=True)

    def start(self) -> None:
        """Begin to read what is new, and continue until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that is being read."""
        self._ending.set()
        self._thread.join()
        with self._guard:
            for found in self._indexed.values():
                found.index.close()
            self._indexed.clear()

    def of(self, run: RunReader) -> Indexed:
        """The index of a run as far as it is. R3Error: there can be none, with the reason."""
        with self._guard:
            if run.name not in self._indexed:
                self._indexed[run.name] = Indexed(RunIndex(run.path, cache=self._cache))
            return self._indexed[run.name]

    @property
    def counted(self) -> dict[str, dict[int, dict[str, int]]]:
        """Name of a run -> what was counted of its steps so far."""
        with self._guard:
            return {name: dict(found.counted) for name, found in self._indexed.items()}

    def update(self, run: RunReader) -> None:
        """Read what is new of one run, and count it."""
        if not run.steps():
            return
        found = self.of(run)
        found.counted = found.index.counts()
        if not found.index.is_current():
            for progress in found.index.update():
                found.done, found.total = progress.done, progress.total
                found.counted[progress.step] = progress.counts
                if self._ending.is_set():
                    return
            found.counted = found.index.counts()  # without steps that are gone
        found.done = found.total = 0

    def why_incomplete(self, run: RunReader) -> str | None:
        """A sentence while the index of a run lacks steps; None: it is complete, as far as is known."""
        with self._guard:
            if run.name in self._faults:
                return self._faults[run.name]
            found = self._indexed.get(run.name)
        if found is None or not found.total:
            return None
        return f"The index of {run.name} is being built: {found.done} of {found.total} steps, the newest first."

    def _work(self) -> None:
        readers: dict[str, RunReader] = {}  # of its own: they are for one thread
        while not self._ending.is_set():
            for run in list(self._library.runs.values()):
                reader = readers.setdefault(run.name, RunReader(run.path, name=run.name))
                try:
                    self.update(reader)
                except R3Error as error:
                    with self._guard:
                        self._faults[run.name] = str(error)
                if self._ending.is_set():
                    return
            self._ending.wait(LOOK_S)
