"""Who is told that a run has ended, and what a hostile text of a run can do there: nothing."""

import json
import sys

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.notify import VARIABLE, notify
from tests.answering import answering

HOSTILE = "$(touch {0}/owned) `touch {0}/owned`; touch {0}/owned\n| touch {0}/owned"


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    run.append_metrics({"step": 7, "reward_mean": 0.5, "accuracy": 0.25})
    return run


def program(tmp_path, code) -> str:
    (tmp_path / "program.py").write_text(code)
    return f"{sys.executable} {tmp_path / 'program.py'} $HOME;ls"


def test_a_program_gets_one_object_and_no_shell_runs(run, tmp_path):
    told = tmp_path / "told"
    code = f"import sys; open({str(told)!r}, 'w').write(sys.stdin.read() + '\\n' + repr(sys.argv[1:]))"
    why = HOSTILE.format(tmp_path)
    assert notify(program(tmp_path, code), run, state="failed", why=why) is None
    body, arguments = told.read_text().splitlines()
    assert json.loads(body) == {
        "run_dir": str(run.path), "state": "failed", "why": why, "step": 7, "reward_mean": 0.5, "accuracy": 0.25, "held_out": None,
    }  # fmt: skip
    assert arguments == "['$HOME;ls']" and not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/nowhere/program", "No such file"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", "ended with code 3"),
        ("'unclosed", "No closing quotation"),
        ("http://127.0.0.1:9/secret-token", "refused"),
        ("file:///etc/passwd", "No such file"),  # a program of this name, and no address
    ],
)
def test_who_cannot_be_told_is_a_warning(run, target, why):
    warning = notify(target, run, state="finished", why=None)
    assert why in warning and "was not told that the run ended" in warning and "secret-token" not in warning


def test_an_address_of_the_environment_hears_how_a_start_failed(run, monkeypatch):
    with answering(lambda path, body: (204, "")) as server:
        monkeypatch.setenv(VARIABLE, server.url)
        command = ["train", "experiment=cpu_smoke", f"run_dir={run.path}", "model.path=/nowhere"]
        failed = CliRunner().invoke(main, command)
    assert failed.exit_code == 1
    (body,) = server.bodies
    assert (body["run_dir"], body["state"]) == (str(run.path), "failed") and "/nowhere" in body["why"]


def test_nobody_is_told_where_nobody_is_named(run, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert notify(None, run, state="finished", why=None) is None
