"""What a user sees while an evaluation works, on stderr (runs/display.py). The engine's own talk goes to eval.log."""

from __future__ import annotations

import time
from pathlib import Path

from r3_openrlhf.evaluation.sample_file import SampledProblem
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.display import Ticking
from r3_openrlhf.runs.outputs import Outputs


class Terminal:
    """Context manager. Standard output and error of this process and its children go to `log` meanwhile."""

    def __init__(self, log: Path, *, verbose: bool) -> None:
        self.log = log
        self.verbose = verbose

    def __enter__(self) -> Terminal:
        self._outputs = Outputs()
        if not self.verbose:
            with self.log.open("ab") as log:
                self._outputs.send_to(log.fileno())
        self._display = Ticking(self._outputs.terminal)
        self._display.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._display.__exit__(*error)
        self._outputs.restore()
        self._outputs.terminal.close()

    def say(self, phase: str) -> None:
        """What is done from now on."""
        self._display.phase(phase)

    def bar(self, *, num_responses: int) -> Bar:
        """Sampling begins."""
        self._display.phase("sampling")
        self._display.expect(num_responses)
        return Bar(self, num_responses)

    def progress(self, done: int, detail: str, *, left_s: float) -> None:
        """So many of what `bar` was told, and the seconds that the others will take."""
        self._display.progress(done, detail, left_s=left_s)


class Bar:
    """Responses so far, tokens per second, how many were right, and the time to go at the mean speed so far."""

    def __init__(self, terminal: Terminal, num_responses: int) -> None:
        self._terminal = terminal
        self._num_responses = num_responses
        self._started = time.perf_counter()
        self._done = self._num_tokens = self._num_graded = self._num_correct = 0

    def response(self, num_tokens: int) -> None:
        """One more, of so many tokens."""
        self._done += 1
        self._num_tokens += num_tokens
        seconds = time.perf_counter() - self._started
        left = (self._num_responses - self._done) * seconds / self._done
        accuracy = f", {self._num_correct / self._num_graded:.1%} right" if self._num_graded else ""
        detail = (
            f"{self._done} of {self._num_responses} responses, {self._num_tokens / seconds:.0f} tokens/s{accuracy}"
        )
        self._terminal.progress(self._done, detail, left_s=left)

    def problem(self, problem: SampledProblem) -> None:
        """One more problem is graded."""
        self._num_graded += sum(response.verdict is not Verdict.UNGRADED for response in problem.responses)
        self._num_correct += sum(response.verdict is Verdict.CORRECT for response in problem.responses)
