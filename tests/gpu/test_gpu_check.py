"""`make gpu-check` as far as a machine without a GPU can enter it, so that the script itself does not fail in the first hour."""

import importlib.util
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.py"
spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
gpu_check = importlib.util.module_from_spec(spec)
sys.modules["gpu_check"] = gpu_check  # where dataclasses look for it
spec.loader.exec_module(gpu_check)
ON_A_CPU = ("doctor", "flash-attn", "entropy", "engine")  # blocks that are no runs


@pytest.mark.stack
@pytest.mark.parametrize(
    "only",
    [
        pytest.param("run", marks=pytest.mark.soak),
        pytest.param("2-gpus", marks=pytest.mark.soak),
        "1p5b",
        pytest.param("beside", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ON_A_CPU),
    ],
)
def test_every_block_starts_through_the_script(only, tmp_path, monkeypatch):
    """Of a run: every check before its start. Of the engine: weights there and back in the same bits; nothing sleeps."""
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = [sys.executable, SCRIPT, "--rehearse", "--only", only, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + "".join(
        log.read_text()[-2000:] for log in tmp_path.rglob("log.txt")
    )
    for block in [name for name in gpu_check.BLOCKS if name.startswith(only)]:
        assert (
            f"| {block} | rehearsed |" in done.stdout
            and not (tmp_path / block / "run").exists()
        )


def test_no_block_is_left_out_above_and_each_name_is_a_folder():
    for block in gpu_check.BLOCKS:
        assert re.fullmatch("[a-z0-9-]+", block) and block.startswith(
            ("run", "2-gpus", "beside", "1p5b", *ON_A_CPU)
        )


ORPHAN = """
import pathlib, subprocess, sys
subprocess.run(["bash", "-c", "setsid sleep 600 & echo $! >pid"], cwd=pathlib.Path(__file__).parent)
subprocess.run([{then}])
"""


@pytest.mark.parametrize(
    ("then", "limit", "figure"),
    [("'sleep', '600'", 20, "not done after 20 s"), ("'true'", 300, "no word")],
)
def test_no_process_of_a_block_outlives_it(tmp_path, then, limit, figure):
    """Not in another session, with its parent gone, and whether the block hangs or fails."""
    (tmp_path / "block.py").write_text(ORPHAN.format(then=then))
    code = (
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(SCRIPT.parent)!r}); import gpu_check as check; "
        f"check.__file__, check.LIMIT_S, folder = {str(tmp_path / 'block.py')!r}, {limit}, Path({str(tmp_path)!r}); "
        "check.adopt_orphans(); print(check.in_a_process('engine', folder / 'engine', rehearse=False))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900
    )
    assert gpu_check.FAILED in done.stdout and figure in done.stdout, done.stdout + done.stderr
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


@pytest.fixture
def run_dir(tmp_path):
    with tarfile.open(ROOT / "tests" / "view" / "cpu_smoke.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    return metrics.parent


def changed(run_dir, number, values):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    lines[number - 1] |= values
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_is_judged_by_its_metrics(run_dir):
    figure, limit = gpu_check.checked_run(run_dir, planned=12.0)
    assert (
        figure.startswith("8 steps of ")
        and "12 s a step were planned" in figure
        and "gap 0.05" in limit
    )


@pytest.mark.parametrize(
    "values",
    [
        {"r3/sync/abs_logprob_gap": 0.07},
        {"r3/sync/p99_logprob_gap": 1.5},
        {"loss": float("nan")},
        {"step": 3},
        {"r3/memory/beside_policy_bytes": 9 * 2.0**30},
    ],
)
def test_what_a_run_may_not_show(run_dir, values):
    changed(run_dir, 1, {"r3/memory/beside_policy_bytes": 4 * 2.0**30})
    changed(run_dir, 8, values)
    with pytest.raises(gpu_check.Missed):
        gpu_check.checked_run(run_dir)


def test_the_table_can_be_pasted_and_a_block_that_dies_is_a_line_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "nothing.py"))
    died = gpu_check.in_a_process("engine", tmp_path / "engine", rehearse=False)
    assert (
        died.result == gpu_check.FAILED
        and "nothing.py" in died.figure
        and "log.txt" in died.figure
    )
    text = gpu_check.table([died, gpu_check.Result("run", "skipped", "needs 1 GPU, 0 here")])
    assert "| block | result | time | figure | limit |" in text
    assert "| run | skipped | 0 s | needs 1 GPU, 0 here |  |" in text
    assert text.splitlines()[0].startswith("GPUs: ")
