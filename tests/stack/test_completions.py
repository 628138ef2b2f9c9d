"""A table of the responses of a step in Weights & Biases, which is asked nothing over the network."""

import json
from pathlib import Path

import pytest

from r3_openrlhf.stack.completions import COLUMNS, MOST_CHARS, MOST_ROWS, log_completions


def test_a_table_of_a_step(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="p")
    records = [{"uid": f"u{n}", "text": "x" * 9999, "verdict": "wrong", "reward": 0.5} for n in range(MOST_ROWS + 3)]
    log_completions(wandb, records, step=7)
    folder = Path(run.dir)
    wandb.finish()
    (file,) = folder.rglob("completions*.table.json")
    table = json.loads(file.read_text())
    assert table["columns"] == list(COLUMNS) and len(table["data"]) == MOST_ROWS
    first = dict(zip(COLUMNS, table["data"][0], strict=True))
    assert (first["step"], first["uid"], first["reward"], len(first["text"])) == (7, "u0", 0.5, MOST_CHARS)
