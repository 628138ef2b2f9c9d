"""Contract with the installed Ray: where it keeps its sockets, and how long their paths are."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from r3_openrlhf.machine.ray_temporary import MAX_BYTES, bytes_of, private_directory, ray_temporary, sweep  # noqa: E402

pytestmark = pytest.mark.stack
MAX_PID_DIGITS = 7  # /proc/sys/kernel/pid_max is 4194304 at most
START = """
import json, os, ray
from r3_openrlhf.machine.ray_start import patient_raylet
from r3_openrlhf.machine.ray_temporary import private_directory, ray_temporary
with private_directory(ray_temporary()) as directory:
    with patient_raylet():
        ray.init(address="local", include_dashboard=False, num_cpus=1, log_to_driver=False, _temp_dir=str(directory))
    print(json.dumps([ray._private.worker._global_node.plasma_store_socket_name, os.getpid()]))
    ray.shutdown()
"""


def test_it_is_the_directory_that_ray_chooses(monkeypatch):
    utils = pytest.importorskip("ray._common.utils")
    for variables in ({}, {"TMPDIR": "/a"}, {"RAY_TMPDIR": "/b"}, {"TMPDIR": "/a", "RAY_TMPDIR": "/b"}):
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert str(ray_temporary()) == utils.get_default_system_temp_dir()


@pytest.mark.slow
def test_the_longest_path_that_is_let_through_is_the_longest_that_ray_takes():
    # ray.shutdown does not wait for what it kills: an agent may write its log while the directory is removed
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:
        path = Path(short) / ("t" * (MAX_BYTES - bytes_of(Path(short)) - 1))
        path.mkdir()
        environment = {**os.environ, "RAY_TMPDIR": str(path)}
        done = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        socket, pid = json.loads(done.stdout.splitlines()[-1])
    assert bytes_of(path) == MAX_BYTES
    assert bytes_of(socket) + MAX_PID_DIGITS - len(str(pid)) == 107


def test_a_private_directory_is_open_to_its_user_alone_and_goes_with_its_block(tmp_path):
    with private_directory(tmp_path / "new") as first, private_directory(tmp_path / "new") as second:
        assert first != second and first.is_dir()
        assert first.parent.stat().st_mode & 0o777 == 0o700
        assert sweep(tmp_path / "new") == []
    assert list((tmp_path / "new").iterdir()) == []


def test_what_a_killed_process_has_left_is_swept(tmp_path):
    program = (
        "import os, pathlib, sys\n"
        "from r3_openrlhf.machine.ray_temporary import private_directory\n"
        "with private_directory(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=Path(__file__).parents[1])
    (left,) = tmp_path.iterdir()
    assert sweep(tmp_path) == [str(left)] and not left.exists()
