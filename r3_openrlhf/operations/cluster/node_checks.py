"""Checks of nodes: what an agent sees on its node, and what is wrong on any of them."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from r3_openrlhf.config.words import Device

MIN_SHARED_MEMORY = 64 * 2**20  # bytes; Ray's object store and NCCL live there
MIN_OPEN_FILES = 1024
STRANGERS_MB = 1024  # memory of a GPU in use before the job has started anything
QUERY = "index,uuid,name,memory.total,memory.used,driver_version"


def look() -> dict[str, Any]:
    """Return what is on this node now. Numbers only; `faults` judges them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # Ray opens many
    return {
        "gpus": look_at_gpus(),
        "shared_memory_free": shutil.disk_usage("/dev/shm").free,
        "open_files": hard,
        "cpus": len(os.sched_getaffinity(0)),
    }


def look_at_gpus(environment: Mapping[str, str] = os.environ) -> list[dict[str, Any]] | None:
    """One entry per GPU of this job, of those that nvidia-smi shows; None: there is no nvidia-smi.

    Where Slurm hides no devices, nvidia-smi shows other jobs' GPUs. environment: of a task."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []  # it is there and fails: no GPU can be used
    gpus = []
    for row in answer.splitlines():
        index, uuid, name, total, used, driver = (cell.strip() for cell in row.split(","))
        sizes = {"total_mb": int(total), "used_mb": int(used)}
        gpus.append({"index": index, "uuid": uuid, "name": name, **sizes, "driver": driver})
    return _of_this_job(gpus, environment)


def _of_this_job(gpus: list[dict[str, Any]], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the devices of CUDA_VISIBLE_DEVICES, by number or (begin of a) UUID, up to a missing one
    (CUDA C++ Programming Guide). Without it, SLURM_STEP_GPUS or SLURM_JOB_GPUS have node numbers;
    where Slurm hides others nvidia-smi counts from 0: all it shows are the job's unless there are
    more. Of a MIG device only its name is known: it stands for a whole one that no one shares."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        numbers = (environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or "").split(",")
        chosen = [gpu for gpu in gpus if gpu["index"] in numbers]
        return chosen if len(gpus) > len(numbers) and chosen else gpus
    driver = gpus[0]["driver"] if gpus else ""
    mig = {"name": "MIG", "total_mb": None, "used_mb": None, "driver": driver}
    chosen = []
    for name in filter(None, (part.strip() for part in visible.split(","))):
        named = [gpu for gpu in gpus if gpu["index"] == name or gpu["uuid"].startswith(name)]
        named = [{**mig, "index": name, "uuid": name}] if name.startswith("MIG-") else named
        if len(named) != 1:
            break
        chosen += named
    return chosen


def faults(looks: dict[str, dict[str, Any]], *, gpus: int | None, device: str) -> dict[str, str]:
    """Node -> what is wrong with it. looks: node -> what `look` returned there."""
    cuda = device == Device.CUDA
    reasons = {
        node: [*(_gpu_faults(seen, gpus) if cuda else []), *_machine_faults(seen)] for node, seen in looks.items()
    }
    return {node: ", ".join(each) for node, each in reasons.items() if each}


def _gpu_faults(seen: dict[str, Any], gpus: int | None) -> list[str]:
    here = seen["gpus"] or []
    reasons = [f"{len(here)} GPUs, {gpus} are needed"] if gpus is not None and len(here) < gpus else []
    return reasons + [
        f"{gpu['used_mb']} MB of GPU {gpu['index']} are in use by somebody else"
        for gpu in here
        if gpu["used_mb"] is not None and gpu["used_mb"] > STRANGERS_MB
    ]


def _machine_faults(seen: dict[str, Any]) -> list[str]:
    reasons = []
    if seen["shared_memory_free"] < MIN_SHARED_MEMORY:
        reasons.append(
            f"/dev/shm has {seen['shared_memory_free'] >> 20} MB free, {MIN_SHARED_MEMORY >> 20} are needed"
        )
    if seen["open_files"] < MIN_OPEN_FILES:
        reasons.append(f"ulimit -n is {seen['open_files']}, {MIN_OPEN_FILES} are needed")
    return reasons


def describe(looks: dict[str, dict[str, Any]], *, gpus: int | None, device: str) -> list[str]:
    """A line about each node, for the log, and a warning about one with few CPUs: each GPU has an
    engine and a rank that want a core, and Ray wants two."""
    sentences = []
    for node, seen in sorted(looks.items()):
        here = "no nvidia-smi" if seen["gpus"] is None else f"{len(seen['gpus'])} GPUs"
        if seen["gpus"]:
            here += f" ({seen['gpus'][0]['name']}, driver {seen['gpus'][0]['driver']})"
        shared = f"{seen['shared_memory_free'] >> 20} MB free in /dev/shm"
        sentences.append(f"{node}: {here}, {seen['cpus']} CPUs, {shared}, {seen['open_files']} open files")
        if device == Device.CUDA and gpus is not None and seen["cpus"] < gpus + 2:
            sentences.append(
                f"Warning: {node} has {seen['cpus']} CPUs for {gpus} GPUs, and wants {gpus + 2} or more; use --cpus-per-task"
            )
    return sentences
