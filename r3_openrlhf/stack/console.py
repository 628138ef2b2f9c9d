"""Show a run's progress: a line per phase and per step, and something that moves; the rest is in
train.log.

How it looks is runs/display.py."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.display import LAST, Display, Outputs, duration, to_go_s
from r3_openrlhf.runs.files import no_link
from r3_openrlhf.stack.phases import Phase, announce


class Console:
    """Context manager that sends standard output and error of this process and its children to a
    file: to the run's log once `attach` has named the run. `verbose` shows that file on the
    terminal too, `quiet` nothing at all."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self.run: RunDirectory | None = None
        self._verbose, self._quiet = verbose and not quiet, quiet
        self._early: list[tuple[Phase, float]] = []  # before there was a run directory
        # new lines of events, metrics and evaluations
        self._files: list[Iterator[list[dict]]] = []
        self._log_position = 0
        self._max_tokens: int | None = None
        # the last lines of metrics.jsonl that this process has seen
        self._steps: list[dict] = []

    def __enter__(self) -> Console:
        self._outputs = Outputs()
        self._sink = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__). Without a name, so that a kill leaves none
        self._outputs.send_to(self._sink.fileno())
        self._display = Display(
            None if self._quiet else self._outputs.terminal, poll=self._show_what_is_new
        )
        self._display.__enter__()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._display.__exit__(kind, error, trace)
        self._outputs.restore()
        if (
            self.run is None
            and error is not None
            and not isinstance(error, (R3Error, KeyboardInterrupt))
        ):
            early = self._early_output.read_text(errors="replace")
            self._outputs.terminal.write(early)  # there is no log to look into
        self._sink.close()
        self._outputs.terminal.close()

    @property
    def _early_output(self) -> Path:
        """Opened by this path it is read from its beginning, also while it is written."""
        return Path(f"/proc/self/fd/{self._sink.fileno()}")

    def announce(self, phase: Phase) -> None:
        """Begin a phase of this process."""
        if self.run is not None:
            announce(self.run, phase)  # and is returned with those of the other processes
        else:
            self._early.append((phase, time.time()))
            self._display.phase(phase)

    def attach(self, run: RunDirectory, *, first_phase: Phase) -> None:
        """Send the output to the log of `run`, which exists; show its processes' events."""
        self._outputs.flush()
        with open(run.log, "ab", opener=no_link) as log:
            self._log_position = log.tell()
            with self._early_output.open("rb") as early:
                shutil.copyfileobj(early, log)
            log.flush()
            self._outputs.send_to(log.fileno())
        for phase, at in self._early:
            announce(run, phase, at=at)
        files = [new_lines(file) for file in (run.events, run.metrics, run.evaluations)]
        for lines in files:
            next(lines)
        self._files, self.run = files, run
        self.announce(first_phase)

    def say(self, text: str) -> None:
        """Show a line of ours, and write it into the log."""
        with contextlib.suppress(OSError):  # a full disk
            sys.stdout.write(f"{text}\n")
        self._display.line(text)

    def expect(self, num_steps: int, *, max_tokens: int | None) -> None:
        """Set how many steps the run will make, and how many generated tokens may end it."""
        self._max_tokens = max_tokens
        self._display.expect(num_steps)

    def _show_what_is_new(self) -> None:
        run = self.run
        if run is None:
            return
        events, metrics, evaluations = (next(lines) for lines in self._files)
        if self._verbose:
            self._show_log(run)
        for line in metrics:
            self._steps = [*self._steps[-LAST:], line]
            left = to_go_s(
                self._steps, num_steps=self._display.num_steps, max_tokens=self._max_tokens
            )
            self._display.progress(line["step"], left_s=left)
            self._display.line(step_line(line) + (f", {duration(left)} to go" if left else ""))
        for line in evaluations:
            self._display.line(evaluation_line(line))
        for event in events:
            if "warning" in event:
                self._display.line(f"warning: {event['warning']}")
            self._display.phase(event["phase"], event["step"])

    def _show_log(self, run: RunDirectory) -> None:
        with run.log.open("rb") as log:
            log.seek(self._log_position)
            for line in itertools.takewhile(lambda line: line.endswith(b"\n"), log):
                self._log_position += len(line)
                self._display.line(line.decode(errors="replace").rstrip())


def new_lines(path: Path) -> Iterator[list[dict]]:
    """Each `next` yields the whole JSON lines that were added since the last one.

    A file that was replaced by a shorter one (a resumed run forgot steps) goes on after its end.
    """
    num_seen: int | None = None
    stamp = None
    while True:
        lines: list[bytes] = []
        status = path.stat() if path.is_file() else None
        if status is not None and stamp != (
            stamp := (status.st_ino, status.st_size, status.st_mtime_ns)
        ):
            lines = path.read_bytes().split(b"\n")[:-1]
            if num_seen is None:
                num_seen = len(lines)
            num_seen, lines = len(lines), lines[num_seen:]
        num_seen = num_seen or 0  # of a file that comes later everything is new
        yield [json.loads(line) for line in lines]


def evaluation_line(line: dict) -> str:
    """Format a line of evaluations.jsonl as a sentence for the terminal."""
    if line["pass_at_1"] is None:
        return f"held-out problems after step {line['step']}: no response could be graded"
    return (
        f"held-out problems after step {line['step']}: {line['pass_at_1']:.1%} of the responses right, "
        f"{line['pass_at_n']:.1%} of the problems at least once in {line['n_samples']}, "
        f"{line['response_tokens_mean']:.1f} tokens"
    )


def step_line(metrics: dict) -> str:
    """Format a line of metrics.jsonl for the terminal; "-" for each missing number."""

    def number(key: str, digits: int = 0) -> str:
        value = metrics.get(key)
        return "-" if value is None else f"{value:.{digits}f}"

    if "r3/agents/success_rate" in metrics:
        return (
            f"step {metrics['step']}: success rate {number('r3/agents/success_rate', 3)}, reward {number('fresh/reward', 3)}, "
            f"{number('r3/agents/turns_mean', 1)} turns a trajectory, invalid actions {number('r3/agents/invalid_rate', 3)}, "
            f"lost trajectories {number('r3/agents/lost')}, rows {number('r3/agents/rows')}, log-prob gap "
            f"{number('r3/sync/abs_logprob_gap', 4)}, {number('timing/step_total', 1)} s"
        )
    taught = ""
    if "r3/distill/taught" in metrics:
        taught = f"taught rows {number('r3/distill/taught')}, "
    return (
        f"step {metrics['step']}: reward {number('fresh/reward', 3)}, collapsed groups "
        f"{number('r3/groups/collapsed_before')} -> {number('r3/groups/collapsed_after')}, recalled "
        f"{number('r3/replay/recalled')}, reflection groups {number('r3/reflection/groups')}, ranked groups "
        f"{number('r3/ranking/groups')}, {taught}log-prob gap {number('r3/sync/abs_logprob_gap', 4)}, "
        f"{number('timing/step_total', 1)} s"
    )
