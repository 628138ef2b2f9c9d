"""What a call of `r3 eval` asks for, resolved: the model, the problems and how they are graded.

Needs no tokenizer and no engine, so cheap mistakes are found here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r3_openrlhf.config import BenchmarkConfig, DataConfig, R3Config
from r3_openrlhf.config.loading import RESOLVER, flatten, load_config, of_others, with_overrides
from r3_openrlhf.evaluation.benchmarks import ProblemSet, load_problem_set
from r3_openrlhf.evaluation.model_source import ModelSource, find_model, values_of
from r3_openrlhf.evaluation.results import hard_uids
from r3_openrlhf.evaluation.sample_file import EvaluationDirectory, SampleFile
from r3_openrlhf.method.errors import ConfigError, DataError, quoted
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompt_checks import near
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.problems.training_file import read_prompts
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.kept_files import copy_in, file_of

SECTIONS = ("data", "reward", "cluster")  # of the configuration that an evaluation reads
SINGLE_KEYS = ("model.trust_remote_code=", "model.revision=", "rollout.stop=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of the command line."""

    model: str
    benchmarks: Sequence[str]
    options: BenchmarkConfig
    overrides: Sequence[str] = ()  # KEY=VALUE of data, reward and cluster
    step: int | None = None
    experiment: str | None = None
    data_dir: str | None = None
    max_problems: int | None = None
    lengths: Sequence[int] = ()
    hard_of: str | None = None
    against: str | None = None  # a file of problems that the model may have been trained on
    output: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """What an evaluation samples, and how it grades.

    Attributes:
        config: Prompts, grading and engine.
        options: Sampling.
        limits: Token limits to report, ascending; empty without a sweep.
        sets: The problems of each benchmark.
        trained_on: By benchmark, the uids of problems that the model was trained on; {}: not known.
        hard_of: The base model's evaluation that chose the problems.
        output: Directory of the results; None: the source's own."""

    source: ModelSource
    config: R3Config
    options: BenchmarkConfig
    limits: Sequence[int]
    sets: Sequence[ProblemSet]
    trained_on: Mapping[str, set[str]]
    hard_of: str | None
    output: str | None


def plan_evaluation(request: Request) -> EvaluationPlan:
    """Find the model, the configuration and the problems that a request names.

    Raises R3Error with one sentence for everything that a user can get wrong."""
    limits = limits_of(request.lengths, request.options.max_new_tokens)
    source = find_model(request.model, step=request.step)
    config = configuration_of(
        source, request.benchmarks, request.overrides, experiment=request.experiment
    )
    if config.agents.tools:
        raise ConfigError(
            "agents.tools is set, but r3 eval calls no tools; the run's own held-out problems do (evaluations.jsonl)"
        )
    sets = _problem_sets(
        request.benchmarks,
        config,
        data_dir=request.data_dir,
        max_problems=request.max_problems,
    )
    if request.hard_of:
        sets = _only_hard_problems(sets, request.hard_of)
    labels = _training_labels(source, request.against)
    return EvaluationPlan(
        source=source,
        config=config,
        options=request.options,
        limits=limits,
        sets=sets,
        trained_on={} if labels is None else _trained_on(sets, labels),
        hard_of=request.hard_of,
        output=request.output,
    )


def limits_of(lengths: Sequence[int], max_new_tokens: int) -> list[int]:
    """Token limits of the sweep, ascending, with the sampling's. ConfigError: one above it."""
    for limit in lengths:
        if not 1 <= limit <= max_new_tokens:
            raise ConfigError(
                f"--lengths holds {limit}, but responses have 1 to {max_new_tokens} tokens (--max-new-tokens): a longer "
                "limit would need another sampling"
            )
    return sorted({*lengths, max_new_tokens}) if lengths else []


def configuration_of(
    source: ModelSource,
    benchmarks: Sequence[str],
    overrides: Sequence[str],
    *,
    experiment: str | None = None,
) -> R3Config:
    """Prompt, grading and engine: of the run or of the experiment, with KEY=VALUE on top."""
    if experiment and source.config:
        raise ConfigError(
            f"--experiment is {experiment}, but the run {source.name} has its own configuration"
        )
    base = load_config(experiment, []) if experiment else source.config
    values = values_of(base, benchmarks) if base else {}
    if source.config:
        _refuse_what_only_the_run_says(flatten(values), overrides, run=source.output.parents[1])
    for override in overrides:
        section = override.partition(".")[0]
        if (
            section not in SECTIONS or override.startswith("data.path=")
        ) and not override.startswith(SINGLE_KEYS):
            raise ConfigError(
                f"r3 eval takes keys of {', '.join(SECTIONS)}, model.trust_remote_code, model.revision and rollout.stop after the model, not {quoted(override)}; the problems come from "
                "--benchmark, the sampling from options"
            )
    values["data"] = {"path": benchmarks[0], **values.get("data", {})}
    values |= {"run_dir": "evaluation", "model": {"path": source.path}}
    return with_overrides(values, list(overrides), source="the configuration of the evaluation")


def _refuse_what_only_the_run_says(
    settings: dict[str, Any], overrides: Sequence[str], *, run: Path
) -> None:
    """ConfigError: the run's settings name code, an address, or a variable of the environment, and
    the command does not. Runs may be anybody's."""
    given, kinds = (
        {override.partition("=")[0].lstrip("+") for override in overrides},
        of_others(),
    )
    for key, value in settings.items():
        if key in given or not value:
            continue
        if RESOLVER.search(str(value)):
            raise ConfigError(
                f"the run's {key} is {quoted(value)}, which only its user's environment knows; add {key}=... to the command"
            )
        is_code = kinds.get(key) == "code" and (
            isinstance(value, dict) or re.search(r":|\.py", str(value))
        )
        if is_code or kinds.get(key) == "an address":
            wanted = override_of(value, lambda path: function_path(path, run))
            why = (
                "code that the run's directory names"
                if is_code
                else "an address that would get your prompts"
            )
            raise ConfigError(
                f"the run's {key} is {wanted}, {why}; if you trust it, add {key}={wanted} to the command"
                + (
                    ""
                    if is_code
                    else f"; {key}={'[]' if isinstance(value, list) else 'null'} grades on this machine"
                )
            )


def override_of(value: object, change: Callable[[str], str]) -> str:
    """Write a setting in Hydra's grammar, with its texts changed."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{change(str(part))!r}' for key, part in value.items())}}}"
    return (
        f"[{','.join(change(str(part)) for part in value)}]"
        if isinstance(value, list)
        else change(str(value))
    )


def function_path(path: str, run: Path) -> str:
    """Return the function's own path, or that of the run's copy where its file is gone."""
    file = file_of(path)
    return path if file is None or file.is_file() else copy_in(run, path)


def _problem_sets(
    benchmarks: Sequence[str],
    config: R3Config,
    *,
    data_dir: str | None,
    max_problems: int | None,
) -> list[ProblemSet]:
    sets = []
    for benchmark in benchmarks:
        problems = load_problem_set(
            benchmark,
            config.data,
            data_dir=data_dir,
            max_problems=max_problems,
            with_rows=config.reward.reads_rows,
        )
        if not problems.labels:
            raise DataError(f"{benchmark} has no problem that can be used")
        sets.append(problems)
    names = [each.name for each in sets]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two benchmarks are called {max(names, key=names.count)}; evaluate them one by one"
        )
    return sets


def _only_hard_problems(sets: Sequence[ProblemSet], hard_of: str) -> list[ProblemSet]:
    base = EvaluationDirectory(hard_of)
    if not base.samples.is_file():
        raise ConfigError(f"{hard_of} holds no evaluation: it has no samples.jsonl")
    return [_only_hard(each, base) for each in sets]


def _only_hard(problems: ProblemSet, base: EvaluationDirectory) -> ProblemSet:
    hard, known = hard_uids(SampleFile(base.samples).read(), problems.name)
    missing = [label.uid for label in problems.labels if label.uid not in known]
    if missing:
        raise ConfigError(
            f"--hard-of {base.path} lacks {len(missing)} of the {len(problems.labels)} problems of {problems.name}; evaluate "
            "the base model on all of them first"
        )
    labels = [label for label in problems.labels if label.uid in hard]
    if not labels:
        raise ConfigError(
            f"--hard-of {base.path}: the base model got every problem of {problems.name} right twice or more"
        )
    return replace(problems, labels=labels)


def _training_labels(source: ModelSource, against: str | None) -> list[Label] | None:
    """Read the problems that the evaluated run trained on and those of the file `against`.

    None: neither is there."""
    file = RunDirectory(source.output.parents[1]).data
    is_known = source.config is not None and file.is_file()
    if not is_known and against is None:
        return None
    labels = list(map(Label.from_json, read_prompts(file)[1])) if is_known else []
    if against is not None:
        try:
            labels += load_problems(DataConfig(path=against)).labels
        except DataError as error:
            raise DataError(f"--against {against} cannot be used: {error}") from error
    return labels


def _trained_on(sets: Sequence[ProblemSet], labels: Sequence[Label]) -> dict[str, set[str]]:
    """Find the problems of each set that are among `labels`, near copies among them, by uid."""
    trained = set(map(near, labels))
    return {
        each.name: {label.uid for label in each.labels if near(label) in trained}
        for each in sets
    }
