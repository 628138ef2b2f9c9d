"""Weights & Biases: one run over all starts, and the responses of a step as a table."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.runs.directory import RunDirectory

COLUMNS = (
    *("step", "uid", "context", "recalled_from", "text", "answer", "verdict", "reason", "reward", "advantage"),
    "truncated",
)
MOST_ROWS = 64  # of a step: a table is sent whole
MOST_CHARS = 4000  # of a response, its end; rollouts/ has all of them


def name_wandb_run(config: R3Config, run: RunDirectory) -> None:
    """Set what OpenRLHF's WandbLogger (utils/logging_utils.py:70) leaves to the environment: the id,
    which all starts share, the arm as group, algorithm and seed as tags. What is set stays."""
    file = run.path / "wandb_id"
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    tags = f"algo={config.algorithm_name},seed={config.train.seed}"
    group = config.arm or config.algorithm_name
    names = {"RUN_ID": file.read_text(), "RESUME": "allow", "RUN_GROUP": group, "TAGS": tags}
    for name, value in names.items():
        os.environ.setdefault(f"WANDB_{name}", value)


def log_completions(wandb: Any, records: Sequence[Mapping[str, Any]], *, step: int) -> None:
    """Log `train/completions`, one row for each of the first MOST_ROWS responses.

    Args:
        wandb: the module, with a run that has begun.
        records: rows of rollouts/ (rollout_records.py).
    """
    rows = [{**record, "step": step} for record in records[:MOST_ROWS]]
    table = wandb.Table(columns=list(COLUMNS), data=[[_cell(row.get(name)) for name in COLUMNS] for row in rows])
    wandb.log({"train/completions": table, "train/global_step": step})


def _cell(value: Any) -> Any:
    return value[-MOST_CHARS:] if isinstance(value, str) else value
