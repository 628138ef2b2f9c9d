"""Ask a running run to save and to end, and judge whether time allows another step.

The request is the content of a file in the run directory: the trainer may be on another node than
the process that gets the signal. The file exists, empty, before the first step: opening it again
shows another node's bytes (close-to-open in NFS); a missing file may stay missing for a minute.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.files import no_link

# Saved, and to be started again: what HTCondor calls the exit code of a self-checkpointing job.
GO_ON = 85
# environment variable: seconds since 1970 at which the job will be killed
DEADLINE = "R3_DEADLINE"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SAME_S = 1.0  # sooner ones are the same: Slurm signals run and agent
LEAVING_S = 4.0  # for leaving at once; then what is left is killed
GOES_ON = "; the same command continues from the newest checkpoint, if there is one"
RESERVE_S = 30.0  # for leaving: Ray's processes end, logs are copied


class RunInterrupted(R3Error):
    """The run was asked to end; it resumes from its newest checkpoint. No user error."""


@contextlib.contextmanager
def ignore_signals_in_children() -> Iterator[None]:
    """Block SIGNALS for processes started in the block, and for theirs: masks are inherited.

    Slurm sends signals of preemption, --signal and scancel to every process of a step
    (slurmstepd's proctrack_g_signal). Ray's daemons and workers would end before the save.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Stopped(KeyboardInterrupt):
    """A signal ends the run at once. No Exception: libraries continue after those."""

    def __init__(self, sentence: str, *, nothing_lost: bool) -> None:
        super().__init__(sentence)
        self.nothing_lost = nothing_lost


class StopRequest:
    """A file that holds why the run is to end after its current step; empty: it is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stopped: Stopped | None = None  # what a signal has raised

    def ask(self, why: str) -> None:
        """Ask the run to end after its current step; the last `why` counts, and "" takes it back."""
        with open(self.path, "w", encoding="utf-8", opener=no_link) as file:
            file.write(why)

    def reason(self) -> str | None:
        """Return why the run is to end; None when there was no request."""
        try:
            return self.path.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def on_signals(
        self,
        *,
        under_way: Callable[[], str | None] = lambda: "the step",
        say: Callable[[str], None] = lambda sentence: None,
        ends_at_once: bool = False,
        kill: Callable[[str], None] = lambda sentence: None,
    ) -> Callable[[], None]:
        """SIGNALS ask from now on, until what this returns is called.

        Args:
            under_way: What a run that ended now would lose; None: nothing, Stopped is raised.
            say: Is told what will happen, in another thread.
            ends_at_once: A second SIGTERM or SIGINT raises Stopped. False: senders repeat signals.
            kill: Called with LEAVING_S after that, in another thread, should this one hang.
        """
        first: float | None = None
        told = False

        def asked(number: int, _frame: FrameType | None) -> None:
            nonlocal first, told
            name, now = signal.Signals(number).name, time.monotonic()
            is_second = first is not None and now - first >= SAME_S
            if number != signal.SIGUSR1 and first is None:
                first = now
            if is_second and not ends_at_once:
                return
            if is_second and number != signal.SIGUSR1:
                sentence = f"stopped by a second {name}"
                timer = threading.Timer(LEAVING_S, kill, (sentence,))
                timer.daemon = True
                timer.start()
                self.stopped = Stopped(sentence, nothing_lost=False)
                raise self.stopped
            what = under_way()
            if what is None:
                self.stopped = Stopped(
                    f"asked to end (signal {name}) before a step began; nothing was lost",
                    nothing_lost=True,
                )
                raise self.stopped
            with contextlib.suppress(OSError):  # a full disk; the second one still ends the run
                self.ask(f"signal {name}")
            if told:
                return
            told = True
            again = "; again to stop now" if ends_at_once else ""
            threading.Thread(
                target=say, args=(f"{name}: finishing {what}, then saving{again}",), daemon=True
            ).start()

        # what a shell has its background jobs ignore stays ignored
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, asked) for number in heard}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore


class StepClock:
    """Measures steps and checkpoints of this process, in seconds of `now` (time.time)."""

    def __init__(
        self,
        *,
        save_minutes: float | None = None,
        deadline: float = math.inf,
        now: Callable[[], float] = time.time,
        started: float | None = None,
    ) -> None:
        self.save_minutes, self.deadline, self._now = save_minutes, deadline, now
        self._step_began = self._saved = started if started is not None else now()
        self.longest_step_s = self.longest_save_s = 0.0

    @classmethod
    def from_environment(
        cls, *, save_minutes: float | None, environment: Mapping[str, str] = os.environ
    ) -> StepClock:
        """Make a clock with the deadline of R3_DEADLINE, if it is set. ValueError: it is no number."""
        deadline = float(environment.get(DEADLINE) or math.inf)
        return cls(save_minutes=save_minutes, deadline=deadline)

    def step_ended(self) -> None:
        """Record that the step that began with `next_step` has ended."""
        self.longest_step_s = max(self.longest_step_s, self._now() - self._step_began)

    def saved(self, seconds: float) -> None:
        """Record that a checkpoint, which took `seconds`, is on disk."""
        self._saved = self._now()
        self.longest_save_s = max(self.longest_save_s, seconds)

    def next_step(self) -> None:
        """Record that a step begins now."""
        self._step_began = self._now()

    def is_time_to_save(self) -> bool:
        """Return True if `save_minutes` have passed since the last checkpoint. False if they are None."""
        return (
            self.save_minutes is not None
            and self._now() - self._saved >= 60 * self.save_minutes
        )

    def reason_to_stop(self) -> str | None:
        """Return why to stop: a step as long as the longest, and a checkpoint, would not end before the deadline.

        Nothing is known of a checkpoint before the first one: it counts as long as a step."""
        save_s = self.longest_save_s or self.longest_step_s
        left = self.deadline - self._now()
        if left >= 1.2 * self.longest_step_s + 1.5 * save_s + RESERVE_S:
            return None
        return f"{left:.0f} s are left, a step takes {self.longest_step_s:.0f} s and a checkpoint {save_s:.0f} s"
