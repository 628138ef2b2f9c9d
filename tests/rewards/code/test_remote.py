"""A remote executor in SandboxFusion's HTTP form, against a stand-in that runs what it is sent; and one that fails."""

import json
import subprocess
import sys

import pytest

from r3_openrlhf.rewards.answers.request import Item
from r3_openrlhf.rewards.code import remote
from r3_openrlhf.rewards.code.grading import grader
from tests.answering import answering
from tests.rewards.code.programs import ADD, SETTINGS, TESTS, fenced
from tests.tables import tables_beside


def executed(body):
    """What SandboxFusion's /run_code says of a Python program."""
    answer = {"message": "", "compile_result": None, "executor_pod_name": None, "files": {}}
    command = [sys.executable, "-I", "-c", body["code"]]
    try:
        done = subprocess.run(
            command,
            input=body["stdin"],
            capture_output=True,
            text=True,
            timeout=body["run_timeout"],
        )
    except subprocess.TimeoutExpired:
        return answer | {"status": "Failed", "run_result": {"status": "TimeLimitExceeded"}}
    result = {
        "status": "Finished",
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
    }
    return answer | {"status": "Failed" if done.returncode else "Success", "run_result": result}


def served(answer):
    """A server that answers POST /run_code with `answer` of the body."""

    def answer_at(path, body):
        content = answer(body) if path == "/run_code" else None
        return 200 if content is not None else 404, json.dumps(content)

    return answering(answer_at)


CASES = tables_beside(__file__)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_stand_in_and_this_machine_agree(case):
    verdict, reasons = case["verdict"], case["reasons"]
    item = Item("code", fenced(case["program"]), (TESTS[case["tests"]],), False)
    with served(executed) as (url, bodies):
        judged = grader(SETTINGS | {"url": url, "seconds_per_test": 3.0})
        assert judged(item)[:2] == (verdict, reasons[0])
    assert all(
        body["memory_limit_MB"] == 256 and body["language"] == "python" for body in bodies
    )
    assert grader(SETTINGS | {"seconds_per_test": 0.5})(item)[:2] == (verdict, reasons[-1])


def test_what_is_expected_never_leaves():
    tests = json.dumps({"inputs": [[1]], "outputs": ["s3cr3t"], "fn_name": "f"})
    with served(executed) as (url, bodies):
        grader(SETTINGS | {"url": url})(
            Item("code", fenced("def f(x): return x"), (tests,), False)
        )
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
        assert judged(Item("code", fenced("print(3)"), (ADD,), False))[:3] == (
            "ungraded",
            "unavailable",
            None,
        )
    assert judged(Item("code", fenced("print(3)"), (ADD,), False))[:3] == (
        "ungraded",
        "unavailable",
        None,
    )


def test_several_servers_share_the_tests_and_stand_in_for_one_that_fails():
    with (
        served(executed) as (good, bodies),
        served(executed) as (other, more),
        served(lambda _: None) as (bad, _),
    ):
        judged = grader(SETTINGS | {"url": f"{bad}, {good}/,{other}", "seconds_per_test": 3.0})
        program = fenced("a, b = map(int, input().split())\nprint(a + b)")
        assert judged(Item("code", program, (ADD,), False))[:2] == ("correct", "correct")
    assert len(bodies) + len(more) == len(json.loads(ADD)["inputs"]) and bodies and more


def test_asserts_need_processes_of_this_machine():
    tests = json.dumps({"asserts": ["assert add(1, 2) == 3"]})
    judged = grader(SETTINGS | {"url": "http://127.0.0.1:9/"})
    assert judged(Item("code", fenced("x = 1"), (tests,), False))[:2] == (
        "ungraded",
        "asserts_need_local_processes",
    )
