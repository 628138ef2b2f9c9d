"""Thinking, for graders: they see a response alone; the prompt may have opened thinking."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from r3_openrlhf.rewards.answers.reading.scanner import (
    OPEN_THINKING,
    THINKING_MARK,
    TOKEN_OF_A_MARK,
    closes_thinking,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ENDS = 200  # characters of a prompt in which its last mark is


def opened_thinking(prompt: str) -> str:
    """Return the mark with which a final prompt opens thinking at its end; "": none."""
    end = prompt[-_ENDS:].rstrip()
    marks_at_end = [
        mark
        for mark in THINKING_MARK.finditer(end)
        if mark.end() == len(end) and not closes_thinking(mark)
    ]
    return marks_at_end[0][0] if marks_at_end else ""


def as_graded(prompt: str, response: str) -> str:
    """Return the response with an open mark in front where its prompt ends with one, as if the
    model had written it: thinking that never closes is then no answer."""
    return OPEN_THINKING + response if opened_thinking(prompt) else response


def response_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Decode a response for graders: without special tokens, but with those that are marks of
    thinking (Magistral's [THINK]). Without its marks thinking would be graded as the answer."""
    kept = _special_marks(tokenizer)
    if not kept:
        return tokenizer.decode(ids, skip_special_tokens=True)
    tokens = tokenizer.added_tokens_decoder
    shown = [
        token
        for token in ids
        if token in kept or token not in tokens or not tokens[token].special
    ]
    return tokenizer.decode(shown, skip_special_tokens=False)


@functools.lru_cache(maxsize=8)
def _special_marks(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    special = {
        number: token.content
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special
    }
    patterns = (THINKING_MARK, TOKEN_OF_A_MARK)
    return frozenset(
        number
        for number, text in special.items()
        if any(p.fullmatch(text.strip()) for p in patterns)
    )
