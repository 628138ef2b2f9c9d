"""NVIDIA's GPUs without touching one: memory, by nvidia-smi, and settings that a run cannot use."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GiB = 2**30
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads both
A_CONTEXT = 1 * GiB  # what is used of a GPU may be as much without saying anything
TIME_LIMIT_S = 60
_GPUS = ("--query-gpu=index,uuid,memory.total,memory.used", "--format=csv,noheader,nounits")
_PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has memory of a GPU. used: bytes, 0 where the driver does not say."""

    pid: int
    name: str
    used: int


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of one GPU, and who has them. A process of another container is in no list."""

    index: int
    uuid: str
    total: int
    used: int
    holders: tuple[Holder, ...] = ()


def expandable_segments(environment: Mapping[str, str] = os.environ) -> str | None:
    """Say why the environment's setting of torch's allocator ends a run; None: it does not.

    No other process can open a weight in an expandable segment (pytorch/pytorch issue 165685),
    as an engine on the same GPU must: the run would die after its first step."""
    for name in ALLOCATOR_VARIABLES:
        options = re.split(r"[,\s]+", environment.get(name, "").lower())
        if "expandable_segments:true" in options:
            return (
                f"{name} is {environment[name]}, but weights go to the engine by CUDA IPC, which cannot open expandable segments; "
                f"take expandable_segments out of it (unset {name})"
            )
    return None


def gpus_of_this_machine(environment: Mapping[str, str] = os.environ) -> list[GpuMemory]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, by nvidia-smi; [] where it cannot be asked."""
    try:
        gpus, processes = (
            subprocess.run(
                ["nvidia-smi", *query], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=True
            ).stdout
            for query in (_GPUS, _PROCESSES)
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return visible(parsed(gpus, processes), environment.get("CUDA_VISIBLE_DEVICES"))


def parsed(gpus: str, processes: str) -> list[GpuMemory]:
    """nvidia-smi's two answers in MiB, as GpuMemory. "[N/A]" instead of a number counts as 0."""
    holders: dict[str, list[Holder]] = {}
    for line in filter(str.strip, processes.splitlines()):
        uuid, pid, used, name = (word.strip() for word in line.split(",", 3))
        holders.setdefault(uuid, []).append(Holder(int(pid), name, _mib(used)))
    results = []
    for line in filter(str.strip, gpus.splitlines()):
        index, uuid, total, used = (word.strip() for word in line.split(","))
        of_this = sorted(holders.get(uuid, []), key=lambda holder: -holder.used)
        results.append(GpuMemory(int(index), uuid, _mib(total), _mib(used), tuple(of_this)))
    return results


def _mib(number: str) -> int:
    return int(number) * 2**20 if number.isdecimal() else 0


def visible(gpus: Sequence[GpuMemory], setting: str | None) -> list[GpuMemory]:
    """Keep those that CUDA_VISIBLE_DEVICES names, by number or by the beginning of their name; all
    where it is not set. A part of a GPU (MIG) has no line of its own, so nothing is known of it."""
    if setting is None:
        return list(gpus)
    names = [name.strip() for name in setting.split(",") if name.strip()]
    return [
        gpu
        for name in names
        for gpu in gpus
        if name == str(gpu.index) or (name[:4] == "GPU-" and gpu.uuid.startswith(name))
    ]


def taken_memory(gpus: Sequence[GpuMemory], *, share: float) -> list[tuple[str, bool]]:
    """(a sentence, can no run start?) for each GPU of which other programs have memory. `share`: of
    a GPU, that an engine takes when it starts; vLLM refuses to start where less is free."""
    results = []
    for gpu in gpus:
        if gpu.used <= A_CONTEXT:
            continue
        free = gpu.total - gpu.used
        refuses = free < share * gpu.total
        demand = f", and an engine takes {share * gpu.total / GiB:.1f} of it (cluster.vllm_gpu_memory_utilization={share:g})"
        results.append(
            (
                f"GPU {gpu.index} has {free / GiB:.1f} of {gpu.total / GiB:.1f} GiB free{demand if refuses else ''}: {_held(gpu)}; "
                "or take other GPUs with CUDA_VISIBLE_DEVICES",
                refuses,
            )
        )
    return results


def _held(gpu: GpuMemory) -> str:
    if not gpu.holders:
        return "the rest is held by a process of another container or user; end it there"
    held = ", ".join(f"{holder.name} (pid {holder.pid}, {holder.used / GiB:.1f} GiB)" for holder in gpu.holders)
    pids = " ".join(str(holder.pid) for holder in gpu.holders)
    return f"the rest is held by {held}; if that is a run of yours which has ended, `kill {pids}`"
