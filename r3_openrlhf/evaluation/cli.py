"""`r3 eval`: a model on benchmarks. Tables go to stdout, progress and errors to stderr."""

import json
import sys
from dataclasses import fields
from typing import Any

import click

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.method.errors import ConfigError, quoted
from r3_openrlhf.method.open_table import nearest

DEFAULTS = BenchmarkConfig()


def _lengths(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> list[int]:
    try:
        return [int(part) for part in value.split(",")] if value else []
    except ValueError as error:
        raise click.ClickException(
            f"--lengths is {quoted(value)}; use whole numbers with commas: 512,1024,2048"
        ) from error


@click.command("eval")
@click.argument("model")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="NAME",
    help="See above. May be repeated.",
)
@click.option(
    "--suite", metavar="NAME", help='Several benchmarks: "paper" has those of the paper.'
)
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Take named benchmarks from the files in DIR, not from the hub.",
)
@click.option(
    "--n",
    "n_samples",
    type=int,
    default=DEFAULTS.n_samples,
    show_default=True,
    help="Responses per problem.",
)
@click.option("--temperature", type=float, default=DEFAULTS.temperature, show_default=True)
@click.option("--top-p", type=float, default=DEFAULTS.top_p, show_default=True)
@click.option("--max-new-tokens", type=int, default=DEFAULTS.max_new_tokens, show_default=True)
@click.option(
    "--seed",
    type=int,
    default=DEFAULTS.seed,
    show_default=True,
    help="Seed of sampling and of the bootstrap.",
)
@click.option(
    "--max-problems",
    type=click.IntRange(min=1),
    help="Only this many problems of each benchmark, the first ones.",
)
@click.option(
    "--lengths",
    callback=_lengths,
    metavar="L,L,...",
    help="Also report these token limits, by cutting responses.",
)
@click.option(
    "--hard-of",
    metavar="DIR",
    help="Only problems that the evaluation in DIR solved at most once.",
)
@click.option(
    "--against",
    metavar="FILE",
    help="Count the problems that are in this training file, near copies among them.",
)
@click.option(
    "--step",
    type=int,
    help="MODEL is a run: its checkpoint of this step instead of final_model.",
)
@click.option(
    "--experiment",
    metavar="NAME",
    help="Prompt and grading as in this experiment (a run brings its own).",
)
@click.option(
    "--output",
    metavar="DIR",
    help="Default: evaluations/ in the run, else runs/evaluations/MODEL.",
)
@click.option(
    "--tensor-parallel-size", type=int, default=DEFAULTS.tensor_parallel_size, show_default=True
)
@click.option(
    "--gpu-memory-utilization",
    type=float,
    default=DEFAULTS.gpu_memory_utilization,
    show_default=True,
)
@click.option(
    "--json", "as_json", is_flag=True, help="results.json on stdout instead of the tables."
)
def evaluate(
    benchmarks: tuple[str, ...],
    suite: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Sample MODEL on benchmarks and grade as in training: Pass@1, Pass@k, maj@k, with intervals.

    MODEL: a Hugging Face directory, a run directory (final_model, --step), smollm2, tiny, or a hub
    name. Benchmarks: aime24, aime25, aime26, hmmt25, brumo25, math500, amc23, amc23_40, minerva,
    olympiadbench, gsm8k, gpqa, mmlu-pro, arc-c, livecodebench, a JSONL file, hub data set (org/name), reasoning_gym:TASK. KEY=VALUE:
    keys of data, reward, cluster as in `r3 train`.

    The same command continues. The directory has results.json, results.md, samples.jsonl.

    \b
    r3 eval deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --benchmark aime24 --benchmark math500
    r3 eval runs/r3_1p5b --benchmark math500 --lengths 1024,2048,4096,8192
    r3 eval runs/quickstart --benchmark reasoning_gym:basic_arithmetic --max-new-tokens 22 data.reasoning_gym.seed=2
    r3 eval MODEL --benchmark my.jsonl data.problem_key=question "data.prompt_template='{problem} Think first.'"
    """
    from r3_openrlhf.evaluation.benchmarks import SUITES
    from r3_openrlhf.evaluation.plan import Request, plan_evaluation
    from r3_openrlhf.evaluation.prepare import prepare_evaluation
    from r3_openrlhf.evaluation.results import markdown
    from r3_openrlhf.evaluation.run import run_evaluation

    try:
        if suite is not None and suite not in SUITES:
            raise ConfigError(f"--suite is {quoted(suite)}; {nearest(suite, tuple(SUITES))}")
        benchmarks += SUITES[suite] if suite else ()
        if not benchmarks:
            raise ConfigError(
                "r3 eval needs --benchmark NAME or --suite NAME; r3 eval --help lists them"
            )
        options = BenchmarkConfig(
            **{field.name: values.pop(field.name) for field in fields(BenchmarkConfig)}
        )
        request = Request(benchmarks=benchmarks, overrides=settings, options=options, **values)
        plan = plan_evaluation(request)
        prepared = prepare_evaluation(plan)
        results, directory = run_evaluation(prepared)
    except KeyboardInterrupt:
        click.echo(
            "Stopped. Finished problems are kept; the same command continues with the others.",
            err=True,
        )
        sys.exit(130)
    click.echo(
        json.dumps(results, ensure_ascii=False) if as_json else markdown(results), nl=as_json
    )
    click.echo(
        f"{directory.path}: {', '.join(sorted(path.name for path in directory.path.glob('*.*')))}",
        err=True,
    )
