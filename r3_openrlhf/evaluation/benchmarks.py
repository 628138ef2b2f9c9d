"""Benchmarks by name (benchmarks.toml), files, and data sets that `r3 eval` samples.

Uids are hashes of the problem text: evaluations from the hub and files name the same ones.
"""

import hashlib
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import msgspec

from r3_openrlhf.config import DataConfig
from r3_openrlhf.method.errors import ConfigError, DataError, quoted
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.problems.files import ending
from r3_openrlhf.problems.sources import REASONING_GYM, Label, load_problems
from r3_openrlhf.problems.table import PACKED


class Benchmark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of benchmarks.toml."""

    hub: str
    split: str
    file: str
    subset: str | None = None
    problem_key: str = "problem"
    answer_key: str = "answer"
    in_parts: bool = False
    task: str | None = None
    prompt_template: str | None = None


BENCHMARKS = msgspec.toml.decode(
    files(__package__).joinpath("benchmarks.toml").read_bytes(), type=dict[str, Benchmark]
)


# benchmarks of `--suite`; "paper": those of the paper's tables
SUITES = {"paper": ("aime24", "math500", "amc23", "minerva", "olympiadbench")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """The problems of one benchmark, in its order."""

    name: str
    source: str
    labels: list[Label]
    num_duplicates: int
    num_unusable: int
    notes: list[str]  # columns whose cells have several types

    @property
    def answers_sha256(self) -> str:
        """Hash of the references and graders of all problems, the same in any order."""
        lines = sorted(f"{label.uid} {label.task} {label.references}" for label in self.labels)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def load_problem_set(
    benchmark: str,
    data: DataConfig,
    *,
    data_dir: str | None = None,
    max_problems: int | None = None,
    with_rows: bool = False,
) -> ProblemSet:
    """`benchmark`: a name of BENCHMARKS, a file or data set (data.path), or reasoning_gym:TASK.

    Columns, split, task, and the options of a reasoning-gym task, are those of `data`.
    ConfigError: an unknown name, or two that do not go together; DataError as `load_problems`.
    """
    data = replace(data, sources=[])  # of the run that is evaluated
    named = BENCHMARKS.get(benchmark)
    source = (
        _free_source(benchmark, data, max_problems)
        if named is None
        else _source_of(named, data, data_dir)
    )
    problems = load_problems(source, with_rows=with_rows)
    labels, counts = problems.labels, problems.sources[0]
    if named is not None and named.in_parts and not data_dir:
        labels = [replace(label, references=[", ".join(label.references)]) for label in labels]
    return ProblemSet(
        name=name_of(benchmark),
        source=source.path,
        labels=labels[:max_problems],
        num_duplicates=counts.num_duplicates,
        num_unusable=counts.num_unusable,
        notes=counts.notes,
    )


def name_of(benchmark: str) -> str:
    """Return its name in tables: its own, the task, or the file's without its ending."""
    if benchmark in BENCHMARKS:
        return benchmark
    if benchmark.startswith(REASONING_GYM):
        return benchmark.removeprefix(REASONING_GYM)
    path = Path(benchmark)
    return (
        Path(path.stem if path.suffix in PACKED else path.name).stem
        if ending(path)
        else path.name
    )


def _source_of(benchmark: Benchmark, data: DataConfig, data_dir: str | None) -> DataConfig:
    hub = {
        key: getattr(benchmark, key)
        for key in ("subset", "split", "problem_key", "answer_key", "task")
    }
    if benchmark.prompt_template:
        hub["prompt_template"] = data.prompt_template.replace(
            "{problem}", benchmark.prompt_template
        )
    if data_dir is None:
        return replace(data, path=benchmark.hub, uid_key=None, **hub)
    folder = Path(data_dir).expanduser()
    path = folder / benchmark.file
    if path.is_file():
        return replace(
            data,
            path=str(path),
            problem_key="problem",
            answer_key="answer",
            uid_key=None,
            task=benchmark.task,
        )
    name = benchmark.hub.rpartition("/")[2]
    places = [folder / benchmark.hub, folder / name, folder / path.stem]  # as the hub leaves it
    places += folder.glob(f"datasets--{benchmark.hub.replace('/', '--')}/snapshots/*")
    copy = next(filter(Path.is_dir, places), None)
    if copy is None:
        raise DataError(
            f"--data-dir is {data_dir}, which has no {benchmark.file}, and no folder {name} as the hub has it"
        )
    return replace(data, path=str(copy), uid_key=None, **hub)


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
    return replace(
        data, path=benchmark, split=_split_of(path, data.split) if path.is_dir() else data.split
    )


def _split_of(folder: Path, split: str) -> str:
    """Return "test" or the only split, where a folder as the hub leaves it has no split of this name."""
    import datasets

    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return split
    try:
        names = datasets.get_dataset_split_names(str(folder))
    except Exception:  # of many kinds; `load_problems` says it in a sentence
        return split
    other = "test" if "test" in names else names[0] if len(names) == 1 else split
    return split if any(name in split for name in names) else other
