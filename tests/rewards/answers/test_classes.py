"""Answers that a person judged, by class: attacks, right spellings, and rows as other people write them; none was copied from another test."""

import json
from pathlib import Path

import pytest

from r3_openrlhf import grade

FIELD = Path(__file__).parents[4] / "shared" / "data" / "grader"


def judged(path):
    """Yield the cases of a text of sections, each headed "── class | verdict", with further words "task NAME" and "truncated".

    A line is response === reference, with ||| between several references, and === problem where it counts.
    ⏎ and ⇥ stand for a new line and a tab."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("── "):
            of_class, verdict, *others = line.removeprefix("── ").split(" | ")
            section = {"class": of_class, "verdict": verdict}
            for word in others:
                key, _, value = word.partition(" ")
                section[key] = value or True
        elif line:
            texts = line.replace("⏎", "\n").replace("⇥", "\t").split(" === ")
            response, references = texts[:2]
            case = section | {"response": response, "references": references.split(" ||| ")}
            if texts[2:]:
                case["problem"] = texts[2]
            yield case


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


CASES = list(judged(Path(__file__).with_name("cases_of_classes.txt")))


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
