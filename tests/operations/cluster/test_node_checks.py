"""What is wrong with which node, by hand."""

import os
from dataclasses import asdict
from typing import Any

import pytest

from r3_openrlhf.machine.gpus import gpus_of_this_machine
from r3_openrlhf.operations.cluster.node_checks import faults


def seen(kind: str = "H100", *, used_mb: int = 0, **others: Any) -> dict[str, Any]:
    gpu = {
        "index": "0",
        "uuid": "GPU-0",
        "name": kind,
        "total": 80 << 30,
        "used": used_mb << 20,
        "driver": "580",
    }
    return {
        "gpus": [gpu],
        "shared_memory_free": 2**30,
        "open_files": 65536,
        "cpus": 8,
        **others,
    }


def test_nothing_is_wrong_with_a_whole_node_and_on_cpus_nobody_looks_at_gpus():
    assert faults(seen(), gpus=1, device="cuda") == []
    assert (
        faults(seen(gpus=[]), gpus=4, device="cpu")
        == faults(seen(used_mb=2000), gpus=4, device="cpu")
        == []
    )


def test_every_fault_of_a_node_is_named():
    bad = seen(used_mb=2000, shared_memory_free=2**20, open_files=5)
    assert faults(seen(), gpus=2, device="cuda") == ["1 GPUs, 2 are needed"]
    assert faults(bad, gpus=2, device="cuda") == [
        "1 GPUs, 2 are needed",
        "2000 MB of GPU 0 are in use by somebody else",
        "/dev/shm has 1 MB free, 64 are needed",
        "ulimit -n is 5, 1024 are needed",
    ]


@pytest.fixture
def shared_node(tmp_path, monkeypatch):
    """An nvidia-smi that shows eight GPUs; another job uses the last four of them."""
    lines = [
        f"{n}, GPU-{n}abc, 81559, {40000 if n > 3 else 4}, NVIDIA H100, 580.65.06"
        for n in range(8)
    ]
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in --query-gpu=*) printf '%s\\n' {' '.join(map(repr, lines))};; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def look(**given: str) -> dict[str, Any]:
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        return seen(gpus=[asdict(gpu) for gpu in gpus_of_this_machine()])

    return look


@pytest.mark.parametrize(
    "given",
    [
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_JOB_GPUS": "4,5,6,7"},
        {"CUDA_VISIBLE_DEVICES": "GPU-0abc,GPU-1,GPU-2,GPU-3"},
        {"SLURM_STEP_GPUS": "0,1,2,3"},
        {"SLURM_JOB_GPUS": "0,1,2,3"},
        {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2,MIG-3,MIG-4"},
    ],
)
def test_the_gpus_of_another_job_are_no_fault_of_the_node(shared_node, given):
    assert faults(shared_node(**given), gpus=4, device="cuda") == []


def test_a_stranger_on_a_gpu_of_the_job_is_a_fault(shared_node):
    for devices, fault in (
        ("3,4", "40000 MB of GPU 4 are in use by somebody else"),
        ("", "0 GPUs, 2 are needed"),
        ("0,9,1", "1 GPUs, 2 are needed"),
    ):
        assert faults(shared_node(CUDA_VISIBLE_DEVICES=devices), gpus=2, device="cuda") == [
            fault
        ]
    assert "GPU 7 are in use" in " ".join(faults(shared_node(), gpus=8, device="cuda"))
