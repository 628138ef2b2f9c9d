"""The command line: what it prints, where, and that a mistake is one sentence."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from r3_openrlhf import __version__, cli
from r3_openrlhf.config.loading import experiments, load_config
from r3_openrlhf.runs.directory import RunDirectory
from tests.commands import r3 as call
from tests.families import FAMILIES, write_model
from tests.runs.records import rollout

REPOSITORY = Path(__file__).parents[1]
SCRIPTS = sorted(
    path
    for path in (REPOSITORY / "examples" / "scripts").glob("*.sh")
    if os.access(path, os.X_OK)
)


@pytest.fixture(autouse=True)
def nothing_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # `r3 train` adds the directory of its interpreter
    monkeypatch.setenv("PATH", os.environ["PATH"])
    yield
    assert not list(tmp_path.glob("runs/*/train.log"))


@pytest.mark.parametrize("experiment", experiments())
def test_every_experiment_dry_runs_and_writes_nothing(experiment, tmp_path, monkeypatch):
    written = (REPOSITORY / "configs/experiment" / f"{experiment}.yaml").read_text()
    if "path: examples/" in written:  # its problems are files of the repository
        monkeypatch.chdir(REPOSITORY)
    if "environment: alfworld" in written:
        pytest.importorskip("textworld", reason="alfworld is not installed: docs/agents.md")
    result = call("train", f"experiment={experiment}", "--dry-run", "-v")
    assert result.exit_code == 0, result.output
    config = load_config(experiment, [])
    assert f"path: {config.model.path}\n" in result.stdout
    assert (
        f"--rollout.n_samples_per_prompt {config.rollout.n_samples_per_prompt} \\\n"
        in result.stdout
    )
    warned = (
        "Warning: no held-out problems, so r3 compare will refuse this run; set held_out.path"
        in result.stdout
    )
    assert warned == (config.held_out.path is None) and not (
        warned and config.cluster.device == "cuda"
    )
    assert not list(tmp_path.iterdir())


def test_the_printed_command_is_a_command():
    """A shell splits what is printed into the very arguments that were checked."""
    from r3_openrlhf.runs.models.locate import locate_model
    from r3_openrlhf.stack.arguments import openrlhf_arguments

    overrides = ["run_dir='/runs/a b'", "cluster.device=cuda"]
    result = call("train", "experiment=cpu_smoke", *overrides, "--dry-run", "-v")
    command = result.stdout[result.stdout.index("python -m") :]
    config = load_config("cpu_smoke", overrides)
    model_dir = locate_model(config.model.path)
    arguments = openrlhf_arguments(
        config, RunDirectory("/runs/a b"), model_dir=model_dir, platform="cuda"
    )
    shell = f"show() {{ printf '%s\\0' \"$@\"; }}; show {command}"
    words = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert words == ["python", "-m", "openrlhf.cli.train_ppo_ray", *arguments, ""]


def rows(path, num):
    path.write_text(
        "".join(f'{{"problem": "What is {n}?", "answer": "{n}"}}\n' for n in range(num))
    )
    return f"data.path={path}"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ["data.max_len=513"],
            "data.max_len is 513, but model.path tiny has 512 positions; use data.max_len=512 or",
        ),
        (["data.max_len=30", "reflection.enabled=false"], "fewer than one batch"),
        (["data.max_len=45"], "but the shortest reflection prompt needs"),
        (
            ["distill.coef=0.1", "distill.max_prompt_tokens=500"],
            "may have 524 tokens, but model.path tiny has 512 positions; use a smaller distill.max_",
        ),
        (
            ["distill.coef=0.1", "distill.max_prompt_tokens=40"],
            "may have 40 tokens (data.max_len less rollout.max_new_tokens, and the shown success), but",
        ),
        (["held_out.path=FILE"], "of the problems that are trained on"),
    ],
)
def test_a_dry_run_finds_what_a_start_would_find(settings, sentence, tmp_path):
    """Model, prompts and held-out problems are looked at, and what was written for that is gone."""
    from r3_openrlhf.runs.models.locate import resolve_model

    resolve_model("tiny")
    source = rows(tmp_path / "rows.jsonl", 8)
    settings = [setting.replace("FILE", str(tmp_path / "rows.jsonl")) for setting in settings]
    common = [source, "data.task=math", f"run_dir={tmp_path / 'run'}"]
    result = call("train", "experiment=cpu_smoke", *common, *settings, "--dry-run")
    assert result.exit_code == 1 and sentence in result.stderr, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_dry_run_begins_with_the_first_page(tmp_path):
    """What the model reads and what the grader says; the flags come with -v, and all of it as JSON."""
    from r3_openrlhf.runs.models.locate import resolve_model

    resolve_model("tiny")
    command = [
        "train",
        "experiment=cpu_smoke",
        rows(tmp_path / "rows.jsonl", 64),
        "data.task=math",
        "--dry-run",
    ]
    result = call(*command)
    assert result.exit_code == 0, result.output
    first = (
        "Problems   64 rows read, 64 used\n           problem: problem, answer: answer\nSteps"
    )
    assert result.stdout.startswith(first)
    assert "  prompt     <|im_start|>user\n             What is 0?" in result.stdout
    assert (
        "  grader     \\boxed{0}: correct\n             The answer is 0.: correct\n"
        in result.stdout
    )
    assert "--rollout." not in result.stdout and len(result.stdout.splitlines()) < 50
    page = json.loads(call(*command, "--json").stdout)["first_page"]
    assert (page["read"], page["used"], len(page["examples"])) == (64, 64, 3)


def messages_of(n, *, system, thoughts):
    """A conversation that ends with a question."""
    said = f"<think>{n} is easy to say.</think>It is {n}." if thoughts else f"It is {n}."
    first = [{"role": "system", "content": "Be brief, always."}] if system else []
    return [
        *first,
        {"role": "user", "content": f"Which number is {n}?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": f"And what is {n} + 7?"},
    ]


# <|im_start|> as Qwen2.5, with a text of its own; a system turn goes into the user's, as Gemma does
OWN_TEXT = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou were made in a test.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
MERGED = (
    "{% set first = 1 if messages[0].role == 'system' else 0 %}{% for m in messages[first:] %}<|im_start|>{{ m.role }}\n"
    "{% if loop.first and first %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("template", "row", "said"),
    [
        (
            OWN_TEXT,
            {"system": False, "thoughts": False},
            ["own before the first turn: '<|im_start|>system\\nYou were made in a test.'"],
        ),
        (OWN_TEXT, {"system": True, "thoughts": False}, []),
        (
            OWN_TEXT,
            {"system": True, "thoughts": True},
            ["64 of 64 prompts are without the thoughts (up to </think>) of earlier turns"],
        ),
        (
            MERGED,
            {"system": True, "thoughts": True},
            ["the system turn is written into the user's turn"],
        ),
        (MERGED, {"system": False, "thoughts": True}, []),
    ],
)
def test_a_dry_run_says_what_the_template_did(template, row, said, tmp_path):
    family = FAMILIES["Qwen2.5-Instruct"]
    directory = write_model(tmp_path / "m", replace(family, template=template))
    file = tmp_path / "rows.jsonl"
    chats = [{"messages": messages_of(n, **row), "answer": str(n + 7)} for n in range(100, 164)]
    file.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    settings = [f"data.path={file}", "data.task=math", f"model.path={directory}"]
    result = call(
        "train", "experiment=cpu_smoke", *settings, "data.max_len=2000", "--dry-run", "--json"
    )
    assert result.exit_code == 0, result.output
    page = json.loads(result.stdout)["first_page"]
    found = [note for note in page["found"] if note.startswith("chat template: ")]
    assert len(found) == len(said) and all(map(str.endswith, found, said)), found
    assert any(
        note.startswith("a response also ends at '<|endoftext|>'") for note in page["found"]
    )


def test_a_dry_run_says_what_the_data_and_the_machine_gave(tmp_path, monkeypatch):
    """Columns whose cells have several types, fewer CPUs than the machine has, a small /dev/shm."""
    file = tmp_path / "rows.jsonl"
    cells = [*range(100, 160), "161", ["162"], True, 164]
    lines = [{"problem": f"What is {n}?", "answer": cell} for n, cell in enumerate(cells)]
    lines[9]["problem"] = {"text": "What is 9?"}
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[3]]))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    small = ("0.06 of 0.06 GiB free", "1 GiB free", "make it larger")
    monkeypatch.setattr("r3_openrlhf.machine.places.shared_memory", lambda _: small)
    result = call(
        "train", "experiment=cpu_smoke", f"data.path={file}", "data.task=math", "--dry-run"
    )
    assert result.exit_code == 0, result.output
    found = " ".join(result.stdout.partition("\nFound ")[2].split())
    assert "left out: 1 equal to an earlier one, 1 the problem" in result.stdout
    assert f"column problem has 64 texts, 1 structure; data.path {file}, line 10: " in found
    answers = f"column answer has 62 numbers, 1 text, 1 list, 1 true or false; data.path {file}, line 63: 'True'"
    assert answers in found
    assert "CPUs: 2 of the 64 of this machine" in found
    assert "Warning: /dev/shm: 0.06 of 0.06 GiB free, and the run needs 1 GiB free" in found
    assert result.stderr.count("/dev/shm") == 0


def test_a_dry_run_refuses_what_is_wrong_for_sure(tmp_path):
    """DeepSeek-R1-Distill-Llama under transformers 5: the page shows what the model would have read."""
    family = FAMILIES["DeepSeek-R1-Distill-Llama"]
    directory = write_model(tmp_path / "m", family, tokenizer_class="LlamaTokenizerFast")
    settings = [
        rows(tmp_path / "rows.jsonl", 64),
        "data.task=math",
        f"model.path={directory}",
        "data.max_len=1000",
    ]
    result = call("train", "experiment=cpu_smoke", *settings, "--dry-run")
    assert result.exit_code == 1 and "Whatis0?" in result.stdout
    assert "it loses spaces" in result.stderr


def test_a_dry_run_in_the_directory_of_another_run_is_refused(run, tmp_path):
    run.append_metrics({"step": 1})
    result = call(
        "train", "experiment=cpu_smoke", f"run_dir={run.path}", "replay.k=5", "--dry-run"
    )
    assert result.exit_code == 1 and "replay.k (2 there, 5 now)" in result.stderr
    result = call(
        "train", "experiment=cpu_smoke", f"run_dir={tmp_path / 'run' / 'data'}", "--dry-run"
    )
    assert result.exit_code == 0


def test_a_dry_run_says_what_it_could_not_check(monkeypatch, tmp_path):
    """Without a tokenizer the page has the problems; one of the hub's cache is as good as a model."""
    from huggingface_hub import constants

    from r3_openrlhf.runs.models.locate import resolve_model

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    command = ["train", "experiment=cpu_smoke", "model.path=org/name", "--dry-run"]
    result = call(*command)
    assert (
        result.exit_code == 0
        and "as the model is not here (org/name cannot be had" in result.stderr
    )
    assert "  prompt     Calculate" in result.stdout
    (tmp_path / "models--org--name" / "refs").mkdir(parents=True)
    (tmp_path / "models--org--name" / "refs" / "main").write_text("a" * 40)
    folder = tmp_path / "models--org--name" / "snapshots" / ("a" * 40)
    shutil.copytree(
        resolve_model("tiny"), folder, ignore=shutil.ignore_patterns("*.safetensors")
    )
    result = call(*command)
    assert result.exit_code == 0 and "Not checked" not in result.stderr, result.stderr
    assert "  prompt     <|im_start|>user\n" in result.stdout


def test_a_gpu_experiment_without_a_gpu_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    result = call("train", "experiment=r3_1p5b_deepscaler_8gpu")
    assert (
        result.exit_code == 1
        and "cluster.device is cuda, but no CUDA device is visible here" in result.stderr
    )


def test_help_and_version():
    result = call("--help")
    for command in ("train", "show", "history", "serve-rewards"):
        assert f"\n  {command} " in result.stdout
    assert "r3 train experiment=quickstart replay.k=4" in call("train", "--help").stdout
    for preset in [file.stem for file in (REPOSITORY / "configs" / "algo").glob("*.yaml")]:
        assert re.search(rf"\b{preset}\b", call("train", "--help").stdout), preset
    version = rf"r3-openrlhf {re.escape(__version__)} \(commit (unknown|[0-9a-f]{{12}}(, modified)?)\)\n"
    assert re.fullmatch(version, call("--version").stdout)


def test_a_finished_run_is_shown_and_not_trained_again(run):
    run.append_metrics({"step": 1, "reward_mean": 0.5})
    run.mark_finished()
    result = call("train", "experiment=cpu_smoke", f"run_dir={run.path}")
    assert result.exit_code == 0
    assert "This run is finished" in result.stderr and "0.500 -> 0.500" in result.stdout
    assert not run.is_finished(
        load_config("cpu_smoke", [f"run_dir={run.path}", "train.num_epochs=3"])
    )
    assert call("show", str(run.path)).stdout == result.stdout


def test_rollouts_come_out_as_lines(run):
    rows = [rollout(1, text="ü\n[red]"), rollout(2, uid="q"), rollout(2)]
    run.write_rollouts(1, rows[:1])
    run.write_rollouts(2, rows[1:])
    for arguments, expected in (
        ([], rows),
        (["--step", "2"], rows[1:]),
        (["--uid", "p"], [rows[0], rows[2]]),
        (["--step", "2", "--uid", "q"], [rows[1]]),
    ):
        printed = call("show", str(run.path), "--rollouts", *arguments)
        assert printed.exit_code == 0
        assert [json.loads(line) for line in printed.stdout.splitlines()] == expected


TRAINING = [script for script in SCRIPTS if "\nexec r3 train" in script.read_text()]


@pytest.mark.parametrize("script", TRAINING, ids=lambda path: path.name)
def test_every_example_script_dry_runs(script, tmp_path):
    """As a user calls it: from anywhere, with further settings. In a run_dir of its own: the checkout's may hold a run."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("SLURM")
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = [
        "bash",
        str(script),
        "train.seed=7",
        f"run_dir={tmp_path / 'run'}",
        "--dry-run",
        "-v",
    ]
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert "--train.seed 7" in result.stdout
    assert f"\nalgo: {'grpo' if script.stem.startswith('grpo') else 'r3'}\n" in result.stdout
    replay = script.stem.startswith(("r3", "quickstart"))
    assert f"\nreplay:\n  enabled: {str(replay).lower()}\n" in result.stdout


CLUSTERS = {
    "slurm": (["--dry-run"], "#SBATCH --array=1,2,3"),
    "ray_job": (
        ["--address", "http://HOST:8265", "--dry-run"],
        "r3 train experiment=r3_1p5b_deepscaler_8gpu",
    ),
    "kubernetes": (["--image", "IMAGE", "--claim", "runs", "--mount", "/runs"], "kind: RayJob"),
    "container": (["--dry-run"], "docker run"),
}


@pytest.mark.parametrize("kind", CLUSTERS)
def test_a_script_for_each_cluster_says_what_it_would_start(kind, tmp_path):
    (script,) = [script for script in SCRIPTS if script.name.startswith(kind)]
    options, expected = CLUSTERS[kind]
    run_dir = [] if kind == "kubernetes" else [f"run_dir={tmp_path / 'run'}"]
    command = ["bash", str(script), "train.seed=7", *run_dir, *options]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout and "train.seed=7" in result.stdout


def test_the_examples_are_listed_one_line_each():
    examples = REPOSITORY / "examples"
    named = re.findall(r"\]\(([^)]+)\)", (examples / "README.md").read_text())
    files = subprocess.run(
        ["git", "ls-files", "."], cwd=examples, capture_output=True, text=True, check=True
    ).stdout
    assert sorted(named) == sorted(set(files.split()) - {"README.md"})


RETIRED_COMMANDS = tomllib.loads(cli.RETIRED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("typed", RETIRED_COMMANDS)
def test_what_once_was_a_command_or_an_option_is_answered(typed):
    result = call(*typed.split()[1:])
    assert result.exit_code == 1, result.output
    assert result.stderr.endswith(f" no longer exists; use {RETIRED_COMMANDS[typed]}\n")


def test_the_first_release_needs_no_table_of_what_to_use_instead():
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = "## 0.2.0\n"
    assert changelog.count(heading) == 1
    first_release = changelog.partition(heading)[2]
    assert not re.search(r"^(\||## )", first_release, flags=re.MULTILINE)
    assert "no longer" not in first_release, "nobody had what was before"
