"""The program that watches a job's Ray, with a Ray whose own end takes for ever."""

import os
import subprocess
import sys

from r3_openrlhf.operations.cluster import ray_on_nodes
from tests.operations.cluster.conftest import REPOSITORY

RAY = """import atexit, threading
looks = iter([["node1"], ["node1", "node2"], ["node1"]])
atexit.register(threading.Event().wait)


def init(**options):
    pass


def nodes():
    return [{"Alive": True, "Labels": {"r3-node": name}} for name in next(looks)]
"""


def test_a_lost_node_is_told_before_ray_ends(tmp_path):
    (tmp_path / "ray.py").write_text(RAY)
    command = [sys.executable, "-m", ray_on_nodes.__name__, "HOST:1", "node1", "node2"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "Ray has 2 nodes at HOST:1: node1, node2",
        "Ray lost node2",
    ]
    assert done.returncode == 0, done.stderr
