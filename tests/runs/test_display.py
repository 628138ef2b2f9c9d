"""Time to go, worked by hand; and what is written where while standard output and error lead elsewhere: a real process with pipes."""

import os
import subprocess
import sys

import pytest

from r3_openrlhf.runs.display import duration, to_go_s

PROGRAM = """
import subprocess, sys
from r3_openrlhf.runs.display import Outputs

sys.stdout.write("before ")  # Python still holds it when the file takes over
outputs = Outputs()
with open(sys.argv[1], "wb") as log:
    outputs.send_to(log.fileno())
sys.stdout.write("inside ")
sys.stdout.flush()
subprocess.run(["sh", "-c", "printf 'child '; printf 'error ' >&2"], check=True)
outputs.terminal.write("terminal ")
outputs.terminal.flush()
sys.stdout.write("last ")
outputs.restore()
sys.stdout.write("after")
"""


def test_both_lead_to_the_file_and_back(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "log")]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, env=buffered, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("before after", "terminal ")
    assert (tmp_path / "log").read_text() == "inside child error last "


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (2 * 86400, "2.0 days"),
    ],
)
def test_a_duration_in_words(seconds, text):
    assert duration(seconds) == text


def line(step, seconds, **more):
    return {"step": step, "timing/step_total": seconds, **more}


def test_the_steps_that_are_left_take_the_median():
    lines = [line(1, 100.0), line(2, 10.0), line(3, 12.0)]
    assert to_go_s(lines, num_steps=8) == 5 * 12.0
    assert to_go_s(lines, num_steps=3) == 0.0
    assert to_go_s(lines, num_steps=None) is None
    assert to_go_s([], num_steps=8) is None
    assert to_go_s([{"step": 1, "timing/step_total": None}], num_steps=8) is None
    assert to_go_s([{"step": 1, "time/step_s": 2.0}], num_steps=8) == 14.0  # a run of the lab


def test_tokens_may_end_a_run_before_its_steps_do():
    lines = [line(1, 10.0, generated_tokens=100.0, generated_tokens_total=100.0)]
    assert to_go_s(lines, num_steps=100, max_tokens=300) == 20.0
    assert to_go_s(lines, num_steps=2, max_tokens=300) == 10.0
    assert to_go_s(lines, num_steps=None, max_tokens=50) == 0.0
