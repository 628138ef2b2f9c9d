"""Nothing that a model writes runs as code, hangs the grader or changes the grade of another response."""

import os
import subprocess
import sys
import unicodedata

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.types import Verdict
from tests.rewards.graders import endless_request, graded, request
from tests.rewards.hostile_payloads import CODE, ENDLESS_REFERENCE, PAYLOADS, endless
from tests.tables import tables_beside

DEADLINE_S = 3.0
ENTRIES = tables_beside(__file__)


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


def benign(i):
    # every fourth one needs the symbolic comparison
    if i % 4 == 0:
        return request(rf"\boxed{{(x+{i})^2}}", f"x^2+{2 * i}x+{i * i}")
    return request(rf"It is \boxed{{{i}}}.", f"{i}")


def grade_all(requests):
    return graded(RewardConfig(timeout_s=DEADLINE_S, num_workers=2), requests, at_once=100)


def hostile_requests(canary):
    for payload in PAYLOADS:
        text = payload.replace("CANARY", str(canary))
        references = (ENDLESS_REFERENCE,) if payload == endless() else ("5", "x^2+1", "[1,2]")
        for response in (
            rf"\boxed{{{text}}}",
            f"The final answer is ${text}$. I hope it is correct.",
        ):
            yield request(response, *references)
        for task, entry in [
            ("exact", None),
            *(("reasoning_gym", entry) for entry in ENTRIES.values()),
        ]:
            if len(text) < 5_000 or entry in (None, ENTRIES["countdown"]):
                yield request(f"<answer>{text}</answer>", task=task, metadata=entry)


def test_the_payloads_do_run_where_text_is_evaluated(canary):
    """Positive control: the same texts, given to the functions that the graders avoid, leave the canary."""
    program = """
import os, sys
from sympy.parsing.sympy_parser import parse_expr
for text in sys.argv[1:]:
    for evaluate in (parse_expr, eval):
        try:
            evaluate(text)
        except Exception:
            pass
try:
    while True:
        os.wait()  # one payload starts a process and does not wait for it
except ChildProcessError:
    pass
"""
    for payload in CODE[:5]:
        subprocess.run(
            [sys.executable, "-c", program, payload.replace("CANARY", str(canary))], check=True
        )
        assert canary.exists(), payload
        canary.unlink()


def test_hostile_responses_do_no_harm(canary):
    assert len(PAYLOADS) >= 60
    hostile = list(hostile_requests(canary))
    mixed = []
    for i, item in enumerate(hostile):
        mixed += [item, benign(i)]
    grades = grade_all(mixed)

    assert not canary.exists()
    for item, grade in zip(hostile, grades[::2], strict=True):
        # late by no more than RLIMIT_CPU allows, however busy the machine is (worker.py, whole seconds, two to spare)
        assert grade.seconds < DEADLINE_S + 3.5, item.response[:80]
        # some payloads are honest: "5" in other digits is 5
        says_five = any(unicodedata.digit(sign, None) == 5 for sign in item.response)
        allowed = grade.verdict is not Verdict.CORRECT or says_five
        assert allowed, (item.response[:80], grade)
        assert (
            (grade.score is None)
            == (grade.verdict is Verdict.UNGRADED)
            == (grade.reward is None)
        )
    assert [
        i for i, grade in enumerate(grades[1::2]) if grade.verdict is not Verdict.CORRECT
    ] == []


def test_an_endless_item_takes_nobody_with_it():
    """One hanging item inside a batch: the items behind it are graded by others."""
    requests = [benign(i) for i in range(32)]
    requests[3] = endless_request()
    grades = grade_all(requests)
    assert (grades[3].verdict, grades[3].reason) == (Verdict.UNGRADED, "timeout")
    assert all(grade.verdict is Verdict.CORRECT for i, grade in enumerate(grades) if i != 3)


def test_no_process_and_no_directory_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    grade_all([benign(i) for i in range(8)])
    assert os.listdir(tmp_path) == []
