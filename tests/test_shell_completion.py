"""What Tab offers, asked as the shells ask."""

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory


def offered(words, *, shell="bash"):
    """The values for the last word, as `shell` gets them."""
    environment = {
        "_R3_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    lines = CliRunner().invoke(main, env=environment, prog_name="r3").stdout.splitlines()
    return [line.partition(",")[2] for line in lines] if shell == "bash" else lines[1::3]


@pytest.mark.parametrize("before", [["r3", "train"], ["r3", "submit", "slurm"], ["r3", "plan"]])
def test_experiments_in_every_shell(before):
    assert offered([*before, "experiment", "=", "quick"]) == ["quickstart"]  # bash cuts at "="
    assert "quickstart" in offered([*before, "experiment", "="])
    assert offered([*before, "experiment=quick"], shell="zsh") == ["experiment=quickstart"]


def test_keys_and_their_words():
    assert offered(["r3", "train", "experiment=quickstart", "replay.old"]) == ["replay.old_logprobs="]
    assert offered(["r3", "train", "logging.token_values", "=", "u"]) == ["used"]
    assert offered(["r3", "train", "algo=gr"], shell="zsh") == ["algo=grpo"]
    assert offered(["r3", "tra"]) == ["train"]


def test_runs_that_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "lab/grpo-1"):
        run = RunDirectory(f"runs/{name}")
        run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    for command in ("show", "view", "compare", "status"):
        assert offered(["r3", command, "runs/"]) == ["runs/lab/grpo-1", "runs/one"]
    assert offered(["r3", "show", "runs/o"]) == ["runs/one"]
