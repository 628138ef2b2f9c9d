"""samples.jsonl: one line per finished problem, with every response and its grade. What was sampled is never lost.

A response's token ids are kept (zlib, base64): cut at L tokens, it is what sampling with the limit L gives.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import DataError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledResponse:
    """One response as it was sampled, and its grade."""

    text: str
    token_ids: Sequence[int]  # with the end token
    finish_reason: str  # "stop", or "length" when the token limit ended it
    verdict: Verdict
    reason: str
    score: float | None
    extracted: str | None

    @property
    def truncated(self) -> bool:
        """True if the token limit ended it."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProblem:
    """All responses to one problem of a benchmark."""

    benchmark: str
    uid: str
    content: str  # hash of prompt, references and grader: what must be the same for the line to be used again
    responses: list[SampledResponse]

    @property
    def key(self) -> tuple[str, str]:
        """(benchmark, uid), which no two problems of a file share."""
        return self.benchmark, self.uid


def graded(text: str, token_ids: Sequence[int], finish_reason: str, grade: Grade) -> SampledResponse:
    """A response and its grade in one record."""
    return SampledResponse(
        text=text,
        token_ids=token_ids,
        finish_reason=finish_reason,
        verdict=grade.verdict,
        reason=grade.reason,
        score=grade.score,
        extracted=grade.extracted,
    )


def cut(response: SampledResponse, limit: int) -> tuple[Sequence[int], bool]:
    """(token ids, truncated?) of the same draw under the token limit `limit`.

    The engine looks for the end token before it counts (vllm/v1/core/sched/utils.py:check_stop), so a response that
    ends with its limit-th token has ended by itself.
    """
    if len(response.token_ids) <= limit:
        return response.token_ids, response.truncated
    return response.token_ids[:limit], True


class SampleFile:
    """Appends and reads lines. A torn last line, of a process that was killed, is not there yet; the next append drops
    it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_whole = not path.exists()

    def append(self, problem: SampledProblem) -> None:
        """On disk when this returns."""
        if not self._is_whole:
            _drop_torn_line(self.path)
            self._is_whole = True
        with self.path.open("ab") as file:
            file.write(_encode(problem))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> Iterator[SampledProblem]:
        """Every problem, in the order in which they were finished. Raises DataError for a line that is none."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield _decode(line)
                except (ValueError, KeyError, TypeError, zlib.error) as error:
                    raise DataError(f"{self.path}, line {number} is not a finished problem: {error}") from error


def _drop_torn_line(path: Path) -> None:
    with path.open("rb+") as file:
        length = 0
        for line in file:
            length += len(line) if line.endswith(b"\n") else 0
        file.truncate(length)


def _encode(problem: SampledProblem) -> bytes:
    line = {
        "benchmark": problem.benchmark,
        "uid": problem.uid,
        "content": problem.content,
        "responses": [
            {
                "text": response.text,
                "num_tokens": len(response.token_ids),
                "token_ids": encode_token_ids(response.token_ids),
                "finish_reason": response.finish_reason,
                "verdict": response.verdict,
                "reason": response.reason,
                "score": response.score,
                "extracted": response.extracted,
            }
            for response in problem.responses
        ],
    }
    # ASCII: a model can write lone surrogates, which UTF-8 cannot carry
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def _decode(line: bytes) -> SampledProblem:
    values: dict[str, Any] = json.loads(line)
    responses = [
        SampledResponse(
            text=row["text"],
            token_ids=decode_token_ids(row["token_ids"]),
            finish_reason=row["finish_reason"],
            verdict=Verdict(row["verdict"]),
            reason=row["reason"],
            score=row["score"],
            extracted=row["extracted"],
        )
        for row in values["responses"]
    ]
    return SampledProblem(
        benchmark=values["benchmark"], uid=values["uid"], content=values["content"], responses=responses
    )


def encode_token_ids(token_ids: Sequence[int]) -> str:
    """Little-endian 32-bit integers, deflated, as base64 text."""
    return base64.b64encode(zlib.compress(np.asarray(token_ids, dtype="<i4").tobytes())).decode("ascii")


def decode_token_ids(text: str) -> list[int]:
    """Inverse of encode_token_ids."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<i4").tolist()
