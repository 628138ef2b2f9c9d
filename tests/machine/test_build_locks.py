"""Locks of builds, with torch's own lock in another process."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from r3_openrlhf.machine.build_locks import is_stale

HOLDER = """
import sys
from torch.utils.file_baton import FileBaton
assert FileBaton(sys.argv[1]).try_acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path):
    directory = tmp_path / "py311_cpu" / "cpu_adam"
    directory.mkdir(parents=True)
    return directory / "lock"


def start(*command, **settings):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *command], **pipes, **settings)


def test_a_lock_is_stale_when_its_process_was_killed(lock):
    with start("-c", HOLDER, str(lock)) as builder:
        assert builder.stdout.readline() == "held\n"
        assert not is_stale(lock)
        builder.kill()
    assert is_stale(lock)  # a run would now wait for it for ever


def test_a_compiler_that_outlives_its_builder_still_works_there(lock):
    lock.touch()
    with start("-c", "print('works', flush=True); input()", cwd=lock.parent) as compiler:
        assert compiler.stdout.readline() == "works\n"
        assert not is_stale(lock)
        compiler.stdin.close()
    assert is_stale(lock)


def test_on_a_shared_file_system_a_young_lock_may_be_another_machines(
    lock, tmp_path, monkeypatch
):
    lock.touch()
    mounts = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert not is_stale(lock)
    hour_ago = time.time() - 3600
    os.utime(lock, (hour_ago, hour_ago))
    assert is_stale(lock)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a namespace of process ids")
def test_a_container_does_not_take_the_lock_of_a_build_outside_of_it(lock):
    look = "import sys; from pathlib import Path; from r3_openrlhf.machine.build_locks import *; print(is_stale(Path(sys.argv[1])))"
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", look, lock]
    with start("-c", HOLDER, str(lock)) as builder:
        assert builder.stdout.readline() == "held\n"
        assert (
            subprocess.run(inside, capture_output=True, text=True, check=True).stdout
            == "False\n"
        )
        builder.kill()


BUILDER = """
import pathlib, sys
from r3_openrlhf.machine.build_locks import alone
with alone(pathlib.Path(sys.argv[1]), lambda lock: print("waits for", lock.name, flush=True)):
    print("builds", flush=True)
    input()
"""


@pytest.mark.parametrize("first", [HOLDER, BUILDER], ids=["another program", "a run"])
def test_a_builder_that_is_killed_while_a_run_waits_holds_it_no_longer(lock, first):
    """Nobody looks at the run meanwhile: before, it waited for ever."""
    with start("-c", first, str(lock if first == HOLDER else lock.parent)) as builder:
        assert builder.stdout.readline() in ("held\n", "builds\n")
        with start("-c", BUILDER, str(lock.parent)) as run:
            name = "lock" if first == HOLDER else "cpu_adam.r3-lock"
            assert run.stdout.readline() == f"waits for {name}\n"
            builder.kill()
            assert run.stdout.readline() == "builds\n"
            run.communicate("\n")
            assert run.returncode == 0 and not lock.exists()
