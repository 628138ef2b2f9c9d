"""What a grader is asked: one response and the answers that would be right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRequest:
    """One response to grade.

    response: what the model wrote, without the prompt; hostile text.
    references: accepted answers, any of them counts; trusted text from the data set.
    task: "math", "exact" or "reasoning_gym".
    num_tokens: length of the response in tokens, for the length reward.
    truncated: the response ended because of the token limit.
    metadata: reasoning_gym only: the data-set entry, with its `metadata.source_dataset`.
    """

    response: str
    references: tuple[str, ...]
    task: str
    num_tokens: int
    truncated: bool
    metadata: dict | None = None


TASKS = ("math", "exact", "reasoning_gym")
