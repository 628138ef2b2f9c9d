"""The ends of a response besides the model's end tokens: the template's turn, rollout.stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r3_openrlhf.problems.prompts import end_of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r3_openrlhf.config import DataConfig


def stops_of(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, texts: Sequence[str]
) -> tuple[list[int], list[str]]:
    """(token ids, texts) at which a response ends. A text that is one special token is looked for
    by its id, which costs nothing; for another one the engine has to turn every token into text."""
    # sources may differ in data.chat_template
    ends = {end_of_turn(tokenizer, part) for part in data.parts.values()}
    ids, others = [end for end in ends if end is not None], []
    special = {
        token.content: number for number, token in tokenizer.added_tokens_decoder.items()
    }
    for text in texts:
        if text in special:
            ids.append(special[text])
        else:
            others.append(text)
    return sorted(set(ids)), others


def stop_at(params: Any, ids: Sequence[int], texts: Sequence[str]) -> None:
    """Put them into SamplingParams. Such a response has finished, and keeps the text."""
    params.stop_token_ids = sorted({*(params.stop_token_ids or ()), *ids})
    if texts:
        params.stop = list(texts)
        params.include_stop_str_in_output = True
        params.detokenize = True
