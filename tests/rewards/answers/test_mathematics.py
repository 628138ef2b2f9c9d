"""Verdicts of the grader of mathematics, symbolic comparison included, in real worker processes."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3_openrlhf import grade


def verdicts(grades):
    return [grade.verdict.value for grade in grades]


@pytest.mark.parametrize("verdict", ["correct", "wrong"])
def test_answers_in_many_spellings(grade_many, verdict):
    """pairs_*.txt: answers and references in the style of competitions, as a person would judge them."""
    lines = (
        Path(__file__)
        .with_name(f"pairs_{verdict}.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    pairs = [line.split(" === ") for line in lines]
    grades = grade_many([(rf"\boxed{{{answer}}}", reference) for answer, reference in pairs])
    assert [
        line for line, found in zip(lines, verdicts(grades), strict=True) if found != verdict
    ] == []


def test_reasons(grade_many):
    cases = [
        (r"\boxed{5}", "5", "correct"),
        (r"\boxed{6}", "5", "wrong"),
        ("I cannot say.", "5", "no_answer"),
        (r"<think>\boxed{5}", "5", "no_answer"),
        ("", "5", "no_answer"),
        (r"\boxed{5}", "", "bad_reference"),
        (r"\boxed{" + "1+" * 600 + "1}", "5", "answer_too_long"),
        (r"\boxed{9^{9^{9^{9}}}}", "5", "too_large"),
        (r"\boxed{9^{9^{9^{9}}}+x}", "5", "too_large"),
        (r"\boxed{\int_0^1 x dx}", "0.5", "unevaluated"),
        (
            r"\boxed{\begin{pmatrix}1&2\end{pmatrix}\begin{pmatrix}3\\4\end{pmatrix}}",
            "11",
            "wrong",
        ),
        (r"\boxed{6}", "5+x", "wrong"),  # and the next item is not
    ]
    grades = grade_many([(response, reference) for response, reference, _ in cases])
    assert [grade.reason for grade in grades] == [reason for *_, reason in cases]
    # a response does not escape its zero by being endless
    assert verdicts(grades)[7:9] == [
        "wrong",
        "wrong",
    ]


@pytest.mark.parametrize(
    ("name", "least", "rows"),
    [
        ("vectors", 0.975, 284),
        ("outputs_gsm8k_openai", 0.995, 975),
        ("outputs_rho_math500", 0.98, 1000),
    ],
)
def test_agreement_with_the_verdicts_of_others(grade_many, name, least, rows):
    """benchmarks/grading_accuracy.py lists the rest, docs/rewards.md explains it. Plain math-verify: 0.954 on vectors."""
    path = Path(__file__).parents[3] / "../shared/data/grader" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path.name} of the grader data is not there")
    data = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(data) == rows
    grades = grade_many(
        [(row.get("prediction", row.get("response")), row["gold"]) for row in data]
    )
    agree = [
        g.verdict.value == ("correct" if row.get("expected", row.get("correct")) else "wrong")
        for g, row in zip(grades, data, strict=True)
    ]
    assert sum(agree) / rows >= least


def test_an_endless_reference_takes_no_time(grade_many):
    """Comparing [1, oo) with [2^(1/2^1000), oo) takes sympy 10 s and more; the limit of this fixture is 20 s."""
    (grade,) = grade_many([(r"\boxed{[1,\infty)}", r"[2^{1/2^{1000}},\infty)")])
    assert (grade.reason, grade.verdict.value) == ("too_large", "ungraded")
    (grade,) = grade_many([(r"\boxed{[2^{1/2^{1000}},\infty)}", r"[1,\infty)")])
    assert grade.verdict.value == "wrong"


@given(*[st.integers(2, 9)] * 2, st.sampled_from(["floor", "ceil"]), st.sampled_from("nx"))
@settings(max_examples=40, deadline=None)
def test_floors_of_two_quotients_are_equal_only_if_the_quotients_are(a, b, name, letter):
    answer, reference = (rf"\l{name} \frac{{{letter}}}{{{i}}} \r{name}+1" for i in (a, b))
    assert grade(rf"\boxed{{{answer}}}", reference).verdict == (
        "correct" if a == b else "wrong"
    )
