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
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from r3_openrlhf.stack.upstream_parser import installed_source  # noqa: E402
from tests.processes import command_of  # noqa: E402
from tests.runs.test_rollout_files import rollout  # noqa: E402


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
    assert (found["recalled"], found["reflections"], found["ranked_groups"]) == (8, 2, 4)
    assert found["peak_bytes"] > 0 and found["rollouts_bytes"] > 16 * 4 * 64


def test_what_is_counted_twice_is_taken_away_once():
    assert step_overhead.minus((5.0, 3.0), (1.0, 1.0), (2.0, 3.5)) == (2.0, 0.0)


@pytest.mark.parametrize("arguments", [["host", "--tokens", "0"], ["stack", "--rounds", "0"]])
def test_refuses_nonsense(arguments, capsys):
    with pytest.raises(SystemExit):
        step_overhead.main(arguments)
    assert f"{arguments[1]} is 0" in capsys.readouterr().err


# ── stack ──


def steps(*, seconds, rows, epochs=(1, 1, 2), added=0.0):
    """Three steps whose four phases take a quarter of `seconds` each."""
    return [
        {
            "step": number,
            "epoch": epoch,
            **{key: seconds / 4 for key in _stack_runs.PHASES.values()},
            "timing/step_total": seconds,
            "clock": None if number == 1 else seconds + 1,
            "sampled_rows": 10,
            "sampled_tokens": 100,
            "trained_rows": rows,
            "trained_tokens": 10 * rows,
            "row_tokens": 40 * rows,
            "r3/time/added_s": added,
            "r3/time/history_s": added / 2,
            "r3/replay/recalled": 2,
            "r3/reflection/groups": 1,
            "r3/ranking/groups": 1,
        }
        for number, epoch in enumerate(epochs, start=1)
    ]


def test_report_by_hand():
    text, numbers = _stack_runs.report(
        {"stock": steps(seconds=4.0, rows=10), "r3": steps(seconds=6.0, rows=20, added=0.3)}, warmup=1
    )
    assert numbers["steps"] == {"stock": 2, "r3": 2}
    assert numbers["ratios"]["sum of the four"] == 1.5
    assert numbers["ratios"]["from one step's end to the next"] == 7 / 5
    assert numbers["ratios"]["rows trained"] == 2
    # 4 s for 10 rows, 6 s for 20: a trained row costs three quarters of what it costs there
    assert numbers["seconds"]["whole step, per row trained"] == (400.0, 300.0)
    assert numbers["ratios"]["whole step, per row trained"] == 0.75
    # a quarter of that is the update: 1 s for 400 tokens with their prompts, 1.5 s for 800
    assert numbers["seconds"]["policy update, per token of a row with its prompt"] == (2.5, 1.875)
    assert numbers["added_share"] == pytest.approx(0.05)
    assert "5.00% of all steps' time" in text and "4 rows recalled, 2 reflection groups, 2 ranked groups" in text


def test_report_needs_a_step():
    with pytest.raises(_stack_runs.RunFailed, match="after the first 3"):
        _stack_runs.report({"stock": steps(seconds=1, rows=1), "r3": steps(seconds=1, rows=1)}, warmup=3)


def test_steps_are_read_from_a_run(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path / "tensorboard" / "run")
    for number, ended in ((1, 100.0), (2, 103.5)):
        writer.add_scalar("train/timing/step_total", 3.0, number, walltime=ended)
    writer.close()
    keys = [*_stack_runs.PHASES.values(), "r3/time/added_s", "r3/replay/recalled", "r3/reflection/groups", "r3/ranking/groups"]  # fmt: skip
    metrics = [{"step": number, "epoch": 1.0, "trained_tokens": 40.0, **dict.fromkeys(keys, 0.5)} for number in (1, 2)]
    fresh = rollout(2, num_tokens=7, recalled_from=None, advantage=0.5)
    rows = [fresh, {**fresh, "advantage": None}, {**fresh, "recalled_from": 0, "num_tokens": 9}, {**fresh, "step": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    for step in (1, 2):
        RunDirectory(tmp_path).write_rollouts(step, [row for row in rows if row["step"] == step])
    first, second = _stack_runs.steps_of(tmp_path)
    assert (first["clock"], second["clock"]) == (None, 3.5)
    assert (second["sampled_rows"], second["sampled_tokens"]) == (2, 14)
    assert (second["trained_rows"], second["trained_tokens"], second["row_tokens"]) == (2, 16, 40)


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
