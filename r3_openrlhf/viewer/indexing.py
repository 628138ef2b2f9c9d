"""The indexes of the open runs, kept current in a thread of its own while pages are served."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from r3_openrlhf.errors import R3Error
from r3_openrlhf.viewer.curves import age_name
from r3_openrlhf.viewer.library import Library
from r3_openrlhf.viewer.run_reader import RunReader
from r3_openrlhf.viewer.search_index import RunIndex
from r3_openrlhf.viewer.step_groups import Asked, asked_groups, fates_in

LOOK_S = 2.0  # between two looks for new steps
COUNTED_TOGETHER = 20  # steps


@dataclass(slots=True)
class Indexed:
    """One run's index, and what was counted in it."""

    index: RunIndex
    counted: dict[int, dict[str, int]] = field(default_factory=dict)  # step -> "fate:..." and "age:..." -> how many
    done: int = 0  # steps of the update that is going on
    total: int = 0
    is_loaded: bool = False  # what an earlier viewer had counted

    def load(self, asked: Asked) -> None:
        """What was counted by an earlier viewer, with the same settings of the run."""
        for step, found in self.index.counts().items():
            if found["asked"] == _in_words(asked):
                self.counted[step] = found["counts"]

    def count(self, steps: Iterable[int], asked: Asked) -> None:
        """What became of the collapsed groups of some steps, and how old their recalled rows are."""
        new = {}
        for step in steps:
            groups = self.index.groups(step)
            if groups is not None:
                ages = Counter(f"age:{age_name(age)}" for age in self.index.recall_ages(step))
                fates = {f"fate:{fate}": number for fate, number in fates_in(groups, asked=asked).items()}
                new[step] = self.counted[step] = fates | ages
        self.index.keep_counts({step: {"asked": _in_words(asked), "counts": found} for step, found in new.items()})


def _in_words(asked: Asked) -> list[str]:
    return sorted(f"{state}, {context}" for state, context in asked)


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
        """Begin to read what is new, and go on until `stop`."""
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
        found, asked = self.of(run), asked_groups(run.config)
        if not found.is_loaded:
            found.load(asked)
            found.is_loaded = True
            missing = sorted(set(run.steps()) - found.counted.keys(), reverse=True)
            for place in range(0, len(missing), COUNTED_TOGETHER):
                found.count(missing[place : place + COUNTED_TOGETHER], asked)
                if self._ending.is_set():
                    return
        if not found.index.is_current():
            for progress in found.index.update():
                found.done, found.total = progress.done, progress.total
                found.count([progress.step], asked)
                if self._ending.is_set():
                    return
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
