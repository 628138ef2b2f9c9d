"""A run joins a Ray whose nodes have fewer CPUs than GPUs: upstream asks for one of each per rank."""

import json
import subprocess
import sys

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.stack.ray_cluster import check_devices
from tests.stack.training import ROOT, Run

pytestmark = pytest.mark.stack

# somebody's Ray on the loopback, until its standard input ends
HEAD = """
import json, ray, sys
ray.init(num_cpus=2, num_gpus=4, include_dashboard=False, object_store_memory=10**8, _node_ip_address="127.0.0.1")
print(json.dumps(ray.get_runtime_context().gcs_address), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def address():
    command = [sys.executable, "-c", HEAD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as head:
        yield json.loads(head.stdout.readline())
        head.stdin.close()


@pytest.mark.slow
def test_a_run_does_not_wait_for_ever_for_cpus_next_to_its_gpus(tmp_path, address):
    settings = ("cluster.gpus_per_node=4", "cluster.placement_minutes=0.05")
    environment = {"RAY_ADDRESS": address}
    with Run(tmp_path / "run", *settings, environment=environment) as run:
        done = run.finish()
    assert done.returncode == 1, run.story(done.stderr)
    warned = "the run needs 4 CPUs, one next to each GPU, and Ray has 2 there now; it waits"
    assert warned in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "Ray had no room for 4 GPUs with a CPU each within 0.05 minutes; 4 GPUs" in last
    assert "raise cluster.placement_minutes" in last and "Traceback" not in done.stderr


def node(**resources):
    return {"Alive": True, "Resources": resources}


def test_cpus_are_counted_on_the_nodes_of_the_gpus():
    config = load_config("cpu_smoke", ["run_dir=unused", "cluster.gpus_per_node=4"])
    head = node(CPU=64.0)
    (sentence,) = check_devices([head, node(GPU=4.0, CPU=2.0)], config, "cuda")
    assert sentence.startswith(
        "the run needs 4 CPUs, one next to each GPU, and Ray has 2 there"
    )
    assert check_devices([head, node(GPU=4.0, CPU=4.0)], config, "cuda") == []
    with pytest.raises(
        ConfigError, match=r"Ray has 2 .*; give .* or use cluster.gpus_per_node=2$"
    ):
        check_devices([node(GPU=4.0, CPU=2.0)], config, "cuda", own=True)
