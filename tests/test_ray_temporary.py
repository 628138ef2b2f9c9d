"""Contract with the installed Ray: where it keeps its sockets, and how long their paths are."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from r3_openrlhf.ray_temporary import MAX_BYTES, bytes_of, ray_temporary  # noqa: E402

pytestmark = pytest.mark.stack
MAX_PID_DIGITS = 7  # /proc/sys/kernel/pid_max is 4194304 at most
START = """
import json, os, ray
from r3_openrlhf.ray_start import patient_raylet
with patient_raylet():
    ray.init(address="local", include_dashboard=False, num_cpus=1, log_to_driver=False)
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
