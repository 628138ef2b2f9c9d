"""The log-probs of a response while it is sampled: four bytes each, and no Python object.

vLLM turns each of a token's k + 1 log-probs into Python objects and keeps them in lists
(vllm/logprobs.py:FlatLogprobs: log-prob, token id, rank, text): with k = 20 and 8,192 tokens some
19 MB and 34 ms of CPU a response, and a step has 2,048 of them. R³ reads the log-probs alone, in
the order in which they come: the sampled token, then the k most likely.

Answers vllm/v1/engine/logprobs.py: `from_new_request` (:57), which makes the container of a new
request, and `_update_sample_logprobs` (:72), which fills it."""

from __future__ import annotations

from array import array

import numpy as np
from vllm.v1.engine import logprobs as engine_logprobs

_create = engine_logprobs.create_sample_logprobs
_update = engine_logprobs.LogprobsProcessor._update_sample_logprobs


class CompactLogprobs:
    """`logprobs`: k + 1 values per token, one token after the other, as in FlatLogprobs."""

    def __init__(self) -> None:
        self.logprobs = array("f")


def install() -> None:
    """Give requests of this process for flat log-probs compact ones. Twice is harmless."""
    engine_logprobs.create_sample_logprobs = lambda flat: CompactLogprobs() if flat else _create(flat)
    engine_logprobs.LogprobsProcessor._update_sample_logprobs = _update_sample_logprobs


def _update_sample_logprobs(processor, logprobs_lists) -> None:
    """The rows [tokens, width] as they come from the engine; wider than asked for where another
    request of the batch asked for more."""
    if not isinstance(processor.logprobs, CompactLogprobs):
        return _update(processor, logprobs_lists)
    rows = logprobs_lists[1]
    if 0 <= processor.num_logprobs < rows.shape[1] - 1:
        rows = rows[:, : processor.num_logprobs + 1]
    processor.logprobs.logprobs.frombytes(rows.astype(np.float32, copy=False).tobytes())
    for token in range(len(rows)):
        processor.cumulative_logprob += rows.item(token, 0)
