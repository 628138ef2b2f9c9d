"""What a fork of the nursery need not learn again."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, re, sys
from r3_openrlhf.grading.answers.request import Item
from r3_openrlhf.grading.answers.tasks import grade_item
from r3_openrlhf.grading.processes.worker import warm_up

warm_up()
compile_it, compiled = re._compiler.compile, []
re._compiler.compile = lambda pattern, flags=0: compiled.append(str(pattern)) or compile_it(pattern, flags)
response, reference = json.loads(sys.argv[1])
item = Item("math", response, (reference,), False)
grade_item(item, may_take_long=False) or grade_item(item, may_take_long=True)
print(json.dumps(compiled))
"""


@pytest.mark.parametrize(
    "response, reference",
    [
        (r"First $a=3$, then \[b = 4.\] So the length is $\boxed{5}$ metres.", "5"),
        (r"so $\boxed{(a+b)^2}$.", "$a^2+2ab+b^2$"),
        ("I think that the final answer is $12$.", "12"),
        ("Nothing comes to mind", "12"),
        ("12 is one of them. #### 13", "12"),
    ],
)
def test_a_warm_process_compiles_no_pattern_of_the_libraries(response, reference):
    """Each worker compiled a dozen at its first item that had no box, for 25 ms, and was slow for it. The few that depend
    on the answer itself, such as its variable, are short."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([response, reference])], capture_output=True, text=True, check=True
    )
    assert [pattern for pattern in json.loads(run.stdout) if len(pattern) > 60] == []
