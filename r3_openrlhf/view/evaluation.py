"""Directories of `r3 eval`: results, problems, responses, and how two of them differ."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from r3_openrlhf.comparison.evaluations import Results
from r3_openrlhf.comparison.intervals import SeedEstimate, paired_difference
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.endings import Ending, ending_of
from r3_openrlhf.runs.files import lines_of, open_regular, read_json
from r3_openrlhf.runs.problem_files import UNREADABLE
from r3_openrlhf.view.run_reader import NotThere, Reader, stamp_of


class Response(msgspec.Struct):
    """One sample."""

    verdict: Literal["correct", "wrong", "ungraded"]
    num_tokens: Annotated[int, msgspec.Meta(ge=0)]
    finish_reason: str
    text: str
    reason: str
    extracted: str | None = None

    @property
    def is_cut(self) -> bool:
        """True if the model did not end it."""
        return ending_of(self.finish_reason) is Ending.CUT


class _Line(msgspec.Struct):
    benchmark: str
    uid: str
    responses: list[Response]


@dataclass(frozen=True, slots=True)
class EvaluatedProblem:
    """One problem, without the texts."""

    benchmark: str
    uid: str
    verdicts: tuple[str, ...]
    cut: tuple[bool, ...]
    mean_tokens: float

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


class EvaluationReader(Reader):
    """Reads results.json and samples.jsonl."""

    def results(self) -> tuple[dict[str, Any] | None, str | None]:
        """results.json; None while it is not there. And a sentence where it cannot be read."""
        file = self.path / "results.json"
        stamp = stamp_of(file)
        return self.told(
            "results", stamp, lambda: read_json(file, Results) if any(stamp) else None
        )

    def problems(self) -> dict[tuple[str, str], EvaluatedProblem]:
        """(benchmark, uid) -> problem, in the order of finishing. R3Error: a damaged line."""
        file = self.path / "samples.jsonl"
        return self.fresh("problems", stamp_of(file), lambda: _problems_in(file))

    def responses(self, benchmark: str, uid: str) -> list[Response]:
        """Return the samples of one problem. NotThere: it was not asked. R3Error: a damaged line."""
        for line in _lines_in(self.path / "samples.jsonl"):
            if (line.benchmark, line.uid) == (benchmark, uid):
                return line.responses
        raise NotThere(f"{self.name} was not asked a problem {uid} of {benchmark}")


def _problems_in(file: Path) -> dict[tuple[str, str], EvaluatedProblem]:
    return {
        (line.benchmark, line.uid): EvaluatedProblem(
            benchmark=line.benchmark,
            uid=line.uid,
            verdicts=tuple(response.verdict for response in line.responses),
            cut=tuple(response.is_cut for response in line.responses),
            mean_tokens=fmean([response.num_tokens for response in line.responses] or [0.0]),
        )
        for line in _lines_in(file)
    }


def _lines_in(file: Path) -> Iterator[_Line]:
    """Yield the finished problems. Python parses: models write lone surrogates. R3Error: damaged."""
    try:
        with open_regular(file) as lines:
            for number, line in enumerate(lines_of(lines), start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield msgspec.convert(json.loads(line), _Line)
                except UNREADABLE as error:
                    raise R3Error(
                        f"{file}, line {number} is not a finished problem: {error}"
                    ) from error
    except OSError as error:
        raise R3Error(f"{file} cannot be read: {error.strerror}") from error


class Pair(NamedTuple):
    """One problem that both evaluations were asked."""

    a: EvaluatedProblem
    b: EvaluatedProblem

    @property
    def kind(self) -> str:
        """Right: in more than half of its graded responses."""
        return "-".join("right" if (side.share or 0.0) > 0.5 else "wrong" for side in self)


def difference_of(a: EvaluationReader, b: EvaluationReader) -> SeedEstimate | None:
    """Pass@1 of b less that of a over shared problems, with Student's interval over these."""
    shares = [
        {
            key: problem.share
            for key, problem in reader.problems().items()
            if problem.share is not None
        }
        for reader in (b, a)
    ]
    return paired_difference(*shares)
