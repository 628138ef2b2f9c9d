"""`r3 eval` from Python, its results as a data frame."""

import os
from collections.abc import Iterable
from typing import Any

import pandas as pd

from r3_openrlhf.config import BenchmarkConfig
from r3_openrlhf.evaluation.plan import Request, plan_evaluation
from r3_openrlhf.evaluation.prepare import prepare_evaluation
from r3_openrlhf.evaluation.results import headline
from r3_openrlhf.evaluation.run import run_evaluation


def evaluate(
    model: str | os.PathLike[str],
    benchmarks: Iterable[str],
    *settings: str,
    step: int | None = None,
    output: str | None = None,
    max_problems: int | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Sample a model on benchmarks and grade as in training; the same call again continues.

        evaluate(Run("runs/quickstart"), ["reasoning_gym:basic_arithmetic"], "data.reasoning_gym.seed=7", max_new_tokens=22)

    Args:
        model: a run, a directory in Hugging Face format, or a hub name.
        benchmarks: names as `r3 eval --benchmark` takes them.
        settings: KEY=VALUE of data, reward and cluster.
        step: the run's checkpoint of this step; default: its final model.
        output: directory of the results; default: evaluations/ in the run.
        max_problems: only the first problems of each benchmark, up to this number.
        options: n_samples, temperature, top_p, max_new_tokens, seed, tensor_parallel_size, gpu_memory_utilization.

    Returns:
        A row per benchmark: `num_problems`, `response_tokens_mean`, `truncated_rate`; `pass_at_1`, `pass_at_K`,
        `majority_at_K` (K: n_samples) from 0 to 1, with `_low`, `_high` (95%, over problems).

    Raises:
        R3Error: as `r3 eval`."""
    request = Request(
        model=os.fspath(model),
        benchmarks=tuple(benchmarks),
        options=BenchmarkConfig(**options),
        overrides=settings,
        step=step,
        output=output,
        max_problems=max_problems,
    )
    plan = plan_evaluation(request)
    prepared = prepare_evaluation(plan)
    results, _ = run_evaluation(prepared)
    return frame_of(results)


def frame_of(results: dict[str, Any]) -> pd.DataFrame:
    """results.json as a data frame with one row per benchmark."""
    rows = []
    for name, summary in results["benchmarks"].items():
        row = {"benchmark": name, "num_problems": summary["num_problems"]}
        for key, estimate in headline(summary, results["settings"]["n_samples"]).items():
            row |= {
                key: estimate["value"],
                f"{key}_low": estimate["low"],
                f"{key}_high": estimate["high"],
            }
        rows.append(row)
    return pd.DataFrame(rows).set_index("benchmark")
