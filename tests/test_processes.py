"""What tests see of a process that has ended."""

import os
import subprocess
import sys

import psutil

from tests.processes import command_of


def test_one_that_has_ended_has_no_command():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        process = psutil.Process(started.pid)
        assert command_of(process)[1:] == ["-c", "input()"]
        started.kill()
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
        assert command_of(process) == []
        started.wait()
        assert command_of(process) == []
