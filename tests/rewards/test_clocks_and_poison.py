"""A clock that is years off, and items that try to leave something behind in the process which grades the next ones."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.config import RewardConfig
from r3_openrlhf.rewards.client import make_grader
from tests.rewards.graders import request
from tests.tables import tables_beside

YEARS = 20 * 365 * 86400
SHIFTED = """
import itertools, time
_time, _time_ns, _calls = time.time, time.time_ns, itertools.count()
time.time = lambda: _time() + {seconds} * (next(_calls) % 2)
time.time_ns = lambda: _time_ns() + {seconds} * 10**9 * (next(_calls) % 2)
"""  # in every process of the program, from call to call: Python imports it when it starts
PROGRAM = """
import sys, time
from r3_openrlhf.config import RewardConfig
from r3_openrlhf.method.history import HistoryStore
from tests.rewards.graders import graded, request

requests = [request(rf"\\boxed{{{answer}}}", "x^2-1") for answer in ("(x-1)(x+1)", "x^2", "x^2-1")]
grades = graded(RewardConfig(num_workers=1, timeout_s=20.0), requests)
for opened in (1, 2):  # the store that the first one left can be opened again
    with HistoryStore.open(sys.argv[1]) as store:
        store.commit_step(opened, 1, [])
years = {time.gmtime(time.time()).tm_year for _ in range(2)}
print(len(years), *(grade.verdict.value for grade in grades))
"""


@pytest.mark.parametrize("seconds", [YEARS, -YEARS])
def test_verdicts_and_the_store_do_not_depend_on_the_clock(seconds, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SHIFTED.format(seconds=seconds))
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "history.sqlite")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == ["2", "correct", "wrong", "correct"], done.stderr[-2000:]


def test_no_item_changes_the_grades_of_those_behind_it():
    """One process grades all of them, in several orders."""
    tables = tables_beside(__file__)
    benign, poison = tables["benign"], tables["poison"]

    async def run():
        grader = make_grader(RewardConfig(num_workers=1, timeout_s=20.0))
        try:
            alone = [await grader.grade(request(*pair)) for pair in benign]
            for seed in range(3):
                order = random.Random(seed).sample(poison, len(poison))
                for number, response in enumerate(order):
                    response_, reference = benign[number % len(benign)]
                    await grader.grade(request(response, reference))
                    grade = await grader.grade(
                        request(f"{seed} {number}: {response_}", reference)
                    )
                    first = alone[number % len(benign)]
                    assert (grade.verdict, grade.reason) == (first.verdict, first.reason), (
                        response,
                        response_,
                    )
        finally:
            grader.close()

    asyncio.run(run())
