"""Rollouts kept on disk and played back: to find out what a run did, without randomness.

vLLM's samples depend on which requests share a batch, so two runs of one seed differ. A run with
the variable R3_PLAYBACK gets the recorded response for each (seed of the step, prompt, sample), and
ends with a sentence where there is none. Each response is a file of its own, because several engines
write while a run records (R3_RECORD)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from pathlib import Path

import numpy as np

from r3_openrlhf.method.errors import DataError

RECORD = "R3_RECORD"  # directory in which every response is recorded with its log-probs
PLAYBACK = "R3_PLAYBACK"  # directory to read instead of sampling
Response = tuple[list[int], np.ndarray, str]  # token ids [T], log-probs [T, 1 + k], finish reason


class Recording:
    """A directory with one .npz file per response."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._asked: Counter = Counter()

    @classmethod
    def named_by(cls, variable: str) -> Recording | None:
        """Return the recording that the environment's variable names; None where it is not set."""
        path = os.environ.get(variable)
        return cls(path) if path else None

    def key(self, seed: int, prompt: str) -> str:
        """Return the key of the next response to `prompt` in the step that `seed` stands for."""
        self._asked[seed, prompt] += 1
        return response_key(seed, self._asked[seed, prompt], prompt)

    def write(self, key: str, token_ids: list[int], logprobs_TK: np.ndarray, finish_reason: str) -> None:
        """Keep one response: token ids [T], log-probs [T, 1 + k]; the whole file, or none."""
        self.path.mkdir(parents=True, exist_ok=True)
        unfinished = self.path / f".{key}.{os.getpid()}.npz"
        np.savez(unfinished, token_ids=np.array(token_ids), logprobs=logprobs_TK, finish_reason=finish_reason)
        unfinished.replace(self.path / f"{key}.npz")

    async def read(self, key: str) -> Response:
        """Read a response. Raises DataError when the run asks for something that was not recorded."""
        await asyncio.sleep(0)  # as many responses at once as with an engine, in the same order
        if (self.path / f"{key}.npz").is_file():
            return read_response(self.path / f"{key}.npz")
        raise DataError(f"{PLAYBACK} {self.path} has no response {key}: this run is not that run")


def response_key(seed: int, sample: int, prompt: str) -> str:
    """Return the key of the `sample`-th recorded response (from 1) to `prompt` in the step of `seed`."""
    return hashlib.sha256(f"{seed}/{sample}/{prompt}".encode()).hexdigest()


def read_response(path: Path) -> Response:
    """Read the response in a file that `Recording.write` made."""
    with np.load(path) as file:
        return file["token_ids"].tolist(), file["logprobs"], str(file["finish_reason"])
