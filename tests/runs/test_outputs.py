"""What is written where while standard output and error lead elsewhere: a real process with real pipes."""

import os
import subprocess
import sys

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
