"""What a grader is asked: one response and the answers that would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from r3_openrlhf.errors import ConfigError

Result = tuple[str, str, float | None, str | None]  # verdict, reason, score, extracted

# data sets of reasoning_gym whose scorers call answers correct which are not
REFUSED_DATA_SETS = {
    "coin_flip": "its scorer pays in full for an answer that is a prefix of the right one",
    "composite": "its entries name the data set that they come from; use that one",
    "game_of_life_halting": "its scorer takes any text that is not empty for True",
    "propositional_logic": "its scorer pays in full for the premises themselves, joined by AND",
    "puzzle24": "its scorer does not check which numbers were used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRequest:
    """One response to grade.

    response: what the model wrote, without the prompt; hostile text.
    references: accepted answers, any of them counts; trusted text from the data set.
    task: one of answer_tasks.TASKS, or the import path of a user's own.
    num_tokens: length of the response in tokens, for the length reward.
    truncated: the response ended because of the token limit.
    metadata: reasoning_gym only: the data-set entry, with its `metadata.source_dataset`; as bytes it is JSON, which the
        grading process reads.
    problem: the text of the problem, trusted; math only: a formula that is copied from it is no answer. "" if unknown.
    """

    response: str
    references: tuple[str, ...]
    task: str
    num_tokens: int
    truncated: bool
    metadata: dict | bytes | None = None
    problem: str = ""


class Item(msgspec.Struct, array_like=True, frozen=True):
    """A GradeRequest as a grading process takes it."""

    task: str
    response: str
    references: tuple[str, ...]
    truncated: bool
    metadata: dict | bytes | None = None
    problem: str = ""


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """What a grading process says about one item. score is None when it is ungraded."""

    verdict: Literal["correct", "wrong", "ungraded"]
    reason: str
    score: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    extracted: str | None = None
    seconds: float = 0.0


def check_data_set(name: str) -> None:
    """ConfigError: answers to this reasoning_gym data set are not graded here."""
    if name in REFUSED_DATA_SETS:
        raise ConfigError(
            f"data.path names the reasoning_gym data set {name!r}, which is not graded: {REFUSED_DATA_SETS[name]}"
        )
