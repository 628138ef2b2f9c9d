"""Locks of builds, with torch's own lock in another process."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from r3_openrlhf.machine.build_locks import build_root, locks, remove_stale, stale

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


def test_a_lock_is_stale_when_its_process_was_killed(lock, tmp_path):
    with start("-c", HOLDER, str(lock)) as builder:
        assert builder.stdout.readline() == "held\n"
        assert locks(tmp_path) == [lock]
        assert stale(tmp_path) == ([], []) and remove_stale(tmp_path) == [] and lock.exists()
        builder.kill()
    assert lock.exists()  # a run would now wait for it for ever
    assert stale(tmp_path) == ([lock], [])
    (sentence,) = remove_stale(tmp_path)
    assert sentence.startswith(f"removed {lock}: ") and not lock.exists()


def test_a_compiler_that_outlives_its_builder_still_works_there(lock, tmp_path):
    lock.touch()
    with start("-c", "print('works', flush=True); input()", cwd=lock.parent) as compiler:
        assert compiler.stdout.readline() == "works\n"
        assert stale(tmp_path) == ([], [])
        compiler.stdin.close()
    assert stale(tmp_path) == ([lock], [])


def test_on_a_shared_file_system_a_young_lock_may_be_another_machines(lock, tmp_path, monkeypatch):
    lock.touch()
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    (sentence,) = remove_stale(tmp_path)
    assert lock.exists() and sentence.endswith("if none does, remove it")
    hour_ago = time.time() - 3600
    os.utime(lock, (hour_ago, hour_ago))
    remove_stale(tmp_path)
    assert not lock.exists()
    assert remove_stale(tmp_path) == remove_stale(tmp_path / "nowhere") == []  # an empty cache, and none


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


@pytest.mark.parametrize("moved", ["TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", None])
def test_it_is_where_torch_builds(moved, tmp_path, monkeypatch):
    """Contract with torch/utils/cpp_extension.py."""
    from torch.utils.cpp_extension import _get_build_directory

    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if moved:
        monkeypatch.setenv(moved, str(tmp_path / "moved"))
    directory = _get_build_directory("some_operator", verbose=False)
    with open(os.path.join(directory, "lock"), "w"):
        pass
    assert [str(lock.parent) for lock in locks(build_root())] == [directory]
