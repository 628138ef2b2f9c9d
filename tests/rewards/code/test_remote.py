"""A remote executor in SandboxFusion's HTTP form, against a stand-in that runs what it is sent; and one that fails."""

import json
import subprocess
import sys

import pytest

from r3_openrlhf.rewards.answers.request import Item
from r3_openrlhf.rewards.code import remote
from r3_openrlhf.rewards.code.grading import grader
from tests.answering import answering
from tests.rewards.code.test_grading import ADD, CALLS, SETTINGS, fenced


def executed(body):
    """What SandboxFusion's /run_code says of a Python program."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", body["code"]],
            input=body["stdin"],
            capture_output=True,
            text=True,
            timeout=body["run_timeout"],
        )
    except subprocess.TimeoutExpired:
        return {
            "status": "Failed",
            "message": "",
            "compile_result": None,
            "run_result": {"status": "TimeLimitExceeded"},
        }
    result = {
        "status": "Finished",
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "execution_time": 0.1,
    }
    status = "Failed" if done.returncode else "Success"
    return {
        "status": status,
        "message": "",
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": {},
    }


def served(answer):
    """A server that answers POST /run_code with `answer` of the body."""

    def answer_at(path, body):
        found = answer(body) if path == "/run_code" else None
        return 200 if found is not None else 404, json.dumps(found)

    return answering(answer_at)


CASES = {
    "right": ("a, b = map(int, input().split())\nprint(a + b)", ADD, "correct", "correct"),
    "wrong": ("print(3)", ADD, "wrong", "failed test 2 of 3: wrong output"),
    "right function": ("print('noise')\ndef add(a, b):\n    return a + b", CALLS, "correct", "correct"),
    "right method": ("class Solution:\n    def add(self, a, b):\n        return (a + b)", CALLS, "correct", "correct"),
    "raises": ("print(1 / 0)", ADD, "wrong", "failed test 1 of 3: ZeroDivisionError"),
    "exit code": (
        "import sys\na, b = map(int, input().split())\nprint(a + b)\nsys.exit(4)",
        ADD,
        "correct",
        "correct",
    ),
    "syntax": ("print(", ADD, "wrong", "syntax_error"),
    "slow": ("while True: pass", CALLS, "wrong", "timeout"),
    "no value": ("import os\ndef add(a, b):\n    os._exit(0)", CALLS, "wrong", "failed test 1 of 2: no value"),
    "no function": ("x = 1", CALLS, "wrong", "failed test 1 of 2: KeyError"),
    "no JSON": ("def add(a, b):\n    return {1, 2}", CALLS, "wrong", "failed test 1 of 2: TypeError"),
}


@pytest.mark.parametrize(("program", "tests", "verdict", "reason"), CASES.values(), ids=CASES)
def test_the_stand_in_and_this_machine_agree(program, tests, verdict, reason):
    with served(executed) as (url, bodies):
        judged = grader(SETTINGS | {"url": url, "seconds_per_test": 3.0})
        assert judged(Item("code", fenced(program), (tests,), False))[:2] == (verdict, reason)
    assert all(body["memory_limit_MB"] == 256 and body["language"] == "python" for body in bodies)
    local = grader(SETTINGS | {"seconds_per_test": 0.5})(Item("code", fenced(program), (tests,), False))
    assert local[0] == verdict


def test_what_is_expected_never_leaves():
    tests = json.dumps({"inputs": [[1]], "outputs": ["s3cr3t"], "fn_name": "f"})
    with served(executed) as (url, bodies):
        grader(SETTINGS | {"url": url})(Item("code", fenced("def f(x): return x"), (tests,), False))
    assert bodies and "s3cr3t" not in json.dumps(bodies)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: {"status": "SandboxError", "message": "no room"},
        lambda _: None,
        lambda _: {"status": "Success", "run_result": {"status": "Error"}},
        lambda _: ["Success"],
        lambda _: {"status": "Success", "run_result": None, "compile_result": None},
    ],
)
def test_a_server_that_fails_is_nobody_s_mistake(answer, monkeypatch):
    monkeypatch.setattr(remote.time, "sleep", lambda _: None)
    with served(answer) as (url, _):
        judged = grader(SETTINGS | {"url": url})
        assert judged(Item("code", fenced("print(3)"), (ADD,), False))[:3] == ("ungraded", "unavailable", None)
    assert judged(Item("code", fenced("print(3)"), (ADD,), False))[:3] == ("ungraded", "unavailable", None)


def test_asserts_need_processes_of_this_machine():
    tests = json.dumps({"asserts": ["assert add(1, 2) == 3"]})
    judged = grader(SETTINGS | {"url": "http://127.0.0.1:9/"})
    assert judged(Item("code", fenced("x = 1"), (tests,), False))[:2] == ("ungraded", "asserts_need_local_processes")
