"""Responses to tests in the one contract: verdict, reason and score. What runs, runs in confined processes."""

import json

import pytest

from r3_openrlhf import grade
from r3_openrlhf.config import CodeConfig
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.problems.code_rows import _PYTEST
from r3_openrlhf.rewards.answers.request import Item
from r3_openrlhf.rewards.code.grading import grader, judge
from r3_openrlhf.rewards.code.languages import Language
from r3_openrlhf.rewards.code.run import Limits, Outcome

ADD = json.dumps({"inputs": ["1 2\n", "3 4\n", "5 6\n"], "outputs": ["3\n", "7\n", "11\n"]})
CALLS = json.dumps({"inputs": [[1, 2], [3, 4]], "outputs": [3, 7], "fn_name": "add"})
SETTINGS = {"seconds_per_test": 2.0, "seconds": 20.0, "memory_mb": 256, "url": None, "languages": {}}


def fenced(program):
    return f"So:\n```python\n{program}\n```"


def graded(program, tests=ADD, **settings):
    judge = grader(SETTINGS | settings)
    return judge(Item("code", fenced(program), (tests,), False))[:3]


RIGHT = {
    "main guard": ("import sys\ndef main():\n    print(sum(map(int, sys.stdin.buffer.read().split())))\nif __name__ == '__main__':\n    main()", ADD),
    "boxed": ("def f(x):\n    return x", json.dumps({"inputs": [[5]], "outputs": [[5]], "fn_name": "f", "boxed_outputs": True})),
    "numbers as keys": ("def f(d):\n    return d[1]", json.dumps({"inputs": [[{"1": 2}]], "outputs": [2], "fn_name": "f", "integer_keys": True})),
    "preamble": (
        "from __future__ import annotations\ndef f(x: Strange):\n    return helper(x)",
        json.dumps({"inputs": [[1]], "outputs": [2], "fn_name": "f", "preamble": "def helper(x):\n    return x + 1"}),
    ),
    "asserts": (
        "def add(a, b):\n    return a + b",
        json.dumps({"asserts": ["assert add(1, 2) == 3", "assert math.isclose(add(0.1, 0.2), 0.3)"], "setup": "import math"}),
    ),
    "check": (
        "def add(a, b):\n    return a + b",
        json.dumps({"asserts": ["check(add)"], "setup": "def check(candidate):\n    assert candidate(1, 2) == 3"}),
    ),
    "pytest": (
        "def add(a, b):\n    return a + b",
        json.dumps({"asserts": ["test_a()"], "setup": _PYTEST + "def test_a():\n    assert add(0.1, 0.2) == pytest.approx(0.3)\n"
            "    with pytest.raises(TypeError):\n        add(1, 'x')"}),
    ),
    "a checker": (
        "print(2, 3)",
        json.dumps({"inputs": ["5\n"], "outputs": ["1 4\n"], "checker": (
            "import sys\nread = lambda i: list(map(int, open(sys.argv[i]).read().split()))\n"
            "print(int(sum(read(3)) == sum(read(1)) and len(read(3)) == len(read(2))))")}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "tests"), RIGHT.values(), ids=RIGHT)
def test_right(program, tests):
    assert graded(program, tests) == ("correct", "correct", 1.0)


WRONG = {
    "one of three": ("a, b = map(int, input().split())\nprint(a + b if a < 5 else 0)", ADD, "failed test 3 of 3: wrong output", 2 / 3),
    "value": ("def add(a, b):\n    return a * b + 1", CALLS, "failed test 2 of 2: wrong value", 0.5),
    "memory": ("x = []\nwhile True: x.append(bytearray(2**24))", ADD, "memory", 0.0),
    "network": ("import socket\nsocket.create_connection(('127.0.0.1', 80))", ADD, "blocked", 0.0),
    "exits": ("import os\nos._exit(0)", ADD, "failed test 1 of 3: wrong output", 0.0),
    "equal to all": ("class E(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\ndef add(a, b):\n    return E(0)", CALLS, "failed test 1 of 2: wrong value", 0.0),
    "assert": (
        "def add(a, b):\n    return a + b + (a > 5)", json.dumps({"asserts": ["assert add(1, 2) == 3", "assert add(6, 1) == 7"]}),
        "failed test 2 of 2: it does not hold", 0.5),
    "equal to all, asserts": (
        "class E(int):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return E(0)",
        json.dumps({"asserts": ["assert add(1, 2) == 3"]}), None, 0.0),
    "a checker says no": (
        "print(2, 4)", json.dumps({"inputs": ["5\n"], "outputs": ["1 4\n"], "checker": "print(0)"}), "failed test 1 of 1: wrong output", 0.0),
    "a checker breaks": (
        "print('x')", json.dumps({"inputs": ["5\n"], "outputs": ["1 4\n"], "checker": "int('x')\nprint(1)"}),
        "failed test 1 of 1: wrong output", 0.0),
    "a checker reads the whole output": (
        "print(1)", json.dumps({"inputs": ["5\n"], "outputs": ["9\n"], "checker": "print(1)\nprint(0)"}),
        "failed test 1 of 1: wrong output", 0.0),
}  # fmt: skip


@pytest.mark.parametrize(("program", "tests", "reason", "score"), WRONG.values(), ids=WRONG)
def test_wrong(program, tests, reason, score):
    verdict, sentence, given = graded(program, tests, seconds_per_test=0.5)
    assert verdict == "wrong"
    assert reason is None or sentence == reason
    assert score is None or given == score


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

    assert judge(Item("code", fenced("x"), (ADD,), False), Limits(), run)[:3] == verdict


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


SHELL = Language(command=("/bin/sh", "{file}"), file="solution.sh")


def test_another_language_is_a_word_of_the_run_and_never_a_path_of_the_data():
    tests = {"inputs": ["4\n"], "outputs": ["got 4\n"], "language": "shell"}
    response = "```shell\nread x\necho got $x\n```"
    named = grader(SETTINGS | {"languages": {"shell": "tests.rewards.code.test_grading:SHELL"}})
    assert named(Item("code", response, (json.dumps(tests),), False))[:2] == ("correct", "correct")
    assert grader(SETTINGS)(Item("code", response, (json.dumps(tests),), False))[:2] == (
        "ungraded",
        "unknown_language",
    )
    tests["language"] = "tests.rewards.code.test_grading:SHELL"
    assert named(Item("code", response, (json.dumps(tests),), False))[:2] == ("ungraded", "bad_reference")
    with pytest.raises(ConfigError, match=r"reward\.code\.languages\.shell"):
        CodeConfig(languages={"shell": "sh"})
