"""Tasks that users write: by import path, checked before anything starts, graded in the same processes as ours."""

import json
import subprocess
import sys

import pytest

from r3_openrlhf.config import DataConfig, RewardConfig
from r3_openrlhf.config.answer_tasks import TASKS, task_for
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.method.types import Verdict
from tests.rewards.graders import graded, request
from tests.tables import tables_beside

TABLES = tables_beside(__file__)

MODULE = """
import os

def contains(response, reference):
    if "hang" in response:
        while True:
            pass
    if "crash" in response:
        os._exit(1)
    if "write" in response:
        open({file!r}, "w")
    return reference in response

def partly(response, reference, problem, metadata=None):
    if response == "unknown":
        return None
    if response == "wild":
        return 7.0
    return 0.25 if problem in response else 0.0

def one_parameter(response):
    return 1.0

def fails(response, reference):
    raise LookupError("no such word")

def speaks(response, reference):
    return "yes"

NUMBER = 3
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """The import path of a function in a module that the user has beside his program."""
    (tmp_path / "my_tasks.py").write_text(MODULE.format(file=str(tmp_path / "written")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: f"my_tasks:{name}"
    sys.modules.pop("my_tasks", None)
    TASKS._found.clear()


def grade_all(task, cases, problem=""):
    config = RewardConfig(num_workers=1, timeout_s=1.0, length_reward_max_tokens=None)
    return graded(config, [request(*case, task=task, problem=problem) for case in cases])


def test_a_users_task_grades_in_confined_processes(user_module, tmp_path):
    cases = [
        ("The answer is blue.", "blue"),
        ("The answer is red.", "blue"),
        ("It is red.", "blue", "red"),
        ("hang", "blue"),
        ("crash", "blue"),
        ("write", "blue"),
        ("blue", "blue"),
    ]
    grades = grade_all(user_module("contains"), cases)
    assert [(grade.verdict.value, grade.reason, grade.reward) for grade in grades] == [
        ("correct", "correct", 1.0),
        ("wrong", "wrong", 0.0),
        ("correct", "correct", 1.0),
        ("ungraded", "timeout", None),
        ("ungraded", "crashed", None),
        ("ungraded", "grader_error", None),
        ("correct", "correct", 1.0),
    ]
    assert not (tmp_path / "written").exists()


def test_scores_between_and_what_the_function_asks_for(user_module):
    grades = grade_all(
        user_module("partly"),
        [("2 + 2?", "4"), ("5", "4"), ("unknown", "4"), ("wild", "4")],
        problem="2 + 2?",
    )
    assert [(grade.verdict.value, grade.reason, grade.score) for grade in grades] == [
        ("wrong", "wrong", 0.25),
        ("wrong", "wrong", 0.0),
        ("ungraded", "no_score", None),
        ("ungraded", "bad_score", None),
    ]


@pytest.mark.parametrize(("name", "words"), TABLES["refused"])
def test_what_cannot_be_a_task_is_an_error_at_the_start(user_module, name, words):
    with pytest.raises(ConfigError, match="data.task is") as error:
        DataConfig(path="train.jsonl", task=name)
    assert words in str(error.value)
    with pytest.raises(ConfigError, match="data.task is"):
        graded(RewardConfig(), [request("5", task=name)])


def test_a_users_task_is_a_task_everywhere_by_its_file_too(user_module, tmp_path):
    assert (
        DataConfig(path="train.jsonl", task=user_module("contains")).task == "my_tasks:contains"
    )
    assert (
        DataConfig(path="train.jsonl", task="my_tasks.py:contains").task
        == "my_tasks.py:contains"
    )
    (grade,) = grade_all("my_tasks.py:contains", [("blue", "blue")])
    assert grade.verdict is Verdict.CORRECT


def test_the_task_that_fits_the_problems():
    assert task_for(None, "train.jsonl") == "math"
    assert task_for(None, "reasoning_gym:countdown") == "reasoning_gym"
    assert task_for("exact", "reasoning_gym:countdown") == "exact"
    with pytest.raises(ConfigError, match="needs problems of its own"):
        task_for("reasoning_gym", "train.jsonl")


@pytest.mark.parametrize(("task", "loaded", "not_loaded"), TABLES["libraries"])
def test_a_task_loads_its_own_libraries_only(task, loaded, not_loaded):
    program = (
        "import json, sys; from r3_openrlhf.rewards.worker import make_worker; make_worker(sys.argv[1]); "
        "print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, task, *loaded, *not_loaded],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == loaded
