"""The overhead benchmark runs at any size and counts what it says it counts. Its numbers are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("openrlhf", reason="OpenRLHF is not installed")
psutil = pytest.importorskip("psutil")

pytestmark = pytest.mark.stack
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import _stack_runs  # noqa: E402
import step_overhead  # noqa: E402

from r3_openrlhf.config.loading import experiments  # noqa: E402
from r3_openrlhf.stack.upstream_parser import installed_source  # noqa: E402
from tests.processes import command_of  # noqa: E402


@pytest.fixture(scope="module")
def tiny_tokenizer(tmp_path_factory, byte_tokenizer):
    directory = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return directory


@pytest.fixture(scope="module")
def host(tmp_path_factory, tiny_tokenizer):
    output = tmp_path_factory.mktemp("host") / "host.json"
    sizes = "--prompts 16 --samples 4 --tokens 64 --top-logprobs 3 --engines 2".split()
    command = [sys.executable, BENCHMARKS / "step_overhead.py", "host", *sizes]
    done = subprocess.run(
        [*command, "--tokenizer", tiny_tokenizer, "--output", output], text=True, capture_output=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(output.read_text())


def test_host_times_every_part(host):
    printed, numbers = host
    for name, text, _ in step_overhead.PARTS:
        assert text in printed
        assert numbers["parts"][name][0] > 0 or name.endswith("other"), name
    assert all(wall > 0 for wall, _ in numbers["found"]["stock"]["parts"].values())
    assert "16 prompts x 4 responses x 64 tokens, top-3, 2 engines" in printed


def test_host_adds_up_what_one_engine_and_the_controller_do(host):
    _, numbers = host
    parts = {
        where: [n for n, _, place in step_overhead.PARTS if place == where] for where in ("engines", "controller")
    }
    sums = {where: sum(numbers["parts"][name][0] for name in names) for where, names in parts.items()}
    assert numbers["added_s"][0] == pytest.approx(sums["engines"] / 2 + sums["controller"])


def test_host_recalls_reflects_and_ranks(host):
    found = host[1]["found"]["r3"]
    # Of 16 problems 2 are always right and 4 always wrong. The stored steps hold wrong rows of the former and correct
    # rows of 2 of the latter: 4 groups take 2 rows each. The other 2 are hard.
    assert (found["recalled"], found["reflections"], found["ranked_groups"]) == (8, 1, 4)
    assert found["peak_bytes"] > 0 and found["rollouts_bytes"] > 16 * 4 * 64


def test_the_timings_exist():
    source = (installed_source().parents[1] / "trainer" / "ppo_trainer.py").read_text()
    assert all(f'status["{key}"]' in source for key in _stack_runs.PHASES.values())
    assert not {name for pair in _stack_runs.PAIRS.values() for name in pair} - set(experiments())


def test_a_run_that_fails_says_why(tmp_path):
    with pytest.raises(_stack_runs.RunFailed, match="no_such_model"):
        _stack_runs.train("cpu_smoke", [f"run_dir={tmp_path / 'run'}", "model.path=no_such_model"], timeout_s=600)


def test_a_run_that_takes_too_long_leaves_nothing_behind(tmp_path):
    with pytest.raises(_stack_runs.RunFailed, match="took more than 1 s"):
        _stack_runs.train("cpu_smoke", [f"run_dir={tmp_path / 'run'}"], timeout_s=1)
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if str(tmp_path) in " ".join(command_of(child))]
