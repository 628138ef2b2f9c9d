"""A run as data frames, on a recorded run of the whole stack; the notebook of examples/."""

import json
import tarfile
from pathlib import Path

import pytest

from r3_openrlhf import Run, compare
from r3_openrlhf.comparison import arms
from r3_openrlhf.comparison.runs import read_run
from r3_openrlhf.method.errors import R3Error
from tests.comparison.synthetic import write_run

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "quickstart"
    with tarfile.open(REPOSITORY / "tests" / "view" / "cpu_smoke.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory


def test_metrics_rollouts_and_problems_are_those_of_the_files(path):
    run = Run(path)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert list(run.metrics.index) == [line["step"] for line in lines]
    assert list(run.metrics["accuracy"]) == [line["accuracy"] for line in lines]
    rollouts = run.rollouts(step=3)
    assert set(rollouts.step) == {3} and len(rollouts) == len(
        list(run.directory.read_rollouts(step=3))
    )
    row = rollouts.iloc[0]
    assert run.problems.loc[row.uid].problem == row.problem and row.problem in row.prompt
    own = run.rollouts(uid=row.uid)
    assert set(own.uid) == {row.uid} and len(set(own.step)) > 1
    assert repr(run) == f"Run('{path}')"
    # numbers are numbers, what matters comes first, and the effect has a row per step
    assert (
        list(run.metrics.columns[:2]) == ["fresh/reward", "fresh/accuracy"]
        and rollouts.entropy_peak.dtype == float
    )
    assert list(run.effects.collapsed) == list(run.metrics["r3/groups/collapsed_before"])


def test_what_is_not_there_is_a_sentence(path, tmp_path):
    run = Run(path)
    for sentence, call in {
        "has no rollouts of step 99": lambda: run.rollouts(step=99),
        "is not a run directory": lambda: Run(tmp_path),
    }.items():
        with pytest.raises(R3Error, match=sentence):
            call()


def test_the_notebook_runs(path, monkeypatch, capsys):
    """Every code cell, one after the other, from a directory with runs/quickstart."""
    (path.parent / "runs").mkdir()
    (path.parent / "runs" / "quickstart").symlink_to(path)
    monkeypatch.chdir(path.parent)
    names = {}
    for cell in json.loads((REPOSITORY / "examples" / "read_a_run.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert "collapsed groups were repaired by replay" in capsys.readouterr().out
    assert {"problem", "references"} <= set(names["rollouts"])


def test_the_comparison_is_that_of_r3_compare(tmp_path):
    paths = [
        write_run(tmp_path / f"{arm}_{seed}", arm=arm, seed=seed, accuracies=(0.1, last))
        for arm, finals in (("grpo", (0.3, 0.4, 0.35)), ("r3", (0.5, 0.7, 0.6)))
        for seed, last in enumerate(finals, start=1)
    ]
    assert [str(run.path) for run in Run.below(tmp_path)] == sorted(map(str, paths))
    assert list(compare(paths, unfinished=True).seeds) == [3, 3]
    table = compare(paths)
    assert list(table.index) == ["grpo", "r3"] and list(table.seeds) == [3, 3]
    assert list(table.final_accuracy) == pytest.approx([0.35, 0.6])
    (_, r3) = arms.compare([read_run(path) for path in paths]).arms
    less = r3.differences["final_accuracy"]
    row = table.loc["r3"]
    assert (row.final_accuracy_less_reference, row.final_accuracy_less_reference_low) == (
        less.mean,
        less.low,
    )
    assert (
        less.mean == pytest.approx(0.25)
        and table.loc["grpo"].isna()["final_accuracy_less_reference"]
    )
