"""Thinking as graders are told of it: they see a response alone, and the prompt may have opened its thinking."""

from __future__ import annotations

from collections.abc import Sequence

from r3_openrlhf.rewards.answers.extraction import OPEN_THINKING, THINKING_MARK

_ENDS = 200  # characters of a prompt in which its last mark stands


def opened_thinking(prompt: str, marks: Sequence[str] = ()) -> str:
    """The mark with which a final prompt opens thinking, at its very end; "" where it opens none.

    marks: reward.thinking_marks; those that are known count too.
    """
    end = prompt[-_ENDS:].rstrip()
    if marks and end.endswith(marks[0].strip()):
        return marks[0]
    found = [mark for mark in THINKING_MARK.finditer(end) if mark.end() == len(end) and not mark[1]]
    return found[0][0] if found else ""


def as_graded(prompt: str, response: str, marks: Sequence[str] = ()) -> str:
    """The response with an open mark in front where its prompt ends with one, as if the model had written it: thinking that
    never closes is then no answer, whoever opened it. A user's own marks become the ones that every grader knows."""
    for own, known in zip(marks, (OPEN_THINKING, "</think>"), strict=False):
        response = response.replace(own, known)
    return OPEN_THINKING + response if opened_thinking(prompt, marks) else response
