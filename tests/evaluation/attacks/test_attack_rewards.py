"""`r3 attack-rewards`: a sound file, one whose references accept too much, and one problem of reasoning_gym."""

import json

import pytest
from click.testing import CliRunner

from r3_openrlhf.cli import main


def run(*arguments):
    return CliRunner().invoke(main, ["attack-rewards", *map(str, arguments)])


def file_of(path, *rows):
    path.write_text("".join(json.dumps({"problem": problem, "answer": answer}) + "\n" for problem, answer in rows))
    return path


def test_a_sound_file(tmp_path):
    done = run("--problems", file_of(tmp_path / "p.jsonl", ("Compute $17 \\cdot 3 + 1$.", "52")))
    assert done.exit_code == 0, done.output
    assert "references: 1, of which refused: 0" in done.output and "the problem" in done.output


def test_a_choice_that_is_compared_exactly(tmp_path):
    done = run("--task", "exact", "--problems", file_of(tmp_path / "p.jsonl", ("Which one?", "A")))
    assert done.exit_code == 0, done.output
    assert "two answers" in done.output and "taken back" in done.output


def test_a_reference_that_accepts_too_much(tmp_path):
    """52 and 53 are both accepted by this row, and 53 is an attack on 52."""
    done = run("--problems", file_of(tmp_path / "p.jsonl", ("Compute $17 \\cdot 3 + 1$.", ["52", "53"])))
    assert done.exit_code == 1 and "accepted (another value)" in done.output and "53" in done.output


def test_a_reference_that_the_grader_refuses(tmp_path):
    done = run("--problems", file_of(tmp_path / "p.jsonl", ("Which?", "9^{9^{9^{9}}}+x"), ("Or?", "5")))
    assert done.exit_code == 0 and "references: 2" in done.output


def test_a_task_of_the_library():
    pytest.importorskip("reasoning_gym")
    done = run("--problems", "reasoning_gym:countdown", "--limit", 1)
    assert done.exit_code == 0, done.output
    assert "notations" in done.output


def test_a_task_that_is_not_graded_is_a_sentence():
    pytest.importorskip("reasoning_gym")
    done = run("--problems", "reasoning_gym:puzzle24", "--limit", 1)
    assert done.exit_code == 1 and "its scorer does not check which numbers were used" in done.output
    assert "Traceback" not in done.output and "accepted" not in done.output


def test_no_such_file_is_a_sentence(tmp_path):
    done = run("--problems", tmp_path / "none.jsonl")
    assert done.exit_code == 1 and "none.jsonl" in done.output and "Traceback" not in done.output


def test_references_that_are_no_answer_and_long_ones(tmp_path):
    long = "the sum of two odd numbers is always an even number"
    rows = ("Which?", "odd $n$"), ("Why?", long), ("What?", "$x=1$ and $y=2$")
    done = run("--problems", file_of(tmp_path / "p.jsonl", *rows))
    assert "references that are no answer: 1, taken whole: 1" in done.output
    assert "'odd $n$': is prose" in done.output and f"{long!r}: taken whole" in done.output
    assert "\na part " in done.output
