"""Score the taught rows after their teacher's prompts: one more forward pass of the policy before the update.

The formula and its choices are in method/core/distill.py. Only the policy scores them: a teacher has no
reference, no critic and no reward. B rows, A action positions, T tokens of a response, S sampled ones,
K kept tokens of each."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from transformers import PreTrainedTokenizerBase

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.core.distill import (
    WEIGHTS,
    Lesson,
    Target,
    TeacherScores,
    token_weights,
)
from r3_openrlhf.method.core.mixed_batch import MixedBatch, Row
from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.method.r3 import R3
from r3_openrlhf.method.settings import DistillSettings
from r3_openrlhf.method.types import EntropyStatistics, Rollout
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompts import RunPrompts
from r3_openrlhf.stack.convert import experience_from_recalled, filler_experience
from r3_openrlhf.stack.experience_values import rows_of
from r3_openrlhf.stack.taught_update import NO_TARGET, TARGET


def choose_lessons(
    r3: R3,
    config: R3Config,
    tokenizer: PreTrainedTokenizerBase,
    batch: MixedBatch,
    samples: Iterable[Experience],
    *,
    step: int,
) -> list[Lesson]:
    """Choose the rows that are taught in this step. samples: the fresh rows, whose labels are the problems."""
    if not config.distill.enabled:
        return []
    problems: dict[str, Label] = {}
    for text in dict.fromkeys(sample.labels[0] for sample in samples):
        label = Label.from_json(text)
        problems[label.uid] = label
    return r3.lessons(
        batch,
        step=step,
        problems=lambda rollout: problems[rollout.uid],
        render=RunPrompts(config, tokenizer),
    )


def rows_to_score(
    lessons: Sequence[Lesson],
    batch: MixedBatch,
    tokenizer: PreTrainedTokenizerBase,
    *,
    sibling: Experience,
    ranks: int,
) -> list[Experience]:
    """Return a row of [teacher's prompt + the response's own tokens] for each lesson, then fillers.

    Args:
        sibling: any fresh row: every row of a pass has the same fields.
        ranks: each rank runs as many passes as the others, so the rows become a multiple of it."""
    rows = []
    for lesson in lessons:
        # as a fresh prompt becomes ids (rollout_executor.py)
        ids = tokenizer(text=lesson.prompt, add_special_tokens=False)["input_ids"]
        rollout = batch.rows[lesson.row].rollout
        rows.append(
            experience_from_recalled(
                rollout, prompt_ids=np.array(ids, dtype=np.int32), sibling=sibling
            )
        )
    for _ in range(-len(rows) % ranks):
        rows.append(filler_experience(sibling, tokenizer.pad_token_id))
    for number, row in enumerate(rows):
        row.index = [number]
    return rows


def response_logprobs(
    experiences: list[Experience], rollouts: Mapping[int, Rollout]
) -> dict[int, np.ndarray]:
    """Return log-probs of the tokens of a response, float32 [T], 0 at tokens that were given.

    Args:
        experiences: with `action_log_probs` [B, A] and the rows' numbers in `index`.
        rollouts: number of a row -> its response, of the rows that are wanted."""
    found = {}
    for experience, position, number in rows_of(experiences):
        if number not in rollouts:
            continue
        mask_A = experience.action_mask[position].bool()
        values = experience.action_log_probs[position][mask_A].float().numpy()
        found[number] = of_all_tokens(values, rollouts[number])
    return found


def of_all_tokens(values: np.ndarray, rollout: Rollout) -> np.ndarray:
    """Return values of the sampled tokens in the places of all tokens, float32 [T], 0 at given ones."""
    placed = np.zeros(rollout.num_tokens, np.float32)
    placed[rollout.sampled] = values
    return placed


def scores_of(
    lessons: Sequence[Lesson],
    batch: MixedBatch,
    teacher: Mapping[int, np.ndarray],
    student: Mapping[int, np.ndarray],
    entropies: Mapping[int, EntropyStatistics],
) -> dict[int, TeacherScores]:
    """Return what the policy says of each taught row after both prompts, by the row's index in the batch.

    Args:
        teacher, entropies: by the place of the lesson.
        student: by the row's index in the batch."""
    scores = {}
    for place, lesson in enumerate(lessons):
        tokens = None
        if place in entropies:
            measured = entropies[place].tokens
            assert measured is not None
            tokens = of_all_tokens(measured.astype(np.float32), batch.rows[lesson.row].rollout)
        scores[lesson.row] = TeacherScores(teacher[place], student[lesson.row], tokens)
    return scores


def targets_of(
    lessons: Sequence[Lesson],
    batch: MixedBatch,
    kept: Mapping[int, tuple[np.ndarray, np.ndarray]],
    scores: Mapping[int, TeacherScores],
    settings: DistillSettings,
) -> dict[int, Target]:
    """Return the target of each taught row's sampled tokens, by the row's index in the batch.

    kept: by the place of the lesson, ids [S, K] and the teacher's log-probs [S, K].
    TrainingStopped: a log-prob of the teacher, or a weight, is not finite."""
    targets = {}
    for place, lesson in enumerate(lessons):
        rollout = batch.rows[lesson.row].rollout
        ids, logprobs = kept[place]
        try:
            weights = token_weights(
                scores[lesson.row].entropies, rollout.sampled, WEIGHTS[settings.weight]
            )
            if np.isnan(logprobs).any():
                raise ValueError("a log-prob of the teacher is not a number")
        except ValueError as error:
            raise TrainingStopped(
                f"a response of problem {rollout.uid} cannot be taught: {error}"
            ) from error
        weights = settings.coef * weights[rollout.sampled]
        targets[lesson.row] = Target(ids, logprobs, weights)
    return targets


def set_token_advantages(experience: Experience, position: int, row: Row) -> None:
    """Write a taught row's advantages of its sampled tokens, and 0 in all other positions."""
    assert row.token_advantages is not None
    experience.advantages[position] = 0.0
    mask_A = experience.action_mask[position].bool()
    values_T = torch.from_numpy(row.token_advantages[row.rollout.sampled])
    experience.advantages[position, mask_A] = values_T.to(experience.advantages.dtype)


def set_targets(
    experiences: list[Experience], rows: Sequence[Row], targets: Mapping[int, Target]
) -> None:
    """Give every row its target for the update, or none. targets: by the row's index in the batch."""
    for experience in experiences:
        experience.info[TARGET] = [
            targets.get(rows[place].index, NO_TARGET) if place < len(rows) else NO_TARGET
            for place in experience.index
        ]
