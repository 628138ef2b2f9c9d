"""The entropy benchmark runs anywhere, and says so where it has no device. Its numbers are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "entropy.py"


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], text=True, capture_output=True, timeout=600)


def test_on_a_cpu(tmp_path):
    output = tmp_path / "entropy.json"
    done = run(*"--device cpu --tokens 70 --vocab 3000 --chunks 16 64 --repeats 2".split(), "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert f"torch {torch.__version__}" in done.stdout.splitlines()[0]
    found = json.loads(output.read_text())
    assert found["machine"]["tokens"] == 70
    rows = {row["form"]: row for row in found["rows"]}
    assert list(rows) == ["plain", "unchunked", "chunked auto", "chunked 16", "chunked 64"]
    for name, row in rows.items():
        assert name in done.stdout and row["seconds"] > 0
    assert all(rows[name]["logprob_error"] < 1e-5 for name in rows if name != "unchunked")
    assert all(rows[name]["entropy_error"] < 1e-4 for name in rows if name != "plain")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_skips_itself_without_cuda():
    done = run()
    assert done.returncode == 0 and done.stdout.startswith("Skipped: torch sees no CUDA device")


def test_refuses_nonsense():
    done = run("--tokens", "0")
    assert done.returncode == 2 and "--tokens is 0" in done.stderr
