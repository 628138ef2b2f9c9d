"""Answers of each class of attack and of each class of right spelling, as a person would judge them; none was copied from another test."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("cases_of_classes.jsonl").read_text(encoding="utf-8").splitlines()
]
BY_CLASS = defaultdict(list)
for _case in CASES:
    BY_CLASS[_case["class"]].append(_case)


@pytest.mark.parametrize("name", BY_CLASS)
def test_answers_of_a_class(grade_many, name):
    cases = BY_CLASS[name]
    grades = grade_many(
        [(case["response"], case["reference"]) for case in cases],
        problems=[case.get("problem", "") for case in cases],
        task="exact" if name == "exact" else "math",
    )
    not_so = [case for case, grade in zip(cases, grades, strict=True) if grade.verdict.value != case["verdict"]]
    assert not_so == []
