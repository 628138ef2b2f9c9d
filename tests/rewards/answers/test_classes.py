"""Answers that a person judged, by class: attacks, right spellings, and rows as other people write them; none was copied from another test."""

import json
from pathlib import Path

import pytest

from r3_openrlhf import grade

FIELD = Path(__file__).parents[4] / "shared" / "data" / "grader"


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


CASES = rows(Path(__file__).with_name("cases_of_classes.jsonl"))


def misjudged(cases):
    known = ("problem", "task", "truncated")
    grades = [
        grade(case["response"], case["references"], **{k: case[k] for k in known if k in case})
        for case in cases
    ]
    return [
        (case, it.reason)
        for case, it in zip(cases, grades, strict=True)
        if it.verdict != case["verdict"]
    ]


@pytest.mark.parametrize("name", dict.fromkeys(case["class"] for case in CASES))
def test_answers_of_a_class(name):
    assert misjudged([case for case in CASES if case["class"] == name]) == []


@pytest.mark.parametrize(("name", "most"), [("field_cases", 5), ("field_cases_2", 0)])
def test_the_cases_of_the_field(name, most):
    if not (path := FIELD / f"{name}.jsonl").is_file():
        pytest.skip("the field's cases are not here")
    assert len(misjudged(rows(path))) <= most
