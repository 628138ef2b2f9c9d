"""One directory of `r3 eval`: results, problems and samples, and two of them side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.errors import R3Error
from r3_openrlhf.types import Verdict


class _Response(msgspec.Struct):
    verdict: str
    num_tokens: int
    finish_reason: str


class _Line(msgspec.Struct):
    benchmark: str
    uid: str
    responses: list[_Response]


@dataclass(frozen=True, slots=True)
class Asked:
    """One problem, without the texts."""

    benchmark: str
    uid: str
    verdicts: tuple[str, ...]
    cut: tuple[bool, ...]
    mean_tokens: float
    place: int  # first byte of its line

    @property
    def num_correct(self) -> int:
        """Right responses."""
        return self.verdicts.count(Verdict.CORRECT)

    @property
    def num_graded(self) -> int:
        """Responses with a verdict."""
        return sum(verdict != Verdict.UNGRADED for verdict in self.verdicts)

    @property
    def share(self) -> float | None:
        """Right among the graded; None where none was graded."""
        return self.num_correct / self.num_graded if self.num_graded else None


class EvaluationReader:
    """`name` is its address."""

    def __init__(self, path: Path, *, name: str) -> None:
        self.path = path
        self.name = name
        self._asked: tuple[object, dict[tuple[str, str], Asked]] | None = None
        self._results: tuple[object, dict[str, Any] | None] | None = None

    def results(self) -> dict[str, Any] | None:
        """results.json; None while it is not there."""
        file = self.path / "results.json"
        stamp = _stamp(file)
        if self._results is None or self._results[0] != stamp:
            found = None
            if stamp is not None:
                try:
                    found = msgspec.json.decode(file.read_bytes())
                except msgspec.DecodeError as error:
                    raise R3Error(
                        f"{file} is damaged: {error}; `r3 eval` writes it anew from samples.jsonl"
                    ) from error
            self._results = (stamp, found)
        return self._results[1]

    def asked(self) -> dict[tuple[str, str], Asked]:
        """(benchmark, uid) -> its problem, in the order in which they were finished."""
        file = self.path / "samples.jsonl"
        stamp = _stamp(file)
        if self._asked is None or self._asked[0] != stamp:
            found: dict[tuple[str, str], Asked] = {}
            decoder, place = msgspec.json.Decoder(_Line), 0
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.endswith(b"\n"):
                        break
                    try:
                        one = decoder.decode(line)
                    except msgspec.ValidationError as error:
                        raise R3Error(f"{file}, line {number} is not a finished problem: {error}") from error
                    except msgspec.DecodeError:  # it may hold a lone surrogate, which a model can write
                        one = _patient(line, file, number)
                    except UnicodeDecodeError as error:
                        raise R3Error(f"{file}, line {number} is not a finished problem: {error}") from error
                    tokens = [response.num_tokens for response in one.responses]
                    found[one.benchmark, one.uid] = Asked(
                        benchmark=one.benchmark,
                        uid=one.uid,
                        verdicts=tuple(response.verdict for response in one.responses),
                        cut=tuple(response.finish_reason == "length" for response in one.responses),
                        mean_tokens=sum(tokens) / len(tokens) if tokens else 0.0,
                        place=place,
                    )
                    place += len(line)
            self._asked = (stamp, found)
        return self._asked[1]

    def responses(self, benchmark: str, uid: str) -> list[dict[str, Any]]:
        """The samples of one problem: text, verdict, reason, extracted, num_tokens, finish_reason. R3Error: it was not asked."""
        asked = self.asked().get((benchmark, uid))
        if asked is None:
            raise R3Error(f"{self.path} has no problem {uid} of {benchmark}")
        with (self.path / "samples.jsonl").open("rb") as lines:
            lines.seek(asked.place)
            return json.loads(lines.readline())["responses"]


def _patient(line: bytes, file: Path, number: int) -> _Line:
    """With Python's own parser, which takes what msgspec does not. R3Error: it is no line of ours either."""
    try:
        return msgspec.convert(json.loads(line), _Line)
    except ValueError as error:
        raise R3Error(f"{file}, line {number} is not a finished problem: {error}") from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    if not path.is_file():
        return None
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem that both evaluations were asked."""

    benchmark: str
    uid: str
    a: Asked
    b: Asked

    @property
    def kind(self) -> str:
        """Right: in more than half of its graded responses."""
        return f"{'right' if _mostly(self.a) else 'wrong'}-{'right' if _mostly(self.b) else 'wrong'}"


def _mostly(asked: Asked) -> bool:
    return (asked.share or 0.0) > 0.5


def pairs_of(a: EvaluationReader, b: EvaluationReader) -> list[Pair]:
    """The problems of both, those that differ most first."""
    of_b = b.asked()
    pairs = [Pair(*key, asked, of_b[key]) for key, asked in a.asked().items() if key in of_b]
    return sorted(pairs, key=lambda pair: -abs((pair.a.share or 0.0) - (pair.b.share or 0.0)))
