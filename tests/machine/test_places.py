"""File systems that a run cannot use are named by `r3 train --dry-run`, in a mount namespace of the test's own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.machine.places import mount_of
from r3_openrlhf.machine.ray_temporary import MAX_BYTES

R3 = f"{sys.executable} -c 'from r3_openrlhf.cli import main; main()'"
DRY_RUN = f"{R3} train experiment=cpu_smoke run_dir=$PWD/run --dry-run"
TMPFS = "mkdir -p {0} && mount -t tmpfs -o {1} tmpfs {0}"
CASES = {
    "no locks": (
        f"LD_PRELOAD=$PWD/no_locks.so {DRY_RUN}",
        "run_dir {place}/run: the file system at {mount} ({kind}) has no file locks",
    ),
    "no TMPDIR": (f"TMPDIR=/nowhere {DRY_RUN}", "TMPDIR is /nowhere, which is no directory"),
    "long RAY_TMPDIR": (
        f"RAY_TMPDIR=/{'t' * MAX_BYTES} {DRY_RUN}",
        f"leave room for {MAX_BYTES}",
    ),
    "full": (
        f"{TMPFS.format('/tmp', 'size=1m')} && {DRY_RUN}",
        "the file system at /tmp (tmpfs), of the temporary files",
    ),
    "small /dev/shm": (
        f"{TMPFS.format('/dev/shm', 'size=64m')} && {DRY_RUN}",
        "Warning: /dev/shm: 0.06 of 0.06 GiB free, and the run needs 1 GiB free; Ray and NCCL need it",
    ),
}


@pytest.fixture
def place():
    """A directory that is not below /tmp, which the cases cover."""
    home = Path(__file__).with_name(f"places_{os.getpid()}")
    home.mkdir()
    yield home
    shutil.rmtree(home)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_names_a_file_system_that_a_run_cannot_use(place, name):
    command, words = CASES[name]
    source = Path(__file__).with_name("no_locks.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", place / "no_locks.so", source], check=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TMPDIR", "RAY_TMPDIR", "RAY_ADDRESS")
    }
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    mount, kind = mount_of(place)
    assert (
        words.format(place=place, mount=mount, kind=kind) in said and "Traceback" not in said
    ), said
    assert done.returncode == (0 if "Warning" in words else 1)
