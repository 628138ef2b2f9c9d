"""examples/scripts/slurm_ray.sh with real Ray; srun and scontrol are stand-ins that act on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parents[1]
SCONTROL = "#!/bin/bash\nprintf 'node1\\nnode2\\n'\n"
# Drops srun's own options and runs the command here. `hostname` answers loopback: two Rays share this machine.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
[[ "$1" == hostname ]] && { echo 127.0.0.1; exit; }
[[ "${RAY_HERE:-}" == broken ]] && { echo "no route to host" >&2; exit 1; }
[[ "${RAY_HERE:-}" == hanging ]] && exec tail -f /dev/null
exec "$@" --num-cpus=1 --num-gpus=0 --disable-usage-stats --object-store-memory=80000000
"""
JOB = "set -euo pipefail; source examples/scripts/slurm_ray.sh; start_ray; echo cluster of $(_living_nodes) at $RAY_ADDRESS"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def submit(tmp_path, **variables):
    """Run the job's script; returns the result and the processes that it left behind."""
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    marker = f"r3-test-{tmp_path.name}"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "RAY_PORT": str(free_port()),
        "R3_TEST_MARKER": marker,
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    result = subprocess.run(
        ["bash", "-c", JOB], env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=240
    )
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("R3_TEST_MARKER") == marker:
                left.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    _, alive = psutil.wait_procs(left, timeout=30)
    for process in alive:
        process.kill()
    return result, alive


@pytest.mark.slow
def test_the_cluster_is_complete_when_start_ray_returns_and_gone_when_the_job_ends(tmp_path):
    result, alive = submit(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "cluster of 2 at 127.0.0.1:" in result.stdout
    assert alive == []


def test_a_node_that_cannot_join_ends_the_job(tmp_path):
    result, alive = submit(tmp_path, RAY_HERE="broken")
    assert result.returncode == 1 and result.stdout == ""
    assert "no route to host" in result.stderr
    assert "Ray ended on a node before 1 nodes had joined; the lines above say why" in result.stderr
    assert alive == []


def test_a_node_that_is_late_ends_the_job_too(tmp_path):
    result, alive = submit(tmp_path, RAY_HERE="hanging", RAY_START_TIMEOUT_S="0")
    assert result.returncode == 1 and result.stdout == ""
    assert "0 of 1 nodes joined Ray at 127.0.0.1:" in result.stderr and "within 0 s" in result.stderr
    assert alive == []
