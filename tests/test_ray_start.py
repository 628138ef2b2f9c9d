"""Contract with the installed Ray: a node whose agents are slow starts all the same, and works when they are there."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.stack
REPOSITORY = Path(__file__).parents[1]
# An agent of a raylet that imports for as long as nobody opens the gate.
SLOW_AGENTS = """
import os, sys
if any(word.endswith(("/dashboard/agent.py", "/runtime_env/agent/main.py")) for word in sys.orig_argv):
    open(os.environ["R3_TEST_GATE"]).close()
"""
OPEN = "gate = open(os.environ['R3_TEST_GATE'], 'w')\n"
TASK = """
import select
assert ray.get(ray.remote(lambda: os.environ["R3_TEST_A"]).options(runtime_env={"env_vars": {"R3_TEST_A": "b"}}).remote()) == "b"
class Starter:
    def start(self):
        import subprocess
        return os.getpid(), subprocess.Popen(["sleep", "300"]).pid
starter = ray.remote(Starter).remote()
actor, child = ray.get(starter.start.remote())
ended = os.pidfd_open(child)
os.kill(actor, 9)
assert select.select([ended], [], [], 600)[0], "what a killed actor has started goes on"
ray.shutdown()
print("as expected")
"""
OWN_RAY = """
import os, sys, ray
from ray._private import utils
from unittest.mock import patch
from r3_openrlhf.machine.ray_start import patient_raylet
missing = ImportError("none") if sys.argv[1] == "no dashboard" else None
with patch.multiple(utils, get_dashboard_dependency_error=lambda: missing), patient_raylet(common_port=52365):
    ray.init(address="local", include_dashboard=False, num_cpus=1, object_store_memory=80 * 2**20, log_to_driver=False)
ports = [ray.nodes()[0][name] for name in ("MetricsAgentPort", "MetricsExportPort", "DashboardAgentListenPort", "RuntimeEnvAgentPort")
         if name in ray.nodes()[0]]
assert 52365 not in ports, ports
"""
IMPATIENT = """
import os, sys, ray
from r3_openrlhf.machine.ray_start import patient_raylet
with patient_raylet():
    ray.init(address="local", include_dashboard=False, num_cpus=1, object_store_memory=80 * 2**20, log_to_driver=False)
try:
    ray.get(ray.remote(lambda: 1).options(runtime_env={"env_vars": {"R3_TEST_A": "b"}}).remote())
except ray.exceptions.LocalRayletDiedError:
    print("as expected")
"""
JOINED = """
import os, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
"""


@pytest.fixture
def slow_agents():
    """Environment of a Ray with such agents, and its directory, of a short name."""
    with tempfile.TemporaryDirectory(
        prefix="r3g", dir="/tmp", ignore_cleanup_errors=True
    ) as place:
        gate = Path(place) / "gate"
        os.mkfifo(gate)
        (Path(place) / "sitecustomize.py").write_text(SLOW_AGENTS)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "SLURM"))
        }
        environment |= {
            "PYTHONPATH": f"{place}:{REPOSITORY}",
            "R3_TEST_GATE": str(gate),
            "RAY_TMPDIR": place,
        }
        yield environment | {"RAY_USAGE_STATS_ENABLED": "0"}
        os.close(os.open(gate, os.O_RDWR))  # whoever still waits ends, as its raylet has


def run(code, *arguments, environment):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        cwd="/",
    )
    assert done.stdout.endswith("as expected\n"), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", ["dashboard", "no dashboard"])
def test_a_ray_of_a_run_waits_for_no_agent(dashboard, slow_agents):
    """Without ports, or without any one of them, its raylet aborts after 15 s, and ray.init gives up after 30 s."""
    run(OWN_RAY + OPEN + TASK, dashboard, environment=slow_agents)


@pytest.mark.slow
def test_a_raylet_reads_how_long_it_waits_for_the_agent_of_environments(slow_agents):
    """And a user's own value counts. Ray ignores a name that it does not know: of a second it dies."""
    run(IMPATIENT, environment=slow_agents | {"RAY_agent_register_timeout_ms": "1000"})


@pytest.mark.slow
def test_a_node_of_a_job_waits_for_no_agent(slow_agents):
    from r3_openrlhf.machine.ports import free_port
    from r3_openrlhf.operations.cluster.ray_on_nodes import node_address, start_command

    port, place = free_port(), Path(slow_agents["RAY_TMPDIR"])
    command = start_command(
        address=node_address(),
        port=port,
        head="",
        node="a",
        temp_dir=place,
        gpus=0,
        ray_args="--num-cpus=1 --object-store-memory=80000000",
    )
    head = subprocess.Popen(
        command,
        env=slow_agents,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    )
    said = []
    try:
        for line in head.stdout:
            said.append(line)
            if "Ray runtime started" in line:
                break
        else:
            raise AssertionError("".join(said))
        run(JOINED + OPEN + TASK, f"{node_address()}:{port}", environment=slow_agents)
    finally:
        head.terminate()
        head.communicate(timeout=300)
