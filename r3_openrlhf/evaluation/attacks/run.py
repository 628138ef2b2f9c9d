"""Tries the known attacks on a grader, and the references too, which it must accept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.config.answer_tasks import TASKS
from r3_openrlhf.evaluation.attacks.answer_attacks import answer_attacks
from r3_openrlhf.evaluation.attacks.program_attacks import program_attacks
from r3_openrlhf.evaluation.attacks.scorer_attacks import scorer_attacks
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.problems.sources import Label
from r3_openrlhf.rewards.answers.request import GradeRequest
from r3_openrlhf.rewards.client import make_grader

BATCH = 2000  # requests that wait at once


@dataclass(frozen=True, slots=True)
class Attempt:
    """One response to one problem. family: "" for the reference itself, which is no attack."""

    label: Label
    family: str
    response: str


@dataclass(slots=True)
class Findings:
    """Counts per family, and what was accepted or not graded."""

    tried: Counter = field(default_factory=Counter)
    accepted: list[Attempt] = field(default_factory=list)
    ungraded: list[tuple[Attempt, str]] = field(default_factory=list)
    refused: list[tuple[Attempt, str]] = field(default_factory=list)  # references that were not accepted
    num_references: int = 0


def attempts_on(label: Label) -> Iterator[Attempt]:
    """The references of a problem, and every attack on it."""
    runs_programs = TASKS[label.task].runs_programs
    if label.references and not runs_programs:
        own = label.references[0]
        yield Attempt(label, "", TASKS[label.task].answer_form % own)
    attacks: Iterator[tuple[str, str]]
    if runs_programs:
        form = TASKS[label.task].answer_form
        attacks = ((family, form % program) for family, program in program_attacks(label.references[0]))
    elif label.metadata is not None:
        attacks = ((family, f"<answer>{answer}</answer>") for family, answer in scorer_attacks(label.metadata))
    else:
        attacks = answer_attacks(label.problem, label.references[0], label.task)
    for family, response in attacks:
        yield Attempt(label, family, response)


def attack(labels: Sequence[Label], reward: RewardConfig) -> Findings:
    """Grades every attempt with the grader of `reward`: local processes, or its servers."""
    findings = Findings()
    attempts = [attempt for label in labels for attempt in attempts_on(label)]

    async def run() -> None:
        grader = make_grader(reward)
        try:
            for start in range(0, len(attempts), BATCH):
                batch = attempts[start : start + BATCH]
                grades = await asyncio.gather(*(grader.grade(_request(attempt)) for attempt in batch))
                for attempt, grade in zip(batch, grades, strict=True):
                    _note(findings, attempt, grade)
        finally:
            grader.close()

    asyncio.run(run())
    return findings


def _request(attempt: Attempt) -> GradeRequest:
    label = attempt.label
    return GradeRequest(
        response=attempt.response,
        references=tuple(label.references),
        task=label.task,
        num_tokens=len(attempt.response),
        truncated=False,
        metadata=label.metadata,
        problem=label.problem,
        row=label.row,
    )


def _note(findings: Findings, attempt: Attempt, grade) -> None:
    if not attempt.family:
        findings.num_references += 1
        if grade.verdict is not Verdict.CORRECT:
            findings.refused.append((attempt, grade.reason))
        return
    findings.tried[attempt.family] += 1
    if grade.verdict is Verdict.CORRECT:
        findings.accepted.append(attempt)
    elif grade.verdict is Verdict.UNGRADED:
        findings.ungraded.append((attempt, grade.reason))
