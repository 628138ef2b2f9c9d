"""Benchmarks run and count what they say they count. Their numbers are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(name, *arguments, timeout=600):
    return subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments],
        text=True,
        capture_output=True,
        timeout=timeout,
    )


@pytest.mark.parametrize(
    "file", sorted(BENCHMARKS.glob("[a-z]*.py")), ids=lambda file: file.stem
)
def test_each_explains_itself(file):
    done = run(file.name, "--help")
    assert done.returncode == 0 and f"python benchmarks/{file.name}" in file.read_text(), (
        done.stderr
    )


def test_entropy_on_a_cpu(tmp_path):
    output = tmp_path / "entropy.json"
    arguments = [
        "--device",
        "cpu",
        "--tokens",
        "70",
        "--vocab",
        "3000",
        "--chunks",
        "16",
        "64",
        "--repeats",
        "2",
    ]
    done = run("entropy.py", *arguments, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert f"torch {torch.__version__}" in done.stdout.splitlines()[0]
    results = json.loads(output.read_text())
    assert results["machine"]["tokens"] == 70
    rows = {row["form"]: row for row in results["rows"]}
    assert list(rows) == ["plain", "unchunked", "chunked auto", "chunked 16", "chunked 64"]
    for name, row in rows.items():
        assert name in done.stdout and row["seconds"] > 0
    assert all(rows[name]["logprob_error"] < 1e-5 for name in rows if name != "unchunked")
    assert all(rows[name]["entropy_error"] < 1e-4 for name in rows if name != "plain")
