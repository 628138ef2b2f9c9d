"""Run directories written to disk the way a training loop writes them, with numbers that can be worked by hand."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r3_openrlhf.config.loading import config_to_yaml, load_config
from r3_openrlhf.runs.directory import RunDirectory

TOKENS_PER_STEP = 100
WRITTEN = json.loads(Path(__file__).with_name("written.json").read_text())


def evaluation_of(step: int, accuracy: float | None, **changes: Any) -> dict[str, Any]:
    measured = {"step": step, "generated_tokens": TOKENS_PER_STEP * step, "pass_at_1": accuracy}
    return WRITTEN["evaluation"] | measured | changes


def metrics_of(step: int, **changes: Any) -> dict[str, Any]:
    """Ten groups: one all correct, four none correct, five mixed; replay repairs two of the five collapsed. Of 100 tokens
    50 are in mixed groups, 8 and 30 in the collapsed ones, 10 behind reflection prompts, and 2 were not graded."""
    tokens = {
        "generated_tokens": TOKENS_PER_STEP,
        "generated_tokens_total": TOKENS_PER_STEP * step,
    }
    levels = {"fresh/entropy": 1.0 / step, "fresh/response_length": 10.0 + step}
    return WRITTEN["metrics"] | {"step": step, **tokens, **levels} | changes


@functools.cache
def _config_text(*settings: str) -> str:
    return config_to_yaml(load_config("cpu_smoke", ["run_dir=/RUN_DIR", *settings]))


def config_text(run_dir: Path, *settings: str) -> str:
    """The config.yaml of `experiment=cpu_smoke` with these settings; composed once for all runs that have them."""
    before, after = _config_text(*settings).split("run_dir: /RUN_DIR\n")
    return f"{before}run_dir: {run_dir}\n{after}"


def write_run(
    path: Path,
    *overrides: str,
    arm: str = "grpo",
    seed: int = 1,
    accuracies: Sequence[float] = (0.1, 0.2, 0.4),
    every_steps: int = 2,
    evaluations: Sequence[dict[str, Any]] | None = None,
    metrics: Sequence[dict[str, Any]] | None = None,
    problems: str
    | None = '{"input": "1 + 1", "label": "{}"}\n{"input": "2 + 2", "label": "{}"}\n',
    finished: bool = True,
) -> Path:
    """A run evaluated before its first step and every `every_steps` steps, TOKENS_PER_STEP tokens a step."""
    off = (
        []
        if arm.startswith("r3")
        else [f"{name}.enabled=false" for name in ("replay", "reflection", "ranking")]
    )
    algo = "r3" if arm.startswith("r3") else arm
    named = [] if arm == algo else [f"arm={arm}"]
    settings = [
        f"algo={algo}",
        f"train.seed={seed}",
        "held_out.path=held_out.jsonl",
        *named,
        *off,
    ]
    if evaluations is None:
        evaluations = [
            evaluation_of(every_steps * i, accuracy) for i, accuracy in enumerate(accuracies)
        ]
    if metrics is None:
        last = max((line["step"] for line in evaluations), default=2)
        metrics = [metrics_of(step) for step in range(1, last + 1)]
    run = RunDirectory(path)
    run.data.parent.mkdir(parents=True)
    run.config.write_text(config_text(path, *settings, *overrides))
    run.code_state.write_text("commit 1\n")
    for file, lines in ((run.evaluations, evaluations), (run.metrics, metrics)):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if problems is not None:
        run.data.write_text(problems)
    if finished:
        run.mark_finished()
    return path
