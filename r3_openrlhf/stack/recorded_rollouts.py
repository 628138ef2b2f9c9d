"""Rollouts kept on disk and played back: to find out what a run did, without randomness.

vLLM's samples depend on which requests share a batch, so two runs of one seed differ. A run with
the variable R3_PLAYBACK gets the recorded response for each (seed of the step, prompt, sample), and
ends with a sentence where there is none. Each response is a file of its own, because several engines
write while a run records (R3_RECORD)."""

import hashlib
import os
from pathlib import Path

import numpy as np

from r3_openrlhf.method.errors import DataError

RECORD = "R3_RECORD"  # directory in which every response is recorded with its log-probs
PLAYBACK = "R3_PLAYBACK"  # directory to read instead of sampling
# token ids [T], log-probs [T, 1 + k], finish reason
Response = tuple[list[int], np.ndarray, str]


def folder_of(variable: str) -> Path | None:
    """Return the directory that the environment's variable names; None where it is not set."""
    path = os.environ.get(variable)
    return Path(path) if path else None


def write_response(
    path: Path,
    token_ids: list[int],
    logprobs_TK: np.ndarray,
    finish_reason: str,
    experts_TLK: np.ndarray | None = None,
) -> None:
    """Keep one response: token ids [T], log-probs [T, 1 + k]; the whole file, or none.

    experts_TLK: the engine's experts of prompt and response, with rollout.routing_replay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")
    arrays = {
        "token_ids": np.array(token_ids),
        "logprobs": logprobs_TK,
        "finish_reason": np.array(finish_reason),
    }
    if experts_TLK is not None:
        arrays["experts"] = experts_TLK
    np.savez(unfinished, allow_pickle=False, **arrays)
    unfinished.replace(path)


def response_key(seed: int, sample: int, prompt: str) -> str:
    """Return the key of the `sample`-th response (from 1) to `prompt` in the step of `seed`; 64 hexadecimal digits."""
    return hashlib.sha256(f"{seed}/{sample}/{prompt}".encode()).hexdigest()


def read_response(path: Path) -> Response:
    """Read the response in a file that `write_response` made.

    Raises:
        DataError: there is none; the run asks for something that was not recorded."""
    if not path.is_file():
        raise DataError(
            f"{PLAYBACK} {path.parent} has no response {path.stem}: this run is not that run"
        )
    with np.load(path) as file:
        return file["token_ids"].tolist(), file["logprobs"], str(file["finish_reason"])


def read_experts(path: Path) -> np.ndarray | None:
    """Read the engine's experts of a recorded response, [tokens - 1, layers, k]; None: they were not recorded."""
    with np.load(path) as file:
        return file["experts"] if "experts" in file else None
