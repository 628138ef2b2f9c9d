"""What tests see of a process that has ended."""

import os
import subprocess
import sys

import psutil

from tests.processes import command_of


def test_one_that_has_ended_has_no_command():
    program = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdout.readline()  # one that is being started has no command yet
        process = psutil.Process(started.pid)
        assert command_of(process)[1:] == ["-c", program]
        started.kill()
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
        assert command_of(process) == []
        started.wait()
        assert command_of(process) == []
