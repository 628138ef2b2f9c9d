"""Weights & Biases as one run over all starts, and the function of logging.tracker."""

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import without_secrets
from r3_openrlhf.method.open_table import check_signature, load_object
from r3_openrlhf.runs.checkpoint_record import settings_of
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.problem_files import Problem
from r3_openrlhf.runs.step_groups import grouped

COLUMNS = (
    *(
        "step",
        "uid",
        "problem",
        "reference",
        "context",
        "recalled_from",
        "text",
        "answer",
        "verdict",
        "reason",
    ),
    *("reward", "advantage", "truncated"),
)
MOST_ROWS, ROWS_OF_GROUP = 64, 4  # of a step: a table is sent whole
MOST_CHARS = 4000  # of a response, its end; rollouts/ has all of them


def name_wandb_run(config: R3Config, run: RunDirectory) -> None:
    """Set what OpenRLHF's WandbLogger (utils/logging_utils.py:70) leaves to the environment: the id,
    which all starts share, the arm as group, algorithm, parts and seed as tags. What is set stays."""
    file = run.path / "wandb_id"
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    parts = [
        name
        for name in ("replay", "reflection", "ranking", "distill")
        if getattr(config, name).enabled
    ]
    tags = ",".join([f"algo={config.algorithm_name}", f"seed={config.train.seed}", *parts])
    group = config.arm or config.algorithm_name
    names = {"RUN_ID": file.read_text(), "RESUME": "allow", "RUN_GROUP": group, "TAGS": tags}
    for name, value in names.items():
        os.environ.setdefault(f"WANDB_{name}", value)


def describe_wandb_run(wandb: ModuleType, config: R3Config) -> None:
    """Add the run's settings as `config.r3`, and draw evaluations over their step: OpenRLHF (:80)
    names eval/epoch, which nothing logs."""
    settings = json.loads(without_secrets(json.dumps(settings_of(config))))
    wandb.config.update({"r3": settings}, allow_val_change=True)
    wandb.define_metric("eval/*", step_metric="eval/global_step", step_sync=True)


def user_tracker(config: R3Config) -> Callable[[str, int, Mapping[str, Any]], str | None]:
    """Import the function of logging.tracker. ConfigError: it is none, or takes no (step, numbers).

    Returns (kind, step, numbers) -> a sentence where it fails: a server that is down ends no run,
    whose own files have all numbers."""
    path = config.logging.tracker
    if path is None:
        return lambda *_: None
    function = load_object("logging.tracker", path)
    check_signature("logging.tracker", path, function, 1, {})

    def track(kind: str, step: int, numbers: Mapping[str, Any]) -> str | None:
        try:
            function(
                step,
                {f"{kind}/{key}": value for key, value in numbers.items() if value is not None},
            )
        except Exception as error:
            return f"logging.tracker failed at step {step}, and is called again: {type(error).__name__}: {error}"
        return None

    return track


def log_completions(
    wandb: ModuleType,
    records: Sequence[dict[str, Any]],
    problems: Mapping[str, Problem],
    *,
    step: int,
) -> None:
    """Log `train/completions`: ROWS_OF_GROUP responses each of groups from all over the step.

    Args:
        wandb: the module, with a run that has begun.
        records: rows of rollouts/ (rollout_records.py).
        problems: by uid, for the columns `problem` and `reference`.
    """
    groups = _spread(list(grouped(records).values()), MOST_ROWS // ROWS_OF_GROUP)
    rows = []
    for record in (record for group in groups for record in _spread(group, ROWS_OF_GROUP)):
        problem = problems.get(record["uid"])
        row = record | {"step": step, "text": record["text"] and record["text"][-MOST_CHARS:]}
        if problem is not None:
            row |= {
                "problem": problem.label.problem,
                "reference": "; ".join(problem.label.references),
            }
        rows.append([row.get(name) for name in COLUMNS])
    wandb.log(
        {
            "train/completions": wandb.Table(columns=list(COLUMNS), data=rows),
            "train/global_step": step,
        }
    )


def _spread(values: Sequence[Any], most: int) -> list[Any]:
    """Choose `most` of the values at equal distances, the first among them; all, if there are fewer."""
    return (
        [values[place * len(values) // most] for place in range(most)]
        if len(values) > most
        else list(values)
    )
