"""What is shown while a run works: each line of a file once, whatever happens to the file."""

import json

import pytest

from r3_openrlhf.openrlhf_adapter.console import evaluation_line, new_lines
from r3_openrlhf.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def test_lines_are_shown_once_and_only_whole_ones(run):
    lines = new_lines(run.metrics)
    assert next(lines) == []  # no file yet
    run.append_metrics({"step": 1})
    run.append_metrics({"step": 2})
    assert [line["step"] for line in next(lines)] == [1, 2]
    with run.metrics.open("a") as file:
        file.write('{"step"')
    assert next(lines) == []
    with run.metrics.open("a") as file:
        file.write(": 3}\n")
    assert [line["step"] for line in next(lines)] == [3]


def test_what_was_there_before_is_not_shown(run):
    run.append_metrics({"step": 1})
    lines = new_lines(run.metrics)
    assert next(lines) == []
    run.append_metrics({"step": 2})
    assert [line["step"] for line in next(lines)] == [2]


def test_a_run_that_goes_back_shows_the_repeated_steps(run):
    lines = new_lines(run.metrics)
    next(lines)
    for step in (1, 2, 3):
        run.append_metrics({"step": step})
    next(lines)
    run.roll_back(1)
    assert next(lines) == []
    run.append_metrics({"step": 2})
    assert [line["step"] for line in next(lines)] == [2]


def test_a_completed_last_line_is_not_shown_again(run):
    lines = new_lines(run.metrics)
    next(lines)
    run.append_metrics({"step": 1, "generated_tokens": 5.0, "generated_tokens_total": 5.0})
    next(lines)
    run.complete_metrics({"generated_tokens": 1e6, "generated_tokens_total": 1e6})
    assert next(lines) == []
    assert json.loads(run.metrics.read_text())["generated_tokens_total"] == 1_000_005.0
    run.append_metrics({"step": 2})
    assert [line["step"] for line in next(lines)] == [2]


def test_an_evaluation_in_words():
    line = {"step": 8, "pass_at_1": 0.25, "pass_at_n": 0.5, "n_samples": 4, "response_tokens_mean": 12.0}
    assert evaluation_line(line) == (
        "held-out problems after step 8: 25.0% of the responses right, 50.0% of the problems at least once in 4, "
        "12.0 tokens"
    )
    assert "could be graded" in evaluation_line(line | {"pass_at_1": None})
