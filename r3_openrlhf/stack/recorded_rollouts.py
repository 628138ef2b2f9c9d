"""Rollouts kept on disk and played back: to find out what a run did, without randomness.

vLLM's samples depend on which requests share a batch, so two runs of one seed differ. A run with
the variable R3_PLAYBACK gets the recorded response for each (seed of the step, prompt, sample), and
ends with a sentence where there is none. While a run records (R3_RECORD), each response is a file
of its own, because several engines write; `pack` makes one file of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import DataError

RECORD = "R3_RECORD"  # directory in which every response is recorded with its log-probs
PLAYBACK = "R3_PLAYBACK"  # directory or packed file to read instead of sampling
Response = tuple[list[int], np.ndarray, str]  # token ids [T], log-probs [T, 1 + k], finish reason


class Recording:
    """A directory with one .npz file per response, or (to read from) one file that `pack` made."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._packed = read_packed(self.path)[0] if self.path.is_file() else None
        self._asked: Counter = Counter()

    @classmethod
    def named_by(cls, variable: str) -> Recording | None:
        """Return the recording that the environment's variable names; None where it is not set."""
        path = os.environ.get(variable)
        return cls(path) if path else None

    def key(self, seed: int, prompt: str) -> str:
        """The record of the next response to `prompt` in the step that `seed` stands for."""
        self._asked[seed, prompt] += 1
        return response_key(seed, self._asked[seed, prompt], prompt)

    def write(self, key: str, token_ids: list[int], logprobs_TK: np.ndarray, finish_reason: str) -> None:
        """Keep one response: token ids [T], log-probs [T, 1 + k]; the whole file, or none."""
        self.path.mkdir(parents=True, exist_ok=True)
        unfinished = self.path / f".{key}.{os.getpid()}.npz"
        np.savez(unfinished, token_ids=np.array(token_ids), logprobs=logprobs_TK, finish_reason=finish_reason)
        unfinished.replace(self.path / f"{key}.npz")

    async def read(self, key: str) -> Response:
        """Raises DataError when the run asks for something that was not recorded."""
        await asyncio.sleep(0)  # as many responses at once as with an engine, in the same order
        if self._packed is not None:
            if key in self._packed:
                return self._packed[key]
        elif (self.path / f"{key}.npz").is_file():
            return read_response(self.path / f"{key}.npz")
        raise DataError(f"{PLAYBACK} {self.path} has no response {key}: this run is not that run")


def response_key(seed: int, sample: int, prompt: str) -> str:
    """The `sample`-th recorded response (from 1) to `prompt` in the step of `seed`."""
    return hashlib.sha256(f"{seed}/{sample}/{prompt}".encode()).hexdigest()


def read_response(path: Path) -> Response:
    """The response in a file that `Recording.write` made."""
    with np.load(path) as file:
        return file["token_ids"].tolist(), file["logprobs"], str(file["finish_reason"])


def pack(directory: Path, file: Path, about: dict[str, Any]) -> None:
    """A compressed .npz of all responses below `directory`, sorted by key, and JSON `about`.

    token_ids and logprobs: all responses in a row; num_tokens and widths (1 + k) tell them apart.
    """
    found = {path.stem: read_response(path) for path in sorted(directory.glob("*.npz"))}
    with file.open("wb") as packed:
        np.savez_compressed(
            packed,
            keys=np.array(list(found)),
            num_tokens=np.array([len(ids) for ids, _, _ in found.values()], dtype=np.int32),
            widths=np.array([logprobs.shape[1] for _, logprobs, _ in found.values()], dtype=np.int32),
            finish_reasons=np.array([reason for _, _, reason in found.values()]),
            token_ids=np.concatenate([np.array(ids, dtype=np.int32) for ids, _, _ in found.values()]),
            logprobs=np.concatenate([logprobs.ravel() for _, logprobs, _ in found.values()]).astype(np.float32),
            about=np.array(json.dumps(about)),
        )


def read_packed(file: Path) -> tuple[dict[str, Response], dict[str, Any]]:
    """(responses by key, what was stored about them). DataError: not made by `pack`."""
    try:
        with np.load(file, allow_pickle=False) as packed:
            arrays = {name: packed[name] for name in packed.files}
        tokens = np.split(arrays["token_ids"], np.cumsum(arrays["num_tokens"])[:-1])
        sizes = arrays["num_tokens"] * arrays["widths"]
        logprobs = np.split(arrays["logprobs"], np.cumsum(sizes)[:-1])
        about = json.loads(str(arrays["about"]))
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{PLAYBACK} {file} is no recording: {error}") from error
    rows = zip(arrays["keys"], tokens, logprobs, arrays["widths"], arrays["finish_reasons"], strict=True)
    return {
        str(key): (ids.tolist(), values.reshape(len(ids), width), str(reason))
        for key, ids, values, width, reason in rows
    }, about
