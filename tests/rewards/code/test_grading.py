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
from tests.rewards.code.programs import ADD, CALLS, SETTINGS, TABLES, TESTS, fenced


def graded(program, tests=ADD, **settings):
    judge = grader(SETTINGS | settings)
    return judge(Item("code", fenced(program), (tests,), False))[:3]


def graded_case(case, **settings):
    tests = case["tests"]
    return graded(
        case["program"],
        TESTS[tests] if isinstance(tests, str) else json.dumps(tests),
        **settings,
    )


@pytest.mark.parametrize("case", TABLES["right"].values(), ids=TABLES["right"])
def test_right(case):
    assert graded_case(case) == ("correct", "correct", 1.0)


NUMBERS = st.sampled_from(
    [5, 5.0, 5.0000001, 5.1, 0.0, 1e-13, True, None, "word", float("inf"), 1 + 2j]
)
VALUES = (
    NUMBERS
    | st.lists(NUMBERS, min_size=1, max_size=2)
    | st.dictionaries(st.sampled_from("ab"), NUMBERS, min_size=1, max_size=2)
)


@given(VALUES, VALUES, st.booleans())
def test_approx_of_tests_says_what_pytest_says(value, other, is_array):
    exec(_PYTEST, stand_in := {})
    if is_array and all(
        isinstance(part, list) and {*map(type, part)} <= {int, float} for part in (value, other)
    ):
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
        assert secret not in str(
            grader(SETTINGS)(Item("code", fenced(program), (tests,), False))[1]
        )


def test_no_code_and_references_that_are_none():
    judged = grader(SETTINGS)
    assert judged(Item("code", "print(3)", (ADD,), False))[:3] == ("wrong", "no_code", 0.0)
    for references in ((), ("3",), ("{}",), ('{"inputs": [], "outputs": []}',), (ADD, ADD)):
        assert judged(Item("code", fenced("print(3)"), references, False))[:3] == (
            "ungraded",
            "bad_reference",
            None,
        )


STATUSES = st.lists(
    st.sampled_from(["finished", "timeout", "unavailable"]), min_size=1, max_size=20
)


@given(STATUSES, st.fractions(0, 1, max_denominator=50).filter(bool))
def test_a_verdict_is_what_the_tests_without_a_process_cannot_change(statuses, threshold):
    number, passed = len(statuses), statuses.count("finished")
    reference = json.dumps({"inputs": ["1"] * number, "outputs": ["3"] * number})
    most = number - statuses.count("timeout")
    verdicts = {
        "correct" if count >= threshold * number else "wrong" for count in (passed, most)
    }

    def run(*_, **__):
        return [Outcome(status=status, stdout="3") for status in statuses]

    for by_share in (False, True):
        credit = {"by_share": by_share, "threshold": float(threshold)}
        found, _, score, _ = judge(
            Item("code", fenced("x"), (reference,), False), Limits(), run, **credit
        )
        assert found == (min(verdicts) if len(verdicts) == 1 else "ungraded")
        assert score == {"correct": 1.0, "ungraded": None}.get(
            found, passed / number if by_share else 0.0
        )


def test_a_share_of_the_tests_is_enough_where_the_settings_say_so():
    program = "a, b = map(int, input().split())\nprint(a + b if a > 1 else 0)"
    for threshold, verdict in (
        (0.6, ("correct", "correct", 1.0)),
        (0.7, ("wrong", "failed test 1 of 3: wrong output", 0.0)),
    ):
        assert graded(program, credit="threshold", threshold=threshold) == verdict
    for threshold in (0, -0.5, 1.01, float("nan"), True, None):
        with pytest.raises(ConfigError, match=r"reward\.code\.threshold"):
            CodeConfig(credit="threshold", threshold=threshold)
    with pytest.raises(ConfigError, match=r"credit=threshold"):
        CodeConfig(threshold=0.8)


def test_limits_of_a_problem_go_above_those_of_the_run():
    seen = []

    def run(*_, limits, **__):
        seen.append((limits.seconds_per_test, limits.memory_mb))
        return [Outcome(status="finished", stdout=text) for text in ("3", "7", "11")]

    for more in (
        {},
        {"time_limit": 0.5, "memory_limit_mb": 16},
        {"time_limit": 9.0, "memory_limit_mb": 4096.0},
    ):
        judge(
            Item("code", fenced("x"), (json.dumps(json.loads(ADD) | more),), False),
            Limits(),
            run,
        )
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
    assert named(Item("code", response, (json.dumps(tests),), False))[:2] == (
        "correct",
        "correct",
    )
    assert grader(SETTINGS)(Item("code", response, (json.dumps(tests),), False))[:2] == (
        "ungraded",
        "unknown_language",
    )
    tests["language"] = "tests.rewards.code.languages:shell"
    assert named(Item("code", response, (json.dumps(tests),), False))[:2] == (
        "ungraded",
        "bad_reference",
    )
    with pytest.raises(ConfigError, match=r"reward\.code\.languages\.shell"):
        CodeConfig(languages={"shell": "sh"})


@given(
    status=st.sampled_from(
        [
            "error",
            "crashed",
            "timeout",
            "memory",
            "blocked",
            "output",
            "syntax_error",
            "unavailable",
        ]
    ),
    detail=st.sampled_from(["unavailable", "correct", "timeout: x", "bad_reference", ""])
    | st.text(),
)
def test_what_a_program_says_of_itself_is_shown_and_never_compared(status, detail):
    def run(*_, **__):
        return [Outcome(status=status, detail=detail)]

    verdict, reason, score, _ = judge(Item("code", fenced("x"), (ADD,), False), Limits(), run)
    assert (verdict, score) == (
        ("ungraded", None) if status == "unavailable" else ("wrong", 0.0)
    )
    assert reason == status or reason == f"failed test 1 of 3: {detail or status}"
