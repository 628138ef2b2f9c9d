"""Show progress and the time to go: phases, lines that stay, a moving line on a terminal (rich).

Elsewhere lines are plain, begin with the time since the start, and come every HEARTBEAT_S.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

LAST = 10  # steps whose median says how long one takes
STEP_S = ("timing/step_total", "time/step_s")  # of the stack, of the lab
PHASES = {
    "sampling": "timing/generation",
    "log-probs and rewards": "timing/make_experience",
    "policy update": "timing/ppo_train",
    "weights to the engine": "timing/broadcast",
}

POLL_S = 0.2  # between two ticks
# no one waits for more than ten seconds without a word, on a busy machine either
HEARTBEAT_S = 8.0


class Display(contextlib.AbstractContextManager["Display"]):
    """Phases, lines and counts on `stream`; nothing at all without one. Any thread may call.

    A thread ticks five times a second, so that a call that takes minutes shows that it is alive; it
    calls `poll` each time."""

    def __init__(
        self,
        stream: TextIO | None,
        *,
        poll: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._poll, self._clock = stream, poll, clock
        is_live = stream is not None and stream.isatty()
        is_live &= os.environ.get("TERM") not in (None, "", "dumb", "unknown")
        self._bar = _bar(stream) if is_live else None
        self.num_steps: int | None = None
        self._title, self._detail, self._in_step = "", "", False
        self._ends: float | None = None  # by the clock: when all is done
        self._started = self._phase_began = self._spoke = clock()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Display:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def expect(self, num_steps: int) -> None:
        """Set how many steps, or responses, there will be."""
        self.num_steps = num_steps
        self.progress(0)

    def phase(self, phase: str, step: int | None = None) -> None:
        """Begin a phase, alone or as a part of a step."""
        title = phase if step is None else f"step {step} of {self.num_steps or '?'}: {phase}"
        with self._lock:
            if title == self._title:
                return
            self.end_phase()
            self._title, self._detail, self._in_step = title, "", step is not None
            self._phase_began = self._clock()
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=title, refresh=True)
            elif step is None:
                self.line(title)

    def end_phase(self) -> None:
        """Show how long the last phase took, unless it is a part of a step."""
        if self._bar is not None and self._title and not self._in_step:
            self.line(f"{self._title:<40} {self._clock() - self._phase_began:6.1f} s")

    def progress(self, done: int, detail: str = "", *, left_s: float | None = None) -> None:
        """Show the number of steps done; `detail` and the time to go follow the phase's name."""
        with self._lock:
            self._detail = detail
            self._ends = None if left_s is None else self._clock() + left_s
            if self._bar is not None:
                # never quite complete: rich stops a finished clock; saving is left
                total = None if self.num_steps is None else self.num_steps + 0.5
                self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def line(self, text: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self._spoke = self._clock()
            if self._bar is not None:
                self._bar.console.print(text, highlight=False, markup=False)
            elif self._stream is not None:
                minutes, seconds = divmod(int(self._spoke - self._started), 60)
                self._stream.write(f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} {text}\n")
                self._stream.flush()

    def tick(self) -> None:
        """Show that the phase goes on."""
        with self._lock:
            title = f"{self._title}: {self._detail}" if self._detail else self._title
            if self._ends is not None and self._ends > self._clock():
                title += f", {duration(self._ends - self._clock())} to go"
            title += f", {self._clock() - self._phase_began:.0f} s"
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=title)
            elif self._title and self._clock() - self._spoke >= HEARTBEAT_S:
                self.line(title)

    def _run(self) -> None:
        with self._bar or contextlib.nullcontext():
            is_over = False
            while not is_over:
                is_over = self._ended.wait(POLL_S)  # one more look after the end
                self._poll()
                if self._title:
                    self.tick()
            self.end_phase()
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], visible=False)


def _bar(stream: TextIO | None) -> Progress:
    bar = Progress(
        SpinnerColumn(),
        TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")
        ),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=RichConsole(file=stream, force_terminal=True),
        refresh_per_second=4,
        # what libraries print goes to the log, not above the live line
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task("starting", total=None)
    return bar


class Outputs:
    """File descriptors 1 and 2, elsewhere from `send_to` to `restore`. `terminal`: 2 before."""

    def __init__(self) -> None:
        self.flush()
        self._saved = [os.dup(1), os.dup(2)]
        self.terminal = os.fdopen(os.dup(2), "w")

    def flush(self) -> None:
        """Write what Python still holds to where it was meant to go."""
        for stream in (sys.stdout, sys.stderr):
            # the log is on a full disk: the lines on the terminal count for more
            with contextlib.suppress(OSError):
                stream.flush()

    def send_to(self, descriptor: int) -> None:
        """Let both lead to this open file from now on."""
        self.flush()
        for number in (1, 2):
            os.dup2(descriptor, number)

    def restore(self) -> None:
        """Let both lead where they led at first. `terminal` stays open."""
        self.flush()
        for number, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, number)
            os.close(saved)


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3.5 h", "2.1 days"."""
    for limit, unit, text in (
        (90, 1, "{:.0f} s"),
        (90 * 60, 60, "{:.0f} min"),
        (48 * 3600, 3600, "{:.1f} h"),
    ):
        if seconds < limit:
            return text.format(seconds / unit)
    return f"{seconds / 86400:.1f} days"


def to_go_s(
    metrics: Sequence[Mapping[str, Any]],
    *,
    num_steps: int | None,
    max_tokens: int | None = None,
) -> float | None:
    """Seconds until the last step ends: the steps that are left, each as long as the median of the
    last LAST.

    Args:
        metrics: lines of metrics.jsonl, of which the last LAST count.
        num_steps: steps of the whole run; None: not known.
        max_tokens: train.max_generated_tokens, which may end the run earlier.

    Returns:
        None where no step has a time, or neither limit is known."""
    timed = [
        [line[key] for key in STEP_S if line.get(key) is not None] for line in metrics[-LAST:]
    ]
    seconds = [values[0] for values in timed if values]
    left = (
        [] if num_steps is None else [float(num_steps - metrics[-1]["step"])] if metrics else []
    )
    if metrics and max_tokens is not None:
        tokens = [
            line["generated_tokens"] for line in metrics[-LAST:] if line.get("generated_tokens")
        ]
        total = metrics[-1].get("generated_tokens_total")
        if tokens and total is not None:
            left.append((max_tokens - total) / median(tokens))
    return max(0.0, min(left)) * median(seconds) if left and seconds else None
