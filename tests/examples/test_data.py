"""The examples of data sets: a dry run of each, as docs/usage.md shows them, and the problems that they give."""

import json

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main
from r3_openrlhf.config import DataConfig
from r3_openrlhf.problems.sources import load_problems
from tests.docs.pages import REPOSITORY

DATA = REPOSITORY / "examples" / "data"
TWO = f"data.sources=[{{path: {DATA}/gsm8k.jsonl, weight: 1}}, {{path: {DATA}/verl.parquet, weight: 2, task: exact}}]"


@pytest.mark.parametrize(
    "setting", [f"data.path={DATA}/gsm8k.jsonl", f"data.path={DATA}/verl.parquet", TWO]
)
def test_an_example_dry_runs(setting, tmp_path):
    from r3_openrlhf.runs.models.locate import resolve_model

    resolve_model("tiny")
    result = CliRunner().invoke(
        main, ["train", "experiment=cpu_smoke", f"run_dir={tmp_path}/run", setting, "--dry-run"]
    )
    assert result.exit_code == 0, result.output
    assert [
        line.split(",")[0].strip() for line in result.output.splitlines() if "Warning" in line
    ] == ["Warning: no held-out problems"]
    assert ("24 cut at ####" in result.output) is ("gsm8k" in setting)
    assert not list(tmp_path.iterdir())


def test_the_answers_of_the_examples_are_right():
    for label in load_problems(
        DataConfig(sources=[str(DATA / "gsm8k.jsonl"), str(DATA / "verl.parquet")])
    ).labels:
        a, b = (int(word) for word in label.problem.replace(".", "").split() if word.isdigit())
        assert label.references == [str(a + b)], json.dumps(label.problem)
