"""The responses of a step as a table of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    "step",
    "uid",
    "context",
    "recalled_from",
    "text",
    "answer",
    "verdict",
    "reason",
    "reward",
    "advantage",
    "truncated",
)
MOST_ROWS = 64  # of a step: a table is sent whole
MOST_CHARS = 4000  # of a response, its end; rollouts/ has all of them


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
