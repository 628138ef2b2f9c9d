"""Who may train in a run directory, between real processes."""

import os
import subprocess
import sys

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory

HOLD = """
import sys
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory
with lock.held(RunDirectory(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holding(tmp_path):
    """Starts a process that takes the run directory, and keeps it until its standard input ends."""
    started = []

    def start(**environment):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, tmp_path / "run"],
            stdin=subprocess.PIPE,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_until_the_first_has_ended(holding, tmp_path):
    run, first = RunDirectory(tmp_path / "run"), holding()
    assert first.stdout.readline() == "held\n"
    with pytest.raises(
        lock.RunBusy,
        match=rf"run is being written by process {first.pid} on .*; stop that run first",
    ):
        lock.acquire(run)
    first.kill()
    first.wait()
    lock.acquire(run).release()
    # the lock's file is no reason to refuse it
    run.check(load_config("cpu_smoke", [f"run_dir={run.path}"]))


def test_the_command_of_an_agent_trains_under_the_agents_lease(holding, tmp_path):
    run = RunDirectory(tmp_path / "run")
    lease = lock.acquire(run)
    stranger, command = holding(), holding(**{lock.TOKEN: lease.token})
    assert "RunBusy" in stranger.communicate()[1]
    assert command.stdout.readline() == "held\n"
    command.communicate()
    assert lease.is_held()  # still the agent's
    lease.release()
