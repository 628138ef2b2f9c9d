"""The tutorial, word by word: its commands train on its data with its reward (docs/tutorial.md)."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.types import Verdict
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.first_page import algorithm_lines
from tests.answering import served
from tests.commands import r3
from tests.docs.pages import DOCS, REPOSITORY, blocks_of, environment
from tests.rewards.graders import graded, request


def load_example(name="own_reward_server"):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks its names up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("response", "verdict", "reward"),
    [
        ("5+10=15 15+8=23 \\boxed{23}", Verdict.CORRECT, 1.5),  # 16 of 32 tokens
        ("23", Verdict.CORRECT, 1.5),
        ("Step by step: 5+10=15 then 15+8=23 so the answer is \\boxed{23}", Verdict.WRONG, 0.0),
        ("5+10=15 15+8=24 \\boxed{24}", Verdict.WRONG, 0.0),
        ("I do not know.", Verdict.WRONG, 0.0),
        ("9" * 5000, Verdict.WRONG, 0.0),
    ],
)
def test_a_run_understands_what_the_example_answers(response, verdict, reward):
    with served(load_example().app) as url:
        config = RewardConfig(urls=[url], length_reward_max_tokens=32, deadline_s=300.0)
        grades = graded(config, [request(response, "23", num_tokens=16)] * 3)
    assert [(grade.verdict, grade.reward) for grade in grades] == [(verdict, reward)] * 3


def test_what_cannot_be_said_is_ungraded():
    example = load_example()
    example.is_right = lambda response, references: (None, None)
    item = example.Item(response="?", references=["1"], num_tokens=1)
    result = example.result(item)
    assert (result["verdict"], result["score"]) == ("ungraded", None)


@pytest.mark.stack
@pytest.mark.slow
def test_the_tutorial_trains_with_its_own_reward(tmp_path):
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    mark = f"executed by {Path(__file__).relative_to(REPOSITORY).as_posix()}"
    commands = "".join(
        block.text for block in blocks_of(DOCS / "tutorial.md") if block.mark == mark
    )
    command = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDirectory.open(tmp_path / "runs" / "own")
    labels = [
        json.loads(json.loads(line)["label"]) for line in run.data.read_text().splitlines()
    ]
    references = {label["uid"]: label["references"] for label in labels}
    assert len(references) == 32
    is_right = load_example("own_reward").is_right
    rollouts = list(run.read_rollouts())
    assert len(rollouts) >= 2 * 32 * 8
    for rollout in rollouts:
        (reference,) = references[rollout["uid"]]
        right = is_right(rollout["text"], reference)
        assert (rollout["verdict"], rollout["outcome_reward"]) == (
            ("correct", 1.0) if right else ("wrong", 0.0)
        )
    # the last command, on the same run under another name: it is not refused
    other = RunDirectory(shutil.copytree(run.path, run.path.with_name("own_grpo")))
    other.config.write_text(re.sub("(?m)^arm: .*", "arm: grpo", other.config.read_text()))
    compared = r3("compare", run.path, other.path)
    assert compared.exit_code == 0, compared.output


def test_the_first_page_of_the_tutorial_has_todays_algorithm():
    """The block is typed from a dry run; what is on and off changes with the settings."""
    config = load_config("cpu_smoke", ["data.path=my.jsonl", "data.task=math"])
    page = (REPOSITORY / "docs" / "tutorial.md").read_text()
    shown = page.partition("\nAlgorithm  ")[2].partition("\nExample 1\n")[0]
    assert [line.strip() for line in shown.splitlines()] == algorithm_lines(config)
