"""`r3` in another process, and the end of all of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from r3_openrlhf.stack.recorded_rollouts import PLAYBACK
from tests.recordings import COMMAND, lines, rollouts_of

ROOT = Path(__file__).parents[2]
R3 = Path(sys.executable).with_name("r3")
# environment variables, for gated_worker.py, which loads vLLM
SYNC, GATE = (
    "R3_TEST_HELD_IN_SYNC",
    "R3_TEST_GATE",
)
LIMIT_S = 1200  # a whole run takes about a minute; a machine that is busy with other things is no failure
__all__ = ["LIMIT_S", "R3", "ROOT", "Run", "lines", "r3", "rollouts_of", "train"]


class Run:
    """A training run in the background. Use as a context manager: no process is left behind.

    held_in: the step in whose weight sync it waits until `open()`. The step before has its metrics, this one is graded. A run
    that goes on from a checkpoint makes one more sync at its start. On CPUs."""

    def __init__(
        self,
        run_dir: Path,
        *settings: str,
        experiment: str = "cpu_smoke",
        environment: dict[str, str] | None = None,
        held_in: int | None = None,
    ) -> None:
        self.dir = run_dir
        self.settings = settings
        arguments = ["train", f"experiment={experiment}", f"run_dir={run_dir}", *settings]
        surroundings = {**os.environ, **(environment or {})}
        self.plays_back = PLAYBACK in surroundings
        self._gate = run_dir.with_name(f"{run_dir.name}.open")
        if held_in is not None:
            surroundings |= {
                "PYTHONPATH": str(ROOT),
                "R3_CPU_WORKER_EXTENSION": "tests.stack.gated_worker.Gated",
                SYNC: str(held_in),
                GATE: str(self._gate),
            }
        self.process = subprocess.Popen(
            [R3, *arguments],
            cwd=ROOT,
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # a shell's background job ignores it
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error) -> None:
        self.kill()

    def steps_done(self) -> int:
        path = self.dir / "metrics.jsonl"
        return path.read_text().count("\n") if path.is_file() else 0

    def open(self) -> None:
        """A held run goes on."""
        self._gate.touch()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until it holds; a run that ends before that is a failure."""
        while not condition():
            try:
                self.process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            assert condition(), self.story()
            return

    def wait_for_step(self, step: int) -> None:
        """Until the step's metrics are written."""
        self.wait_until(lambda: self.steps_done() >= step)

    def finish(self) -> subprocess.CompletedProcess:
        out, said = self.process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(
            self.process.args, self.process.returncode, out, said
        )

    def story(self, said: str = "") -> str:
        """For the message of a failed assertion."""
        log = self.dir / "train.log"
        stale = f"\nif the recording is stale: {COMMAND}" if self.plays_back else ""
        return said + (log.read_text()[-4000:] if log.is_file() else "no train.log") + stale

    def family(self) -> list[psutil.Process]:
        """The program and everything that it started, as far as it lives."""
        try:
            itself = psutil.Process(self.process.pid)
            return [itself, *itself.children(recursive=True)]
        except psutil.NoSuchProcess:  # it has just ended by itself
            return []

    def send(self, number: int) -> list[psutil.Process]:
        """Send it to the family, which is returned. Some of it may end by itself meanwhile."""
        family = self.family()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)
        return family

    def kill(self) -> None:
        """SIGKILL for the program and everything that it started, as a node failure would."""
        if self.process.poll() is None:
            psutil.wait_procs(self.send(signal.SIGKILL), timeout=60)
            self.process.communicate()


def train(
    run_dir: Path, *settings: str, code: int = 0, **options
) -> subprocess.CompletedProcess:
    """Until the end, which must be with this exit code."""
    with Run(run_dir, *settings, **options) as run:
        done = run.finish()
        assert done.returncode == code, run.story(done.stderr)
        return done


def r3(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    """`r3 ARGUMENTS` until its end."""
    return subprocess.run(
        [R3, *arguments], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S
    )
