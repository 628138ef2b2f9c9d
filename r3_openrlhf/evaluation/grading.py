"""The grader of training, for responses that are there: requests in, grades out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.evaluation.sample_file import (
    WAITING,
    SampledProblem,
    SampledResponse,
    SampleFile,
)
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader
from r3_openrlhf.rewards.exchange import Grade, in_group
from r3_openrlhf.rewards.thinking import as_graded

WINDOW = 64  # problems whose responses are graded at a time
GONE = Grade(verdict=Verdict.UNGRADED, reason="unreachable", score=None, reward=None)


class Grading:
    """Context manager. Grades in the worker processes, or on the servers, that `config` names.

    `is_gone` once a response had no grade within reward.deadline_s: what is asked then is not graded.
    """

    def __init__(self, config: RewardConfig, *, prompt: str = "") -> None:
        """prompt: a final prompt; the others end as it does."""
        self._config, self._prompt = config, prompt
        self.is_gone = False

    def __enter__(self) -> Grading:
        self._runner = asyncio.Runner()
        self._grader = make_grader(self._config)
        return self

    def __exit__(self, *_: object) -> None:
        self._grader.close()
        self._runner.close()

    def request(
        self, label: Label, text: str, *, num_tokens: int, truncated: bool
    ) -> GradeRequest:
        """Make the request about one response to the problem of `label`."""
        text = as_graded(self._prompt, text)
        return GradeRequest.about(label, text, num_tokens=num_tokens, truncated=truncated)

    def requests(
        self, label: Label, responses: Sequence[SampledResponse]
    ) -> list[GradeRequest]:
        """Make the requests about all responses to a problem, which are one group."""
        return in_group(
            [
                self.request(
                    label, one.text, num_tokens=one.num_tokens, truncated=one.truncated
                )
                for one in responses
            ]
        )

    def grade(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        """Return the grade of each request, in their order."""
        if not requests or self.is_gone:
            return [GONE] * len(requests)

        async def all_grades() -> list[Grade]:
            return await asyncio.gather(*map(self._grader.grade, requests))

        grades = self._runner.run(all_grades())
        self.is_gone = any(
            grade.verdict is Verdict.UNGRADED and grade.reason in WAITING for grade in grades
        )
        return grades


def graded(
    problems: Iterable[SampledProblem],
    labels: Mapping[tuple[str, str], Label],
    grading: Grading,
) -> Iterator[SampledProblem]:
    """Yield the same problems, with grades for all waiting responses to problems of `labels`."""
    problems = iter(problems)
    while window := list(itertools.islice(problems, WINDOW)):
        waiting = {
            (problem.key, number): (response, request)
            for problem in window
            if problem.key in labels
            for number, (response, request) in enumerate(
                zip(
                    problem.responses,
                    grading.requests(labels[problem.key], problem.responses),
                    strict=True,
                )
            )
            if response.is_waiting
        }
        grades = grading.grade([request for _, request in waiting.values()])
        new = {
            key: each.graded(grade)
            for (key, (each, _)), grade in zip(waiting.items(), grades, strict=True)
        }
        for problem in window:
            responses = [
                new.get((problem.key, number), each)
                for number, each in enumerate(problem.responses)
            ]
            yield replace(problem, responses=responses)


def grade_file(
    file: SampleFile, labels: Mapping[tuple[str, str], Label], grading: Grading
) -> int:
    """Grade what waits in the file. Returns how many problems still wait for a grader."""

    def num_waiting() -> int:
        return sum(problem.is_waiting and problem.key in labels for problem in file.read())

    if not num_waiting():
        return 0
    file.replace(graded(file.read(), labels, grading))
    return num_waiting()
