"""The request to a grader: one response and the answers that would be right."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Word = Literal["correct", "wrong", "ungraded"]
Result = tuple[Word, str, float | None, str | None]  # verdict, reason, score, extracted
Extras = dict[str, float | str]  # further values of a reward function, by name
SLOW = "slow"  # reason of a wrong response that took the grader to a limit, where its references do not


class Item(msgspec.Struct, array_like=True, frozen=True):
    """The part of a GradeRequest that a built-in grader reads."""

    task: str
    response: str
    references: tuple[str, ...]
    truncated: bool
    metadata: dict | bytes | None = None
    problem: str = ""


class GradeRequest(Item, array_like=True, frozen=True, kw_only=True):
    """One response to grade.

    response: what the model wrote, without the prompt; hostile text. references: accepted answers,
    any of them counts; trusted text from the data set. task: one of answer_tasks.TASKS, or the
    import path of a user's own. num_tokens: length of the response in tokens, for the length
    reward. truncated: the response ended because of the token limit. metadata: reasoning_gym only:
    the data-set entry, with its `metadata.source_dataset`; as bytes it is JSON, which the
        grading process reads.
    problem: the text of the problem, trusted; math only: a formula that is copied from it is no
    answer. "" if unknown. prompt: what the model was asked, with its template. row: the problem's
    row of the data set, plain data. For reward
        functions of a user; "" and None if unknown.
    group: response, tokens and truncated of each response of its group, for functions that look at
    all of them; place: of this one among them.
    """

    num_tokens: int
    prompt: str = ""
    row: dict | None = None
    group: tuple[tuple[str, int, bool], ...] = ()
    place: int = 0

    @classmethod
    def about(
        cls,
        label: Any,
        response: str,
        *,
        num_tokens: int,
        truncated: bool = False,
        prompt: str = "",
    ) -> GradeRequest:
        """Make the request about a response to the problem of a `problems.Label`."""
        known = {name: getattr(label, name) for name in ("task", "metadata", "problem", "row")}
        return cls(
            response=response,
            references=tuple(label.references),
            num_tokens=num_tokens,
            truncated=truncated,
            prompt=prompt,
            **known,
        )


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """The grade of one item. score is None when it is ungraded.

    reward: what a user's functions returned; None: it follows from the score. detail: a traceback,
    for the log."""

    verdict: Word
    reason: str
    score: float | None = None
    extracted: str | None = None
    seconds: float = 0.0
    reward: float | None = None
    extras: Extras = {}
    detail: str = ""
