"""What a job may use of its machine, on made-up trees of cgroups and made-up answers of nvidia-smi."""

import os

import pytest

from r3_openrlhf.machine import allotted
from r3_openrlhf.machine.gpus import Gpu

V1 = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
V2 = "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 16 CPUs and 100 GiB whose process may run on 8 of them."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    def build(own, mount, files):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {100 * 2**20} kB\n")
        (tmp_path / "proc/self/cgroup").write_text(own)
        (tmp_path / "proc/self/mountinfo").write_text(f"{mount}\n")
        for path, content in files.items():
            file = tmp_path / "sys/fs/cgroup" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        return tmp_path

    return build


@pytest.mark.parametrize(
    ("own", "mount", "files", "quota"),
    [
        ("0::/job/step\n", V2, {"job/cpu.max": "250000 100000"}, 2.5),
        ("0::/job\n", V2, {"job/cpu.max": "max 100000"}, None),
        ("0::/a/b\n", V2, {"a/cpu.max": "300000 100000", "a/b/cpu.max": "900000 100000"}, 3.0),
        (
            "4:cpu,cpuacct:/job\n",
            V1,
            {"cpu/job/cpu.cfs_quota_us": "400000", "cpu/job/cpu.cfs_period_us": "100000"},
            4.0,
        ),
        (
            "4:cpu,cpuacct:/job\n",
            V1,
            {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_the_smallest_quota_of_all_parents_counts(machine, own, mount, files, quota):
    assert allotted.cpu_quota(machine(own, mount, files)) == quota


def test_fewer_cpus_than_the_machine_or_the_job_has(machine):
    root = machine("0::/job\n", V2, {"job/cpu.max": "250000 100000"})
    affinity, quota, step = allotted.cpu_notes(root, {"SLURM_CPUS_ON_NODE": "12"})
    assert affinity == "CPUs: 8 of the 16 of this machine (their affinity)"
    assert quota.startswith("CPUs: the time of 2.5 (") and quota.endswith("OMP_NUM_THREADS=2")
    assert step.startswith("CPUs: 8 for this step of the 12 that Slurm gave")


def test_a_whole_machine_says_nothing(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    root = machine("0::/job\n", V2, {"job/cpu.max": "max 100000"})
    assert allotted.cpu_notes(root, {"SLURM_CPUS_ON_NODE": "16"}) == []
    assert allotted.memory_notes(root) == []


def test_less_memory_than_the_machine_has(machine):
    root = machine("0::/job\n", V2, {"job/memory.max": str(24 * 2**30)})
    (note,) = allotted.memory_notes(root)
    assert note.startswith("memory: 24.0 GiB, ") and note.endswith("this machine has 100.0")


def test_gpus_that_stay_idle(monkeypatch):
    every = [Gpu(index=str(n), uuid=f"GPU-{n}", total=80 << 30, used=0) for n in range(8)]
    monkeypatch.setattr(allotted, "gpus_of_this_machine", lambda _: every)
    assert allotted.gpu_notes(8, {}) == []
    assert allotted.gpu_notes(4, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}) == [
        "GPUs: 7 of the 8 of this machine (CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6)",
        "GPUs: the run takes 4 of 7; the others stay idle",
    ]
