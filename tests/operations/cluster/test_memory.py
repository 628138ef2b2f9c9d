"""Memory and cores of a job, on a real Slurm that kills what uses more memory than it asked for. Its default is that of one core."""

import sys

import pytest

from tests.operations.cluster.conftest import Slurm, log_of, running, template_in

LIMITS = """
GresTypes=gpu
DefMemPerCPU=600
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
"""
NVIDIA_SMI = """#!/bin/sh
case $1 in --query-gpu=*) echo '0, GPU-0, 81559, 4, NVIDIA H100, 580.65.06';; esac
"""
# what a start takes while a model loads: 2 GiB that are written, for longer than Slurm waits between two looks
LOADS = f'{sys.executable} -c \'import time; held = b"x" * (2 << 30); time.sleep(4); print("loaded", len(held))\''


class LimitedSlurm(Slurm):
    def configuration(self, user, ports):
        for number in range(8):
            (self.folder / f"gpu{number}").symlink_to("/dev/null")  # a device, as Slurm wants
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-7]\n")
        text = super().configuration(user, ports).replace("CR_Core\n", "CR_Core_Memory\n")
        return (
            text.replace("CPUs=8 RealMemory=8000", "CPUs=64 RealMemory=400000 Gres=gpu:8")
            + LIMITS
        )


@pytest.fixture(scope="module")
def limited():
    with running(LimitedSlurm, "r3m") as cluster:
        yield cluster


@pytest.fixture
def on_gpus(tmp_path):
    """A prologue in whose PATH an nvidia-smi shows a GPU."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "prologue.sh").write_text(f"export PATH={tmp_path}:$PATH\n")
    return ("cluster.device=cuda", f"--prologue={tmp_path / 'prologue.sh'}")


@pytest.mark.parametrize(
    ("arguments", "memory", "cores"),
    [
        ((), "188G", "34"),  # 169 GiB of the plan are nine tenths of it; 4 x 8 + 2
        (("--exclusive",), "0", "1"),  # of the job's tasks: all of the node is its own
        (("--mem=200G", "--cpus-per-task=20"), "200G", "20"),
        (("--sbatch=--mem-per-gpu=20G", "--sbatch=--cpus-per-gpu=3"), None, None),
    ],
)
def test_a_job_on_gpus_asks_for_memory_and_cores(limited, tmp_path, arguments, memory, cores):
    settings = [
        "experiment=r3_7b_deepscaler_multinode",
        f"run_dir={tmp_path / 'run'}",
        "--nodes=2",
        "--sbatch=--hold",
    ]
    number = limited.call("r3", "submit", "slurm", *settings, *arguments)
    job = limited.job(number)
    limited.call("scancel", number)
    assert job.get("MinMemoryNode") == memory, job
    assert cores is None or job["CPUs/Task"] == cores


def test_models_are_loaded_within_what_the_plan_asked_for(limited, run_dir, tmp_path, on_gpus):
    number = limited.submit(run_dir, *on_gpus, template=template_in(tmp_path, LOADS))
    ended = limited.wait(number, "COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED")
    assert ended["JobState"] == "COMPLETED" and "loaded 2147483648" in log_of(run_dir, number)
