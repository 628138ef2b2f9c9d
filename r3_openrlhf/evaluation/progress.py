"""What a user sees while an evaluation works: a progress bar on stderr. The engine's own talk goes to eval.log."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from r3_openrlhf.evaluation.sample_file import SampledProblem
from r3_openrlhf.types import Verdict


class Terminal:
    """Context manager. Standard output and error of this process and its children go to `log` meanwhile."""

    def __init__(self, log: Path, *, verbose: bool) -> None:
        self.log = log
        self.verbose = verbose

    def __enter__(self) -> Terminal:
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = [os.dup(1), os.dup(2)]
        self._stream = os.fdopen(os.dup(2), "w")
        self._console = Console(file=self._stream)
        if not self.verbose:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        return self

    def __exit__(self, *error) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)
        self._stream.close()

    def say(self, text: str) -> None:
        """A line for the person at the terminal, whatever is being redirected."""
        self._console.print(text, highlight=False)

    def bar(self, *, num_responses: int) -> Bar:
        """A progress bar over so many responses."""
        return Bar(self._console, num_responses)


class Bar:
    """Context manager: responses so far, tokens per second, and how many were right."""

    def __init__(self, console: Console, num_responses: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console)
        self._task = self._progress.add_task("sampling", total=num_responses)
        self._num_tokens = self._num_graded = self._num_correct = 0

    def __enter__(self) -> Bar:
        self._started = time.perf_counter()
        self._progress.start()
        return self

    def __exit__(self, *error) -> None:
        self._progress.stop()

    def response(self, num_tokens: int) -> None:
        """One more response, of so many tokens."""
        self._num_tokens += num_tokens
        speed = self._num_tokens / (time.perf_counter() - self._started)
        accuracy = f", {self._num_correct / self._num_graded:.1%} right" if self._num_graded else ""
        self._progress.update(self._task, advance=1, description=f"{speed:.0f} tokens/s{accuracy}")

    def problem(self, problem: SampledProblem) -> None:
        """One more problem, all of its responses graded."""
        self._num_graded += sum(response.verdict is not Verdict.UNGRADED for response in problem.responses)
        self._num_correct += sum(response.verdict is Verdict.CORRECT for response in problem.responses)
