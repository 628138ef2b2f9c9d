"""The log-probs of a request in flight, four bytes each.

vLLM keeps four Python objects for each of the k + 1 log-probs of a token (vllm/logprobs.py:FlatLogprobs: log-prob, token
id, rank, text): with k = 20 and 8,192 tokens some 19 MB a response, and with a step's 2,048 responses in flight 39 GB.
R³ reads the log-probs alone, in the order in which they come: the sampled token, then the k most likely ones.

Answers vllm/v1/engine/logprobs.py:54-59, which asks `create_sample_logprobs` for the container of a new request.
"""

from __future__ import annotations

from array import array

from vllm.logprobs import FlatLogprobs
from vllm.v1.engine import logprobs as engine_logprobs


class CompactLogprobs(FlatLogprobs):
    """`logprobs` is an array of floats instead of a list; the other lists stay empty."""

    def __init__(self) -> None:
        super().__init__()
        self.logprobs = array("f")
        self._num_tokens = 0

    def append_fast(self, token_ids, logprobs, ranks, decoded_tokens) -> None:
        self.logprobs.fromlist(logprobs)
        self._num_tokens += 1

    def __len__(self) -> int:
        return self._num_tokens

    def __getitem__(self, index):
        raise TypeError("CompactLogprobs holds no token ids; read .logprobs, k + 1 values per token")


def install() -> None:
    """From here on, requests of this process that ask for flat log-probs get compact ones. Twice is harmless."""
    engine_logprobs.create_sample_logprobs = lambda flat_logprobs: CompactLogprobs() if flat_logprobs else []
