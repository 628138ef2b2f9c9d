"""Lessons of a step (method/core/distill.py) in the lab: the current policy scores the taught rows behind both prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.core.distill import (
    DISTILL_LOSSES,
    WEIGHTS,
    Lesson,
    Target,
    TeacherScores,
    token_weights,
)
from r3_openrlhf.method.core.mixed_batch import MixedBatch
from r3_openrlhf.method.r3 import R3
from research.update import RowScores, TrainedRow, score

if TYPE_CHECKING:
    from research.loop import Lab


def teach(lab: Lab, batch: MixedBatch, r3: R3) -> tuple[dict[int, Target], dict[str, float]]:
    """Set the token advantages of the taught rows, after `assign_advantages`.

    Returns the targets of rows, where distill.loss compares the likeliest tokens, and metrics: `r3/distill/*`, and the
    tokens that the teacher read, `teacher_tokens`; {} of both where distill is off."""
    config = lab.config
    if not config.distill.enabled:
        return {}, {}
    lessons = [batch.lessons[index] for index in sorted(batch.lessons)]
    behind_teacher = [
        TrainedRow(
            prompt_ids=lab.encode(lesson.prompt),
            response_ids=batch.rows[lesson.row].rollout.response_ids,
            advantage=0.0,
        )
        for lesson in lessons
    ]
    behind_own = [
        TrainedRow(
            prompt_ids=batch.prompt_ids_of(batch.rows[lesson.row]),
            response_ids=batch.rows[lesson.row].rollout.response_ids,
            advantage=0.0,
        )
        for lesson in lessons
    ]
    joins = DISTILL_LOSSES[config.distill.loss].function is None
    of_teacher = _scores(lab, behind_teacher, top_k=0 if joins else config.distill.top_k)
    of_student = _scores(lab, behind_own, top_k=0)
    scores = {
        lesson.row: TeacherScores(teacher.logprobs, student.logprobs, teacher.entropies)
        for lesson, teacher, student in zip(lessons, of_teacher, of_student, strict=True)
    }
    metrics = r3.teach(batch, scores)
    metrics["teacher_tokens"] = float(
        sum(len(row.prompt_ids) + len(row.response_ids) for row in behind_teacher)
    )
    targets = {} if joins else _targets(config, batch, lessons, of_teacher)
    return targets, metrics


def _scores(lab: Lab, rows: Sequence[TrainedRow], *, top_k: int) -> list[RowScores]:
    return score(
        lab.model,
        rows,
        temperature=lab.config.rollout.temperature,
        micro_batch_size=lab.config.train.micro_batch_size,
        top_k=top_k,
    )


def _targets(
    config: R3Config,
    batch: MixedBatch,
    lessons: Sequence[Lesson],
    of_teacher: Sequence[RowScores],
) -> dict[int, Target]:
    """Return the target of each taught row; a place counts coef times its weight, a given token nothing."""
    settings = config.distill
    targets = {}
    for lesson, scores in zip(lessons, of_teacher, strict=True):
        sampled = batch.rows[lesson.row].rollout.sampled
        weights = token_weights(scores.entropies, sampled, WEIGHTS[settings.weight])
        targets[lesson.row] = Target(
            scores.kept_ids, scores.kept_logprobs, settings.coef * weights
        )
    return targets
