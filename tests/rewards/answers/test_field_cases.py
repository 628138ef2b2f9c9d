"""Answers and references as other people write them; made up, each with the verdict of a person."""

import json
from pathlib import Path

import pytest

from r3_openrlhf import grade

OWN = Path(__file__).with_name("field_cases.jsonl")
FIELD = Path(__file__).parents[4] / "shared" / "data" / "grader" / "field_cases.jsonl"


def misjudged(path):
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rest = ("problem", "task", "truncated")
    said = [grade(case["response"], case["references"], **{k: case[k] for k in rest if k in case}) for case in cases]
    return [
        (case["response"], case["references"], outcome.reason)
        for case, outcome in zip(cases, said, strict=True)
        if (outcome.verdict == "correct") != (case["verdict"] == "correct")
    ]


def test_our_own_cases_of_each_class():
    assert misjudged(OWN) == []


@pytest.mark.skipif(not FIELD.is_file(), reason="the field's cases are not here")
def test_the_cases_of_the_field():
    assert len(misjudged(FIELD)) <= 3


def test_a_letter_of_the_problem_is_no_unit():
    assert grade(r"\boxed{6}", "6m").verdict == "correct"
    assert grade(r"\boxed{6}", "6m", problem="Simplify $2m+4m$.").verdict == "wrong"
