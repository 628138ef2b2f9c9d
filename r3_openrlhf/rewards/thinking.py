"""Thinking as graders are told of it: they see a response alone, and the prompt may have opened its thinking."""

from __future__ import annotations

import re
from collections.abc import Sequence

# <think>, <think >, <thinking>, <Think>, [THINK], ◁think▷, <reasoning>
_OPENED = re.compile(r"[<\[◁]\s*(?:think(?:ing)?|thoughts?|reason(?:ing)?)\s*[>\]▷]\s*\Z", re.IGNORECASE)
_ENDS = 200  # characters of a prompt in which its last mark stands


def opened_thinking(prompt: str, marks: Sequence[str] = ()) -> str:
    """The mark with which a final prompt opens thinking, at its very end; "" where it opens none.

    marks: reward.thinking_marks; those that are known count too.
    """
    if marks and prompt.rstrip().endswith(marks[0].strip()):
        return marks[0]
    found = _OPENED.search(prompt[-_ENDS:])
    return found[0].strip() if found else ""


def as_graded(prompt: str, response: str, marks: Sequence[str] = ()) -> str:
    """The response with its prompt's open mark in front, as if the model had written it: thinking that never closes is then
    no answer, whoever opened it. A user's own marks become the ones that every grader knows."""
    text = opened_thinking(prompt, marks) + response
    for own, known in zip(marks, ("<think>", "</think>"), strict=False):
        text = text.replace(own, known)
    return text
