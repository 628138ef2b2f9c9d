"""How progress is shown: a line per phase, other messages, and a moving line.

On a terminal there is a live line below them. Elsewhere lines are plain, and a wait has one every HEARTBEAT_S.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column
from typing_extensions import override

from r3_openrlhf.runs.pace import duration

POLL_S = 0.2  # between two ticks
HEARTBEAT_S = 8.0  # no one waits for more than ten seconds without a word, on a busy machine either


def screen_for(stream: TextIO, *, quiet: bool = False) -> NoScreen:
    """The display that suits the stream: live on a terminal, plain lines elsewhere, nothing if `quiet`."""
    if quiet:
        return NoScreen()
    if stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown"):
        return LiveScreen(stream)
    return PlainScreen(stream)


class Display:
    """What is said when. `screen` shows it; `clock` gives seconds."""

    def __init__(self, screen: NoScreen, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.screen = screen
        self.clock = clock
        self.num_steps: int | None = None
        self._title: str | None = None
        self._detail = ""
        self._ends: float | None = None  # by the clock: when all is done
        self._in_step = False
        self._started = self._phase_began = self._said = clock()

    def expect(self, num_steps: int) -> None:
        """So many steps, or responses, are all."""
        self.num_steps = num_steps
        self.screen.steps(0, num_steps)

    def phase(self, phase: str, step: int | None = None) -> None:
        """This is done from now on, alone or as a part of a step."""
        title = phase if step is None else f"step {step} of {self.num_steps or '?'}: {phase}"
        if title == self._title:
            return
        now = self.clock()
        if self._title is not None and not self._in_step:
            self.screen.phase_ended(self._title, now - self._phase_began)
        self._title, self._detail, self._in_step, self._phase_began = title, "", step is not None, now
        if self.screen.phase_began(title, minor=self._in_step, elapsed=now - self._started):
            self._said = now

    def progress(self, done: int, detail: str, *, left_s: float | None = None) -> None:
        """The phase has come so far. `detail` is shown after its name; `left_s`: seconds until all is done, None: not known."""
        self._detail = detail
        self._ends = None if left_s is None else self.clock() + left_s
        self.screen.steps(done, self.num_steps)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._said = self.clock()
        self.screen.line(text, elapsed=self._said - self._started)

    def tick(self) -> None:
        """Called all the time."""
        if self._title is None:
            return
        now = self.clock()
        if now - self._said >= self.screen.heartbeat_s:
            self._said = now
            title = f"{self._title}: {self._detail}" if self._detail else self._title
            if self._ends is not None and self._ends > now:
                title += f", {duration(self._ends - now)} to go"
            self.screen.heartbeat(title, now - self._phase_began, elapsed=now - self._started)

    def end(self) -> None:
        """The last phase is over."""
        if self._title is not None and not self._in_step:
            self.screen.phase_ended(self._title, self.clock() - self._phase_began)


class Ticking(contextlib.AbstractContextManager["Ticking"]):
    """A Display that a thread of its own ticks, so that a call that takes minutes shows that it is alive. Any thread may call."""

    def __init__(self, stream: TextIO) -> None:
        self._display = Display(screen_for(stream))
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    @override
    def __enter__(self) -> Ticking:
        self._thread.start()
        return self

    @override
    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def phase(self, phase: str) -> None:
        """As Display.phase."""
        with self._lock:
            self._display.phase(phase)

    def expect(self, number: int) -> None:
        """As Display.expect."""
        with self._lock:
            self._display.expect(number)

    def progress(self, done: int, detail: str, *, left_s: float | None = None) -> None:
        """As Display.progress."""
        with self._lock:
            self._display.progress(done, detail, left_s=left_s)

    def line(self, text: str) -> None:
        """As Display.line."""
        with self._lock:
            self._display.line(text)

    def _tick(self) -> None:
        with self._display.screen:
            while not self._ended.wait(POLL_S):
                with self._lock:
                    self._display.tick()
            self._display.end()


class NoScreen(contextlib.nullcontext[None]):
    """Shows nothing. What the others show, and after how many seconds without a line a wait is one."""

    heartbeat_s: float = float("inf")
    width = 100  # columns of a line

    def phase_began(self, title: str, *, minor: bool, elapsed: float) -> bool:
        """A phase begins, `elapsed` seconds after the start; `minor` if it is a part of a step. Returns whether this was shown."""
        return False

    def phase_ended(self, title: str, seconds: float) -> None:
        """A phase that is no part of a step is over."""

    def heartbeat(self, title: str, seconds: float, *, elapsed: float) -> None:
        """The phase has lasted so many seconds."""

    def line(self, text: str, *, elapsed: float) -> None:
        """A line that stays."""

    def steps(self, done: int, total: int | None) -> None:
        """So many of `total` are done; None: no one knows how many there will be."""


class PlainScreen(NoScreen):
    """Lines for a file or a pipe, each with the time since the start. Phases inside a step only show in heartbeats."""

    heartbeat_s = HEARTBEAT_S

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    @override
    def phase_began(self, title: str, *, minor: bool, elapsed: float) -> bool:
        if not minor:
            self.line(title, elapsed=elapsed)
        return not minor

    @override
    def heartbeat(self, title: str, seconds: float, *, elapsed: float) -> None:
        self.line(f"{title}, {seconds:.0f} s", elapsed=elapsed)

    @override
    def line(self, text: str, *, elapsed: float) -> None:
        self.stream.write(f"{_hours(elapsed)} {text}\n")
        self.stream.flush()


class LiveScreen(NoScreen):
    """A terminal: the live line shows the phase and how long it has lasted; what stays is above it."""

    heartbeat_s = 0.0  # with every tick

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=RichConsole(file=stream, force_terminal=True),
            refresh_per_second=4,
            # what libraries print goes to the log, not above the live line
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.width = self.progress.console.width
        self.task = self.progress.add_task("starting", total=None)

    @override
    def __enter__(self) -> None:
        self.progress.__enter__()

    @override
    def __exit__(self, *error: Any) -> None:
        self.progress.update(self.task, visible=False)
        self.progress.__exit__(*error)

    @override
    def phase_began(self, title: str, *, minor: bool, elapsed: float) -> bool:
        self.progress.update(self.task, description=title, refresh=True)
        return True

    @override
    def phase_ended(self, title: str, seconds: float) -> None:
        self._print(f"{title:<40} {seconds:6.1f} s")

    @override
    def heartbeat(self, title: str, seconds: float, *, elapsed: float) -> None:
        self.progress.update(self.task, description=f"{title}, {seconds:.0f} s")

    @override
    def line(self, text: str, *, elapsed: float) -> None:
        self._print(text)

    @override
    def steps(self, done: int, total: int | None) -> None:
        # never quite complete: rich stops the spinner and the clock of a finished task, and the run still has to be saved
        self.progress.update(self.task, completed=done, total=None if total is None else total + 0.5)

    def _print(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False)


def _hours(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
