"""Rollouts kept on disk and played back: for finding out what a run did, without the engine's randomness.

vLLM's samples depend on which requests share a batch, so two runs of one seed differ. A run with `rollout.playback`
gets the recorded response wherever a recording of that (seed of the step, prompt, sample) exists.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from pathlib import Path

import numpy as np

from r3_openrlhf.errors import DataError


class Recording:
    """One .npz file per response below `directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self._asked: Counter = Counter()

    def key(self, seed: int, prompt: str) -> str:
        """Of the next response to `prompt` in the step that `seed` stands for."""
        self._asked[seed, prompt] += 1
        text = f"{seed}/{self._asked[seed, prompt]}/{prompt}"
        return hashlib.sha256(text.encode()).hexdigest()

    def write(self, key: str, token_ids: list[int], logprobs_TK: np.ndarray, finish_reason: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        unfinished = self.directory / f".{key}.{os.getpid()}.npz"
        np.savez(unfinished, token_ids=np.array(token_ids), logprobs=logprobs_TK, finish_reason=finish_reason)
        unfinished.replace(self.directory / f"{key}.npz")

    async def read(self, key: str) -> tuple[list[int], np.ndarray, str]:
        """Raises DataError when the run asks for something that was not recorded."""
        await asyncio.sleep(0)  # as many responses at once as with an engine, in the same order
        path = self.directory / f"{key}.npz"
        if not path.is_file():
            raise DataError(f"rollout.playback {self.directory} has no response {key}: this run is not that run")
        with np.load(path) as file:
            return file["token_ids"].tolist(), file["logprobs"], str(file["finish_reason"])
