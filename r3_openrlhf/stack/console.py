"""Show a run's progress: a line per phase and per step, and something that moves; the rest is in train.log.

How it looks is runs/display.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.display import POLL_S, Display, screen_for
from r3_openrlhf.runs.outputs import Outputs
from r3_openrlhf.runs.pace import LAST, duration, slower_than_usual, to_go_s
from r3_openrlhf.stack.phases import Phase, announce


class Console:
    """Context manager. Standard output and error of this process and its children go to a file meanwhile: to the
    run's log once `attach` has named the run. `verbose` shows that file on the terminal too, `quiet` nothing at all.
    """

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self.run: RunDirectory | None = None
        self.verbose = verbose
        self.quiet = quiet
        self._early: list[tuple[Phase, float]] = []  # before there was a run directory to note them in
        self._log_position = 0
        self._max_tokens: int | None = None
        self._steps: list[dict] = []  # the last lines of metrics.jsonl that this process has seen
        self._lock = threading.Lock()
        self._done = threading.Event()

    def __enter__(self) -> Console:
        self._outputs = Outputs()
        self._sink = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__). Without a name, so that a kill leaves none
        self._outputs.send_to(self._sink.fileno())
        self._display = Display(screen_for(self._outputs.terminal, quiet=self.quiet))
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._done.set()
        self._thread.join()
        self._outputs.restore()
        if self.run is None and error is not None and not isinstance(error, (R3Error, KeyboardInterrupt)):
            early = self._early_output.read_text(errors="replace")
            self._outputs.terminal.write(early)  # there is no log to look into
        self._sink.close()
        self._outputs.terminal.close()

    @property
    def _early_output(self) -> Path:
        """Opened by this path it is read from its beginning, also while it is written."""
        return Path(f"/proc/self/fd/{self._sink.fileno()}")

    def announce(self, phase: Phase) -> None:
        """A phase of this process begins."""
        if self.run is not None:
            announce(self.run, phase)  # and is returned with those of the other processes
            return
        self._early.append((phase, time.time()))
        with self._lock:
            self._display.phase(phase)

    def attach(self, run: RunDirectory, *, first_phase: Phase) -> None:
        """From now on output goes to the log of `run`, which exists, and the events of its processes are shown."""
        self._outputs.flush()
        with run.log.open("ab") as log:
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
        with self._lock:
            self._files = files
            self.run = run
        self.announce(first_phase)

    def say(self, text: str) -> None:
        """A line of ours, in the log too."""
        with contextlib.suppress(OSError):  # a full disk
            sys.stdout.write(f"{text}\n")
        with self._lock:
            self._display.line(text)

    def expect(self, num_steps: int, *, max_tokens: int | None) -> None:
        """Set how many steps the run will make, and how many generated tokens may end it."""
        with self._lock:
            self._max_tokens = max_tokens
            self._display.expect(num_steps)

    def _follow(self) -> None:
        with self._display.screen:
            done = False
            while not done:
                done = self._done.wait(POLL_S)  # one more look after the run has ended
                with self._lock:
                    if self.run is not None:
                        self._show_what_is_new(self.run)
                    self._display.tick()
            self._display.end()

    def _show_what_is_new(self, run: RunDirectory) -> None:
        events, metrics, evaluations = (next(lines) for lines in self._files)
        if self.verbose and not self.quiet:
            with run.log.open("rb") as log:
                log.seek(self._log_position)
                for line in log:
                    if line.endswith(b"\n"):
                        self._log_position += len(line)
                        self._display.line(line.decode(errors="replace").rstrip())
        for line in metrics:
            self._steps = [*self._steps[-LAST:], line]
            left = to_go_s(self._steps, num_steps=self._display.num_steps, max_tokens=self._max_tokens)
            self._display.progress(line["step"], "", left_s=left)
            self._display.line(step_line(line) + (f", {duration(left)} to go" if left else ""))
            if (sentence := slower_than_usual(self._steps)) is not None:
                self._display.line(f"step {line['step']} was {sentence}")
        for line in evaluations:
            self._display.line(evaluation_line(line))
        for event in events:
            if "warning" in event:
                self._display.line(f"warning: {event['warning']}")
            self._display.phase(event["phase"], event["step"])


def new_lines(path: Path):
    """Each `next` yields the whole JSON lines that were added since the last one. A file that was replaced (a resumed
    run forgot steps, the last line was completed) is read on after as many lines as were seen of the old one."""
    seen = position = 0
    inode: int | None = None
    first = True
    while True:
        found = []
        if path.is_file():
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino != inode:
                    inode = os.fstat(file.fileno()).st_ino
                    lines = (line for line in file if line.endswith(b"\n"))
                    old = list(itertools.islice(lines, None if first else seen))
                    seen, position = len(old), sum(map(len, old))
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    seen += 1
                    found.append(json.loads(line))
        first = False  # of a file that comes later everything is new
        yield found


def evaluation_line(line: dict) -> str:
    """A line of evaluations.jsonl, as a sentence for the terminal."""
    if line["pass_at_1"] is None:
        return f"held-out problems after step {line['step']}: no response could be graded"
    return (
        f"held-out problems after step {line['step']}: {line['pass_at_1']:.1%} of the responses right, "
        f"{line['pass_at_n']:.1%} of the problems at least once in {line['n_samples']}, "
        f"{line['response_tokens_mean']:.1f} tokens"
    )


def step_line(metrics: dict) -> str:
    """A line of metrics.jsonl, as one for the terminal; "-" for each number that it does not have."""

    def number(key: str, digits: int = 0) -> str:
        value = metrics.get(key)
        return "-" if value is None else f"{value:.{digits}f}"

    if "r3/agents/success_rate" in metrics:
        return (
            f"step {metrics['step']}: success rate {number('r3/agents/success_rate', 3)}, reward {number('reward_mean', 3)}, "
            f"{number('r3/agents/turns_mean', 1)} turns a trajectory, invalid actions {number('r3/agents/invalid_rate', 3)}, "
            f"lost trajectories {number('r3/agents/lost')}, rows {number('r3/agents/rows')}, log-prob gap "
            f"{number('r3/sync/abs_logprob_gap', 4)}, {number('timing/step_total', 1)} s"
        )
    return (
        f"step {metrics['step']}: reward {number('reward_mean', 3)}, collapsed groups "
        f"{number('r3/groups/collapsed_before')} -> {number('r3/groups/collapsed_after')}, recalled "
        f"{number('r3/replay/recalled')}, reflection groups {number('r3/reflection/groups')}, ranked groups "
        f"{number('r3/ranking/groups')}, log-prob gap {number('r3/sync/abs_logprob_gap', 4)}, "
        f"{number('timing/step_total', 1)} s"
    )
