"""Training from Python: a process of its own, the run as a result, errors as sentences."""

import json
import sys

import pytest

from r3_openrlhf.comparison import training
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError, R3Error
from r3_openrlhf.runs.directory import RunDirectory


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    settings = {"run_dir": str(tmp_path / "run"), "replay.k": 4}
    directory = RunDirectory(tmp_path / "run")
    config = load_config("cpu_smoke", [f"run_dir={tmp_path / 'run'}", "replay.k=4"])
    directory.create(config)
    directory.append_metrics({"step": 1, "epoch": 1, "fresh/reward": 0.25})
    directory.mark_finished()
    run = training.train("cpu_smoke", settings, quiet=True)
    assert run.metrics["fresh/reward"].tolist() == [0.25]
    assert run.config.replay.k == 4


def test_a_wrong_setting_is_said_before_a_process_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(training.subprocess, "Popen", None)
    with pytest.raises(ConfigError, match="replay.kk"):
        training.train("cpu_smoke", {"run_dir": str(tmp_path), "replay.kk": 4})


def test_an_error_of_the_process_is_its_sentence(tmp_path):
    settings = [f"run_dir={tmp_path / 'run'}", f"data.path={tmp_path / 'gone.jsonl'}"]
    with pytest.raises(R3Error, match=r"gone\.jsonl") as caught:
        training.train("cpu_smoke", settings, quiet=True)
    assert not str(caught.value).startswith("Error")


def test_values_are_words_of_a_command_line():
    settings = {"a": 4, "b": None, "c": True, "d": "x=y", "e": [1, "z"], "f": 0.5}
    words = training._words(settings)
    assert words == ["a=4", "b=null", "c=true", "d=x=y", 'e=[1, "z"]', "f=0.5"]


def test_a_process_without_a_sentence_has_its_last_line():
    last = ["one", "killed"]
    assert (
        training._sentence(last, -9, "runs/x") == "the run in runs/x ended with code -9: killed"
    )
    assert training._sentence(["Error: no room", "later"], 1, "x") == "no room"
    assert "it said nothing" in training._sentence([], 1, "x")


@pytest.mark.slow
@pytest.mark.soak
def test_a_run_of_the_whole_stack(tmp_path):
    settings = {"run_dir": str(tmp_path / "run"), "train.max_steps": 1}
    run = training.train("cpu_smoke", settings)
    assert run.metrics.index.tolist() == [1]
    assert json.dumps(run.config.train.max_steps) == "1" and "ray" not in sys.modules
