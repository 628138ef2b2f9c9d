"""A table of the responses of a step in Weights & Biases, which is asked nothing over the network."""

import json
from pathlib import Path

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.completions import COLUMNS, MOST_CHARS, MOST_ROWS, log_completions, name_wandb_run


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


def test_two_starts_are_one_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    config = load_config("cpu_smoke", [f"run_dir={tmp_path}", "train.seed=7", "arm=mine"])
    for _ in range(2):
        for name in ("RUN_ID", "RESUME", "RUN_GROUP", "TAGS"):
            monkeypatch.setenv(f"WANDB_{name}", "")
            monkeypatch.delenv(f"WANDB_{name}")
        wandb.teardown()
        name_wandb_run(config, RunDirectory(tmp_path))
        wandb.init(mode="offline", dir=str(tmp_path), project="p", reinit=True)
        wandb.finish()
        wandb.teardown()  # the environment is read anew, and all is written
    starts = list(tmp_path.rglob("*.wandb"))
    assert len(starts) == 2 and {file.stem for file in starts} == {f"run-{(tmp_path / 'wandb_id').read_text()}"}
    assert all(word in file.read_bytes() for file in starts for word in (b"mine", b"algo=r3", b"seed=7"))
