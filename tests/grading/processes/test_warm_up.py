"""What a fork of the nursery need not learn again."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, re, sys
from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.answers.tasks import grade_item
from r3_openrlhf.grading.processes.worker import warm_up

warm_up()
compile_it, compiled = re._compiler.compile, []
re._compiler.compile = lambda pattern, flags=0: compiled.append(str(pattern)) or compile_it(pattern, flags)
for response, reference in json.loads(sys.argv[1]):
    if os.fork():  # each in a process that is as warm, and no warmer
        os.wait()
        continue
    item = Item("math", response, (reference,), False)
    grade_item(item, may_take_long=False) or grade_item(item, may_take_long=True)
    print(json.dumps(compiled), flush=True)
    os._exit(0)
"""
CASES = [
    (r"First $a=3$, then \[b = 4.\] So the length is $\boxed{5}$ metres.", "5"),
    (r"so $\boxed{(a+b)^2}$.", "$a^2+2ab+b^2$"),
    ("I think that the final answer is $12$.", "12"),
    ("Nothing comes to mind", "12"),
    ("12 is one of them. #### 13", "12"),
]


@pytest.fixture(scope="module")
def compiled():
    """For each case, the patterns that grading it compiled."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CASES)], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_warm_process_compiles_no_pattern_of_the_libraries(case, compiled):
    """Each worker compiled a dozen at its first item that had no box, for 25 ms, and was slow for it. The few that depend
    on the answer itself, such as its variable, are short."""
    assert [pattern for pattern in compiled[case] if len(pattern) > 60] == []
