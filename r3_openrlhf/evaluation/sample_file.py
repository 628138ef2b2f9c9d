"""The directory of one evaluation: settings, results, eval.log, and samples.jsonl with a line
per sampled problem, its responses and grades. No sample is lost.

A response's token ids are kept (zlib, base64): cut at L tokens, it is a sample of limit L."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from r3_openrlhf.method.errors import ConfigError, DataError
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.rewards.exchange import Grade
from r3_openrlhf.runs.directory import write_whole
from r3_openrlhf.runs.endings import Ending, ending_of
from r3_openrlhf.runs.files import no_link, not_ours, replacing

NOT_YET = "not graded yet"
# Reasons that say nothing about a response: it is graded by the next call.
WAITING = frozenset({NOT_YET, "unreachable", "unavailable", "closed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledResponse:
    """One response as it was sampled, and its grade."""

    text: str
    num_tokens: int
    token_ids: str  # packed, with the end token
    finish_reason: str  # "stop", or "length" when the token limit ended it; or what else did
    verdict: Verdict = Verdict.UNGRADED
    reason: str = NOT_YET
    score: float | None = None
    extracted: str | None = None

    @property
    def truncated(self) -> bool:
        """True if the token limit ended it, or a loop that the engine saw."""
        return ending_of(self.finish_reason) is Ending.CUT

    @property
    def is_waiting(self) -> bool:
        """True if it has no grade for a reason outside of the response."""
        return self.verdict is Verdict.UNGRADED and self.reason in WAITING

    def graded(self, grade: Grade) -> SampledResponse:
        """Return the response with this grade."""
        return replace(
            self,
            verdict=grade.verdict,
            reason=grade.reason,
            score=grade.score,
            extracted=grade.extracted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProblem:
    """All responses to one problem of a benchmark."""

    benchmark: str
    uid: str
    content: str  # hash of prompt, references, grader: to use the line again
    responses: list[SampledResponse]

    @property
    def key(self) -> tuple[str, str]:
        """(benchmark, uid)."""
        return self.benchmark, self.uid

    @property
    def is_waiting(self) -> bool:
        """True if a response waits for its grade."""
        return any(response.is_waiting for response in self.responses)


def sampled(text: str, token_ids: Sequence[int], finish_reason: str) -> SampledResponse:
    """Make a response without a grade."""
    return SampledResponse(
        text=text,
        num_tokens=len(token_ids),
        token_ids=pack(token_ids),
        finish_reason=finish_reason,
    )


def cut(
    response: SampledResponse, limit: int, text_of: Callable[[Sequence[int]], str]
) -> SampledResponse:
    """Return the same draw under the token limit `limit`: the response itself, or its beginning,
    without a grade. The engine looks for the end token before it counts
    (vllm/v1/core/sched/utils.py:check_stop)."""
    if response.num_tokens <= limit:
        return response
    token_ids = unpack(response.token_ids)[:limit]
    return sampled(text_of(token_ids), token_ids, "length")


class SampleFile:
    """Appends and reads lines. A torn last line, of a process that was killed, is not there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def drop_torn_line(self) -> None:
        """Make the file end with a whole line."""
        with open(self.path, "rb+", opener=no_link) as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))

    def append(self, problem: SampledProblem) -> None:
        """Write a problem, which is on disk when this returns."""
        with open(self.path, "ab", opener=no_link) as file:
            file.write(_encode(problem))
            file.flush()
            os.fsync(file.fileno())

    def replace(self, problems: Iterable[SampledProblem]) -> None:
        """Let the file hold these problems, maybe of its own lines; a kill leaves the old ones."""
        with replacing(self.path) as file:
            file.writelines(map(_encode, problems))

    def read(self) -> Iterator[SampledProblem]:
        """Return every problem, in the order of finishing. DataError: a line that is none."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            whole = itertools.takewhile(lambda line: line.endswith(b"\n"), file)
            for number, line in enumerate(whole, start=1):
                try:
                    yield msgspec.convert(json.loads(line), SampledProblem)
                except (ValueError, msgspec.MsgspecError) as error:
                    raise DataError(
                        f"{self.path}, line {number} is not a finished problem: {error}"
                    ) from error


def _encode(problem: SampledProblem) -> bytes:
    # ASCII: a model can write lone surrogates, which UTF-8 cannot carry
    return json.dumps(msgspec.to_builtins(problem), allow_nan=False).encode() + b"\n"


def pack(token_ids: Sequence[int]) -> str:
    """Little-endian 32-bit integers, deflated, as base64 text."""
    return base64.b64encode(zlib.compress(np.asarray(token_ids, dtype="<i4").tobytes())).decode(
        "ascii"
    )


def unpack(text: str) -> list[int]:
    """Inverse of `pack`. Raises DataError."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<i4").tolist()
    except (ValueError, zlib.error) as error:
        raise DataError(
            f"the token ids of a response in samples.jsonl are damaged: {error}"
        ) from error


class EvaluationDirectory:
    """Paths. Nothing is created before `start`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self.settings = self.path / "settings.json"
        self.samples = self.path / "samples.jsonl"
        self.results = self.path / "results.json"
        self.table = self.path / "results.md"
        self.log = self.path / "eval.log"

    def first_date(self) -> str | None:
        """Return the day that its chat template wrote, where the evaluation was begun already."""
        try:
            return json.loads(self.settings.read_text(encoding="utf-8")).get(
                "data.template_date"
            )
        except (OSError, ValueError, AttributeError):
            return None

    @contextmanager
    def start(self, settings: dict[str, Any]) -> Iterator[SampleFile]:
        """Begin here, or continue; a lock keeps other processes out.

        Raises ConfigError when it was sampled with other settings (the differing ones are named),
        when the directory holds other files, cannot be written, or is being written by another
        process."""
        if (why := not_ours(self.path, uid=os.geteuid())) is not None:
            raise ConfigError(
                f"--output {self.path} is not ours alone: {why}; choose another --output"
            )
        if self.settings.is_file():
            self._check_same(settings)
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise ConfigError(
                f"--output {self.path} holds files but no evaluation; choose another directory"
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(
                self.settings, json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
            )
            self.samples.touch()
            lock = open(self.log, "ab", opener=no_link)  # no other file here is never replaced
        except OSError as error:
            raise ConfigError(
                f"--output {self.path} cannot be written: {error.strerror}"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"--output {self.path} is being written by another r3 eval; wait for its end"
                ) from error
            file = SampleFile(self.samples)
            file.drop_torn_line()
            yield file

    def _check_same(self, settings: dict[str, Any]) -> None:
        try:
            before = json.loads(self.settings.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{self.settings} is not JSON: {error}") from error
        differ = sorted(
            key
            for key in settings.keys() | before.keys()
            if settings.get(key) != before.get(key)
        )
        if differ:
            shown = ", ".join(
                f"{key} ({before.get(key)} there, {settings.get(key)} now)" for key in differ
            )
            raise ConfigError(
                f"--output {self.path} holds an evaluation with other settings: {shown}; choose another --output, or use "
                "the same settings"
            )
