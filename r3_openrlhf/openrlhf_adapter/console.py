"""What a user sees while a run works: a progress bar and one line per step; everything else goes to train.log."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from r3_openrlhf.runs.directory import RunDirectory

POLL_S = 0.5


class Console:
    """Context manager. Standard output and error of this process and its children go to run.log meanwhile."""

    def __init__(self, run: RunDirectory, *, num_steps: int, verbose: bool) -> None:
        self.run = run
        self.num_steps = num_steps
        self.verbose = verbose
        self._done = threading.Event()

    def __enter__(self) -> Console:
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = [os.dup(1), os.dup(2)]
        self._terminal = os.fdopen(os.dup(2), "w")
        if not self.verbose:
            log = os.open(self.run.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._done.set()
        self._thread.join()
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)
        self._terminal.close()

    def _follow(self) -> None:
        console = RichConsole(file=self._terminal)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("starting Ray, vLLM, DeepSpeed", total=self.num_steps)
            lines, evaluations = new_lines(self.run.metrics), new_lines(self.run.evaluations)
            done = False
            while not done:
                done = self._done.wait(POLL_S)  # one more look after the run has ended
                for line in next(lines):
                    progress.console.print(step_line(line), highlight=False)
                    progress.update(task, completed=line["step"], description="training")
                for line in next(evaluations):
                    progress.console.print(evaluation_line(line), highlight=False)


def new_lines(path: Path):
    """Each `next` yields the whole JSON lines that were added since the last one. A file that was replaced (a resumed
    run forgot steps, the last line was completed) is read on behind as many lines as were seen of the old one."""
    seen = position = inode = None
    while True:
        found = []
        if path.is_file():
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino != inode:
                    inode = os.fstat(file.fileno()).st_ino
                    old = list(itertools.islice((line for line in file if line.endswith(b"\n")), seen))
                    seen, position = len(old), sum(map(len, old))
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    seen += 1
                    found.append(json.loads(line))
        elif seen is None:
            seen = 0  # everything in it will be new
        yield found


def evaluation_line(line: dict) -> str:
    if line["pass_at_1"] is None:
        return f"held-out problems after step {line['step']}: no response could be graded"
    return (
        f"held-out problems after step {line['step']}: {line['pass_at_1']:.1%} of the responses right, "
        f"{line['pass_at_n']:.1%} of the problems at least once in {line['n_samples']}, "
        f"{line['response_tokens_mean']:.1f} tokens"
    )


def step_line(metrics: dict) -> str:
    def number(key: str, digits: int = 0) -> str:
        value = metrics.get(key)
        return "-" if value is None else f"{value:.{digits}f}"

    return (
        f"step {metrics['step']}: reward {number('reward_mean', 3)}, collapsed groups "
        f"{number('r3/groups/collapsed_before')} -> {number('r3/groups/collapsed_after')}, recalled "
        f"{number('r3/replay/recalled')}, reflection groups {number('r3/reflection/groups')}, ranked groups "
        f"{number('r3/ranking/groups')}, log-prob gap {number('r3/sync/abs_logprob_gap', 4)}, "
        f"{number('timing/step_total', 1)} s"
    )
