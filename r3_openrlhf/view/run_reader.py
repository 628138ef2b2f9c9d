"""One run directory, read as a page needs it. What was read is kept, within bounds, until its file
changes.

Nothing is written. A run that is still training is read as far as it has come."""

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import R3Error, quoted
from r3_openrlhf.method.types import Context, Verdict
from r3_openrlhf.runs import rollout_files
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.effect import tally_of
from r3_openrlhf.runs.files import EvaluationLine, MetricsLine, read_lines
from r3_openrlhf.runs.problem_files import Problem, problems_in
from r3_openrlhf.runs.state import RunState, planned_steps, state_of
from r3_openrlhf.runs.step_groups import Row, StepGroup, groups_of

MAX_SENTENCE = 600  # characters; "Settings and log" has the whole error
MAX_STEPS_KEPT = 6  # of which the rows without texts are kept: 1 to 2 MB each at full size
HEAVY = ("text", "prompt", "answer")  # columns that a step's page does not need

_VERDICTS, _CONTEXTS = frozenset(map(str, Verdict)), frozenset(map(str, Context))
_NUMBERS = [
    name for name, kind in rollout_files.COLUMNS.items() if kind == rollout_files.NUMBER
]
Value = TypeVar("Value")
Stamp = tuple[int, int, int]


class NotThere(R3Error):
    """The requested page does not exist."""


def is_count(text: str) -> bool:
    """Return True for a whole number of at most twelve digits: no file name takes more."""
    return text.isascii() and text.isdigit() and len(text) <= 12


def stamp_of(path: Path) -> Stamp:
    """Return a value that changes when the file does; (0, 0, 0) where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


class Reader:
    """A directory whose files are read again when they change. `name`: its address. Thread-safe."""

    def __init__(self, path: Path, *, name: str) -> None:
        self.path = path
        self.name = name
        self._kept: dict[str, tuple[object, Any]] = {}
        self._lock = threading.RLock()

    def fresh(self, what: str, stamp: object, read: Callable[[], Value]) -> Value:
        """Return what `read` gave last, as long as `stamp` is the same."""
        with self._lock:
            if what not in self._kept or self._kept[what][0] != stamp:
                self._kept[what] = (stamp, read())
            return self._kept[what][1]

    def told(
        self, what: str, stamp: object, read: Callable[[], Value]
    ) -> tuple[Value | None, str | None]:
        """`fresh`, and the sentence of an R3Error instead of the value."""

        def attempt() -> tuple[Value | None, str | None]:
            try:
                return read(), None
            except R3Error as error:
                return None, str(error)

        return self.fresh(what, stamp, attempt)


class RunReader(Reader):
    """Reads a run directory."""

    def __init__(self, path: Path, *, name: str) -> None:
        self.directory = RunDirectory(path)
        super().__init__(self.directory.path, name=name)
        self._rows_of = lru_cache(MAX_STEPS_KEPT)(lambda file, _: read_rows(file))

    # ── the run ──

    @property
    def config(self) -> R3Config | None:
        """The settings; None where this version cannot read them (`config_fault` says why)."""
        return self._config()[0]

    @property
    def config_fault(self) -> str | None:
        """The reason why there are no settings."""
        return self._config()[1]

    def _config(self) -> tuple[R3Config | None, str | None]:
        return self.told("config", stamp_of(self.directory.config), self.directory.load_config)

    @property
    def state(self) -> RunState:
        """The state of the run, as `r3 status` has it."""
        return state_of(self.directory)

    @property
    def is_finished(self) -> bool:
        """True if the run has ended."""
        return self.directory.finished.is_file()

    def state_sentence(self) -> str:
        """Say the state, after which step, and why: "failed after step 5 of 8: the disk is full"."""
        lines, num_steps = self.metrics(), None
        with suppress(R3Error):  # a damaged first page
            num_steps = planned_steps(self.directory)
        step = lines[-1]["step"] if lines else None
        text = self.state.sentence(step=step, num_steps=num_steps)
        return text if len(text) <= MAX_SENTENCE else f"{text[:MAX_SENTENCE]} …"

    def metrics(self) -> list[dict[str, Any]]:
        """Return the readable lines of metrics.jsonl by step; of a step done again, the last."""
        return self._lines(self.directory.metrics, MetricsLine)[0]

    def evaluations(self) -> list[dict[str, Any]]:
        """Return the lines of evaluations.jsonl by step, as far as they can be read."""
        return self._lines(self.directory.evaluations, EvaluationLine)[0]

    def _lines(self, file: Path, kind: type) -> tuple[list[dict[str, Any]], str | None]:
        """Read lines up to a damaged one. Returns them, and the sentence about it."""

        def read() -> tuple[list[dict[str, Any]], str | None]:
            latest: dict[int, dict[str, Any]] = {}
            fault = None
            try:
                for line in read_lines(file, kind):
                    latest[line["step"]] = line
            except R3Error as error:
                fault = str(error)
            return [latest[step] for step in sorted(latest)], fault

        return self.fresh(file.name, stamp_of(file), read)

    def faults(self) -> list[str]:
        """Return a sentence for each damaged file of the run; its rollouts have sentences of their own."""
        faults = [
            f"Its settings are left out: {self.config_fault}." if self.config_fault else None,
            self._lines(self.directory.metrics, MetricsLine)[1],
            self._lines(self.directory.evaluations, EvaluationLine)[1],
            *(
                self.problems(file)[1]
                for file in (self.directory.data, self.directory.held_out)
            ),
        ]
        return [fault for fault in faults if fault]

    # ── rollouts ──

    def steps(self) -> list[int]:
        """Return the steps that have rollouts, in order."""
        return list(rollout_files.steps_in(self.directory.rollouts))

    def rows(self, step: int) -> list[Row]:
        """Return the rollouts of a step without their texts, in the order of the file; `at` is
        their place in it. Raises R3Error where there are none."""
        return self._rows_of(*self._file_of(step))

    def groups(self, step: int) -> list[StepGroup]:
        """Return the groups of a step in file order. R3Error: there are no rollouts."""
        stamp = self._file_of(step)[1]
        return self.fresh(
            "groups", (step, stamp), lambda: groups_of(self.rows(step), step=step)
        )

    def group(self, step: int, context: str, uid: str) -> StepGroup:
        """Return one of `groups`. Raises NotThere."""
        for group in self.groups(step):
            if group.key == (uid, context):
                return group
        raise NotThere(f"step {step} of {self.name} has no {context} group of problem {uid}")

    def counts(self) -> dict[int, Mapping[str, int]]:
        """Totals of each step: "fate:..." groups. The first reading of a long run takes seconds. A
        damaged step has none; its pages say why."""
        counts: dict[int, Mapping[str, int]] = {}
        for step, file in rollout_files.steps_in(self.directory.rollouts).items():
            counts[step] = {}
            with suppress(R3Error, OSError):
                counts[step] = tally_of(file, step)
        return counts

    def rows_with_text(self, step: int, uid: str) -> list[Row]:
        """Return the rollouts of one problem in a step; `text` is None where the run kept none."""
        file, stamp = self._file_of(step)

        def read() -> list[Row]:
            return [
                row for row in rollout_files.read_step(file, uid_start=uid) if row["uid"] == uid
            ]

        return self.fresh("rows of a problem", (step, uid, stamp), read)

    def token_columns(self, step: int, uid: str) -> list[dict[str, np.ndarray | None]]:
        """Values of the tokens of `rows_with_text` in a step (rollout_files.TOKEN_COLUMNS)."""
        file, stamp = self._file_of(step)

        def read() -> list[dict[str, np.ndarray | None]]:
            rows = rollout_files.read_step(file, uid_start=uid, without=HEAVY)
            columns = rollout_files.read_tokens(file, uid_start=uid)
            return [
                values for row, values in zip(rows, columns, strict=True) if row["uid"] == uid
            ]

        return self.fresh("tokens of a problem", (step, uid, stamp), read)

    def _file_of(self, step: int) -> tuple[Path, Stamp]:
        file = rollout_files.file_of(self.directory.rollouts, step)
        stamp = stamp_of(file)
        if stamp == (0, 0, 0):
            steps = self.steps()
            has = f"; it has steps {steps[0]} to {steps[-1]}" if steps else ""
            raise R3Error(
                self.why_no_rollouts() or f"{self.path} has no rollouts of step {step}{has}"
            )
        return file, stamp

    def why_no_rollouts(self) -> str | None:
        """Return a sentence if the run has metrics and no rollouts; None otherwise."""
        if self.steps() or not self.metrics():
            return None
        return "This run has no rollouts/: not copied, removed, or never kept (the lab keeps the curves of a run alone)."

    # ── problems ──

    def problem(self, uid: str) -> Problem | None:
        """Return a problem; None where data/problems.jsonl and data/held_out.jsonl lack it."""
        return self.problems(self.directory.data)[0].get(uid) or self.problems(
            self.directory.held_out
        )[0].get(uid)

    def problems(self, file: Path) -> tuple[dict[str, Problem], str | None]:
        """uid -> problem of one of these files, and the sentence about its first damaged line."""
        return self.fresh(f"problems of {file.name}", stamp_of(file), lambda: problems_in(file))


def read_rows(file: Path) -> list[Row]:
    """Read the rollouts of a step without texts; `at`: place in the file. R3Error: damaged."""
    rows = list(rollout_files.read_step(file, without=HEAVY))
    for place, row in enumerate(rows):
        check_row(row, file)
        row["at"] = place
    return rows


def check_row(row: Row, file: str | Path) -> None:
    """Check the words and numbers of a rollout that a page relies on. Raises R3Error."""
    if row["verdict"] not in _VERDICTS or row["context"] not in _CONTEXTS:
        raise R3Error(
            f"{file} is damaged: a rollout has the verdict {quoted(row['verdict'])} and the context {quoted(row['context'])}; "
            "restore it from a copy"
        )
    for name in _NUMBERS:
        value = row.get(name)
        if value is not None and not math.isfinite(value):
            raise R3Error(
                f"{file} is damaged: {name} of a rollout is {value}; restore it from a copy"
            )
