"""Evaluations of the same problems: their accuracies, and differences paired by problem."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from r3_openrlhf.comparison.intervals import SeedEstimate, paired_difference
from r3_openrlhf.comparison.runs import directories_below, values_that_differ
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.runs.files import read_json


class Estimate(TypedDict):
    """A number between the ends of its interval; None: there is none."""

    value: float | None
    low: float | None
    high: float | None


class BenchmarkResults(TypedDict):
    """The results of a benchmark. Keys of pass_at_k and majority_at_k: k as text."""

    num_problems: int
    num_ungraded: int
    pass_at_1: Estimate
    pass_at_k: dict[str, Estimate]
    majority_at_k: dict[str, Estimate]
    response_tokens_mean: Estimate
    truncated_rate: Estimate
    problems: dict[str, dict[str, int]]  # uid -> {"correct": 3, "ungraded": 0}


class Settings(TypedDict):
    """Settings of the sampling."""

    n_samples: int
    temperature: float
    max_new_tokens: int


class Results(TypedDict):
    """results.json, as far as it is shown."""

    model: dict[str, str]
    settings: Settings
    benchmarks: dict[str, BenchmarkResults]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationComparison:
    """`pass_at_1` with its interval over problems, and `differences` to the reference, by benchmark
    and evaluation."""

    reference: str
    paths: dict[str, str]  # name of an evaluation -> its directory
    pass_at_1: dict[str, dict[str, Estimate]]
    differences: dict[str, dict[str, SeedEstimate | None]]
    settings: dict[str, dict[str, Any]]  # {key: {evaluation: value}} where they differ


def find_evaluations(paths: Iterable[str]) -> list[Path]:
    """Find the evaluations at these paths or below; [] where there is a run, whose evaluations do not count."""
    found = [found for path in paths for found in directories_below(Path(path))]
    return (
        []
        if any(is_run for _, is_run in found)
        else list(dict.fromkeys(path for path, _ in found))
    )


def compare_evaluations(
    paths: Sequence[Path], *, reference: str | None = None
) -> EvaluationComparison:
    """Compare Pass@1 with that of `reference` (default: the first), over problems graded in both.

    R3Error: a single evaluation, no benchmark in common, other problems, references or graders of
    one; an unknown reference."""
    results = [read_json(path / "results.json", Results) for path in paths]
    models = [one["model"].get("name", "") for one in results]
    names = [
        str(path) if models.count(name) > 1 else name
        for path, name in zip(paths, models, strict=True)
    ]
    found = dict(zip(names, results, strict=True))
    if len(found) < 2:
        raise R3Error(f"{paths[0]} is one evaluation; name another one of the same problems")
    if (reference := reference or names[0]) not in found:
        raise R3Error(
            f"no evaluation is called {reference!r} (--reference); {nearest(reference, names)}"
        )
    shared = [
        name
        for name in results[0]["benchmarks"]
        if all(name in one["benchmarks"] for one in results)
    ]
    if not shared:
        raise R3Error(f"{' and '.join(map(str, paths))} have no benchmark in common")
    summaries = {
        key: {name: one["benchmarks"][key] for name, one in found.items()} for key in shared
    }
    for benchmark, of in summaries.items():
        _check_same_problems(benchmark, of)
    rates = {key: {name: _rates(one, key) for name, one in found.items()} for key in shared}
    return EvaluationComparison(
        reference=reference,
        paths=dict(zip(names, map(str, paths), strict=True)),
        pass_at_1={
            key: {name: one["pass_at_1"] for name, one in of.items()}
            for key, of in summaries.items()
        },
        differences={
            key: {
                name: paired_difference(one, of[reference])
                for name, one in of.items()
                if name != reference
            }
            for key, of in rates.items()
        },
        settings=values_that_differ({name: _settings(one) for name, one in found.items()}),
    )


def _check_same_problems(benchmark: str, summaries: dict[str, Any]) -> None:
    first, *others = summaries
    for other in others:
        here, there = summaries[first], summaries[other]
        answers = {one["answers_sha256"] for one in (here, there) if "answers_sha256" in one}
        why = "their references or graders (data.task) differ" if len(answers) > 1 else None
        if differ := here["problems"].keys() ^ there["problems"].keys():
            why = f"{len(differ)} problems are of one of them alone; use the same --benchmark, --max-problems and --hard-of"
        if why:
            raise R3Error(f"{first} and {other} cannot be compared on {benchmark}: {why}")


def _rates(results: dict[str, Any], benchmark: str) -> dict[str, float]:
    """Return the accuracy of each problem with a graded response."""
    n, counts = results["settings"]["n_samples"], results["benchmarks"][benchmark]["problems"]
    return {
        uid: one["correct"] / (n - one["ungraded"])
        for uid, one in counts.items()
        if one["ungraded"] < n
    }


def _settings(results: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in results["settings"].items() if key != "weights"}
    return (
        own
        | {"grader": results.get("grader")}
        | {f"version of {key}": value for key, value in results.get("versions", {}).items()}
    )
