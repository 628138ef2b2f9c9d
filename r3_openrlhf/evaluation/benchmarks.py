"""Benchmarks by name: where the hub has them, how their columns are called, and what their file is called in --data-dir.

Uids are hashes of the problem text, so that an evaluation from the hub and one from files name the same problems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import ConfigError, DataError, quoted
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.problems.files import ending
from r3_openrlhf.problems.sources import REASONING_GYM, Label, load_problems
from r3_openrlhf.problems.table import PACKED


def as_it_is(references: list[str]) -> list[str]:
    """The column holds accepted answers."""
    return references


def all_of_them(references: list[str]) -> list[str]:
    """OlympiadBench lists the parts of one answer, not alternatives."""
    return [", ".join(references)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Where a benchmark's problems are."""

    hub: str
    split: str
    file: str  # in --data-dir; columns problem and answer
    subset: str | None = None
    problem_key: str = "problem"
    answer_key: str = "answer"
    references: Callable[[list[str]], list[str]] = as_it_is  # of the hub's answer column


BENCHMARKS = {
    "aime24": Benchmark(hub="HuggingFaceH4/aime_2024", split="train", file="aime24.jsonl"),
    "math500": Benchmark(hub="HuggingFaceH4/MATH-500", split="test", file="math500.jsonl"),
    "amc23": Benchmark(hub="AI-MO/aimo-validation-amc", split="train", file="amc23.jsonl"),  # 83: AMC12 2022, 2023
    "minerva": Benchmark(hub="math-ai/minervamath", split="test", file="minerva.jsonl", problem_key="question"),
    "olympiadbench": Benchmark(
        hub="math-ai/olympiadbench",
        split="test",
        file="olympiadbench.jsonl",
        problem_key="question",
        answer_key="final_answer",
        references=all_of_them,
    ),
    "gsm8k": Benchmark(
        hub="openai/gsm8k",
        subset="main",
        split="test",
        file="gsm8k_test.jsonl",
        problem_key="question",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """The problems of one benchmark, in its order."""

    name: str
    source: str
    labels: list[Label]
    num_duplicates: int
    num_unusable: int


def load_problem_set(
    benchmark: str,
    data: DataConfig,
    *,
    data_dir: str | None = None,
    max_problems: int | None = None,
    with_rows: bool = False,
) -> ProblemSet:
    """`benchmark`: a name of BENCHMARKS, a file or hub data set as data.path takes it, or reasoning_gym:TASK.

    Columns, split and task of a file or hub data set, and the options of a reasoning-gym task, are those of `data`.
    Raises ConfigError for an unknown name or two that do not go together, DataError as `load_problems` does.
    """
    data = replace(data, sources=[])  # of the run that is evaluated
    if benchmark in BENCHMARKS:
        found = BENCHMARKS[benchmark]
        source = _source_of(found, data, data_dir)
        convert = as_it_is if data_dir else found.references
    else:
        source, convert = _free_source(benchmark, data, max_problems), as_it_is
    problems = load_problems(source, with_rows=with_rows)
    labels = [replace(label, references=convert(label.references)) for label in problems.labels]
    return ProblemSet(
        name=name_of(benchmark),
        source=source.path,
        labels=labels[:max_problems],
        num_duplicates=problems.num_duplicates,
        num_unusable=problems.num_unusable,
    )


def name_of(benchmark: str) -> str:
    """How tables call it: its own name, the task, or the file without directory and ending."""
    if benchmark in BENCHMARKS:
        return benchmark
    if benchmark.startswith(REASONING_GYM):
        return benchmark.removeprefix(REASONING_GYM)
    path = Path(benchmark)
    return Path(path.stem if path.suffix in PACKED else path.name).stem if ending(path) else path.name


def _source_of(found: Benchmark, data: DataConfig, data_dir: str | None) -> DataConfig:
    if data_dir is None:
        return replace(
            data,
            path=found.hub,
            subset=found.subset,
            split=found.split,
            problem_key=found.problem_key,
            answer_key=found.answer_key,
            uid_key=None,
            task=None,
        )
    path = Path(data_dir).expanduser() / found.file
    if not path.is_file():
        raise DataError(f"--data-dir is {data_dir}, which has no {found.file}")
    return replace(data, path=str(path), problem_key="problem", answer_key="answer", uid_key=None, task=None)


def _free_source(benchmark: str, data: DataConfig, max_problems: int | None) -> DataConfig:
    if benchmark.startswith(REASONING_GYM):
        options = dict(data.reasoning_gym)
        if max_problems is not None:
            options.setdefault("size", max_problems)
        return replace(data, path=benchmark, task=None, reasoning_gym=options)
    path = Path(benchmark).expanduser()
    if "/" not in benchmark and ending(path) is None and not path.exists():
        raise ConfigError(
            f"--benchmark is {quoted(benchmark)}, which does not exist; {nearest(benchmark, tuple(BENCHMARKS))} A file, a hub "
            f"data set (org/name) and {REASONING_GYM}TASK are possible too"
        )
    return replace(data, path=benchmark)
