"""Responses to tests in the one contract: verdict, reason and score. What runs, runs in confined processes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3_openrlhf import grade
from r3_openrlhf.config import CodeConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.rewards.answers.request import Item
from r3_openrlhf.rewards.code.asserts import _PYTEST
from r3_openrlhf.rewards.code.grading import grader, judge
from r3_openrlhf.rewards.code.run import Limits, Outcome
from tests.tables import tables_beside

TABLES = tables_beside(__file__)
TESTS = {name: json.dumps(tests) for name, tests in TABLES["tests"].items()}
ADD, CALLS = TESTS["ADD"], TESTS["CALLS"]
SETTINGS = {
    "seconds_per_test": 2.0,
    "seconds": 20.0,
    "memory_mb": 256,
    "url": None,
    "languages": {},
    "credit": "share",
}


def fenced(program):
    return f"So:\n```python\n{program}\n```"


def graded(program, tests=ADD, **settings):
    judge = grader(SETTINGS | settings)
    return judge(Item("code", fenced(program), (tests,), False))[:3]


def graded_case(case, **settings):
    tests = case["tests"]
    return graded(case["program"], TESTS[tests] if isinstance(tests, str) else json.dumps(tests), **settings)


@pytest.mark.parametrize("case", TABLES["right"].values(), ids=TABLES["right"])
def test_right(case):
    assert graded_case(case) == ("correct", "correct", 1.0)


NUMBERS = st.sampled_from([5, 5.0, 5.0000001, 5.1, 0.0, 1e-13, True, None, "word", float("inf"), 1 + 2j])
VALUES = (
    NUMBERS
    | st.lists(NUMBERS, min_size=1, max_size=2)
    | st.dictionaries(st.sampled_from("ab"), NUMBERS, min_size=1, max_size=2)
)


@given(VALUES, VALUES, st.booleans())
def test_approx_of_tests_says_what_pytest_says(value, other, is_array):
    exec(_PYTEST, stand_in := {})
    if is_array and all(isinstance(part, list) and {*map(type, part)} <= {int, float} for part in (value, other)):
        value, other = np.array(value, float), np.array(other, float)
    for right in (value, other):
        assert (stand_in["approx"](value) == right) is (pytest.approx(value) == right)


@pytest.mark.parametrize("case", TABLES["wrong"].values(), ids=TABLES["wrong"])
def test_wrong(case):
    verdict, reason, score = graded_case(case, seconds_per_test=0.5)
    assert (verdict, score) == ("wrong", case["score"])
    assert reason == case.get("reason", reason)


def test_no_reason_holds_what_is_expected():
    secret = "s3cr3t-0utput"
    tests = json.dumps({"inputs": ["1"], "outputs": [secret]})
    for program in ("print(1)", "raise ValueError(input())", "import os; os._exit(1)", "x ="):
        assert secret not in str(grader(SETTINGS)(Item("code", fenced(program), (tests,), False))[1])


def test_no_code_and_references_that_are_none():
    judged = grader(SETTINGS)
    assert judged(Item("code", "print(3)", (ADD,), False))[:3] == ("wrong", "no_code", 0.0)
    for references in ((), ("3",), ("{}",), ('{"inputs": [], "outputs": []}',), (ADD, ADD)):
        assert judged(Item("code", fenced("print(3)"), references, False))[:3] == ("ungraded", "bad_reference", None)


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        (["finished", "unavailable", "finished"], ("ungraded", "unavailable", None)),
        (["unavailable", "error", "finished"], ("wrong", "failed test 2 of 3: error", 1 / 3)),
        (["finished", "timeout", "finished"], ("wrong", "timeout", 2 / 3)),
        (["finished"] * 3, ("correct", "correct", 1.0)),
    ],
)
def test_what_got_no_process_is_never_wrong(statuses, verdict):
    outputs = ["3", "7", "11"]

    def run(*_, **__):
        return [Outcome(status=status, stdout=text) for status, text in zip(statuses, outputs, strict=True)]

    assert judge(Item("code", fenced("x"), (ADD,), False), Limits(), run, by_share=True)[:3] == verdict


def test_limits_of_a_problem_go_above_those_of_the_run():
    seen = []

    def run(*_, limits, **__):
        seen.append((limits.seconds_per_test, limits.memory_mb))
        return [Outcome(status="finished", stdout=text) for text in ("3", "7", "11")]

    for more in ({}, {"time_limit": 0.5, "memory_limit_mb": 16}, {"time_limit": 9.0, "memory_limit_mb": 4096.0}):
        judge(Item("code", fenced("x"), (json.dumps(json.loads(ADD) | more),), False), Limits(), run)
    assert seen == [(6.0, 1024), (6.0, 1024), (9.0, 4096)]


def test_by_itself():
    outcome = grade(fenced("def add(a, b):\n    return a + b"), CALLS, task="code")
    assert (outcome.verdict, outcome.score, outcome.extracted) == (
        "correct",
        1.0,
        "def add(a, b):\n    return a + b\n",
    )


def test_another_language_is_a_word_of_the_run_and_never_a_path_of_the_data():
    tests = {"inputs": ["4\n"], "outputs": ["got 4\n"], "language": "shell"}
    response = "```shell\nread x\necho got $x\n```"
    named = grader(SETTINGS | {"languages": {"shell": "tests.rewards.code.languages:shell"}})
    assert named(Item("code", response, (json.dumps(tests),), False))[:2] == ("correct", "correct")
    assert grader(SETTINGS)(Item("code", response, (json.dumps(tests),), False))[:2] == (
        "ungraded",
        "unknown_language",
    )
    tests["language"] = "tests.rewards.code.languages:shell"
    assert named(Item("code", response, (json.dumps(tests),), False))[:2] == ("ungraded", "bad_reference")
    with pytest.raises(ConfigError, match=r"reward\.code\.languages\.shell"):
        CodeConfig(languages={"shell": "sh"})


@given(
    status=st.sampled_from(
        ["error", "crashed", "timeout", "memory", "blocked", "output", "syntax_error", "unavailable"]
    ),
    detail=st.sampled_from(["unavailable", "correct", "timeout: x", "bad_reference", ""]) | st.text(),
)
def test_what_a_program_says_of_itself_is_shown_and_never_compared(status, detail):
    def run(*_, **__):
        return [Outcome(status=status, detail=detail)]

    verdict, reason, score, _ = judge(Item("code", fenced("x"), (ADD,), False), Limits(), run)
    assert (verdict, score) == (("ungraded", None) if status == "unavailable" else ("wrong", 0.0))
    assert reason == status or reason == f"failed test 1 of 3: {detail or status}"
