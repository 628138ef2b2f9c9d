"""Is a node fit for the job? What an agent sees on its node, and what is wrong with what was seen on all of them."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from typing import Any

from r3_openrlhf.types import Device

MAX_CLOCK_GAP_S = 60.0
MIN_SHARED_MEMORY = 64 * 2**20  # bytes; Ray's object store and NCCL live there
MIN_OPEN_FILES = 1024
STRANGERS_MB = 1024  # memory of a GPU in use before the job has started anything
QUERY = "index,name,memory.total,memory.used,driver_version"


def look() -> dict[str, Any]:
    """What is on this node now. Numbers only; `faults` judges them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # Ray opens a file per worker and connection
    return {
        "gpus": look_at_gpus(),
        "shared_memory_free": shutil.disk_usage("/dev/shm").free,
        "open_files": hard,
        "cpus": len(os.sched_getaffinity(0)),
        "clock_gap_s": 0.0,
    }


def look_at_gpus() -> list[dict[str, Any]] | None:
    """One entry per GPU that nvidia-smi shows; None: there is no nvidia-smi."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        said = subprocess.run(
            [command, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []  # it is there and fails: no GPU can be used
    found = []
    for line in said.stdout.splitlines():
        index, name, total, used, driver = (part.strip() for part in line.split(","))
        found.append({"index": index, "name": name, "total_mb": int(total), "used_mb": int(used), "driver": driver})
    return found


def faults(looks: dict[str, dict[str, Any]], *, gpus: int | None, device: str) -> dict[str, str]:
    """Node -> what is wrong with it. looks: node -> what `look` returned there, clock_gap_s against the head."""
    cuda = device == Device.CUDA
    odd = _odd_ones(looks) if cuda else {}
    found = {
        node: [*(_gpu_faults(seen, gpus) if cuda else []), *_machine_faults(seen), *odd.get(node, [])]
        for node, seen in looks.items()
    }
    return {node: ", ".join(reasons) for node, reasons in found.items() if reasons}


def _gpu_faults(seen: dict[str, Any], gpus: int | None) -> list[str]:
    here = seen["gpus"] or []
    found = [f"{len(here)} GPUs, {gpus} are needed"] if gpus is not None and len(here) < gpus else []
    return found + [
        f"{gpu['used_mb']} MB of GPU {gpu['index']} are in use by somebody else"
        for gpu in here
        if gpu["used_mb"] > STRANGERS_MB
    ]


def _machine_faults(seen: dict[str, Any]) -> list[str]:
    found = []
    if seen["shared_memory_free"] < MIN_SHARED_MEMORY:
        found.append(f"/dev/shm has {seen['shared_memory_free'] >> 20} MB free, {MIN_SHARED_MEMORY >> 20} are needed")
    if seen["open_files"] < MIN_OPEN_FILES:
        found.append(f"ulimit -n is {seen['open_files']}, {MIN_OPEN_FILES} are needed")
    if abs(seen["clock_gap_s"]) > MAX_CLOCK_GAP_S:
        found.append(f"its clock differs from the first node's by {seen['clock_gap_s']:.0f} s")
    return found


def _odd_ones(looks: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Nodes whose GPUs or driver are not those of most nodes; of two kinds as frequent, those of the first node count."""
    kinds = {node: (gpu["name"], gpu["driver"]) for node, seen in looks.items() for gpu in (seen["gpus"] or [])[:1]}
    usual = max(kinds.values(), key=list(kinds.values()).count, default=("", ""))
    return {
        node: [f"{kind[0]} with driver {kind[1]}, the others have {usual[0]} with driver {usual[1]}"]
        for node, kind in kinds.items()
        if kind != usual
    }


def describe(seen: dict[str, Any]) -> str:
    """One line about a node, for the log. seen: what `look` returned there."""
    gpus = "no nvidia-smi" if seen["gpus"] is None else f"{len(seen['gpus'])} GPUs"
    if seen["gpus"]:
        gpus += f" ({seen['gpus'][0]['name']}, driver {seen['gpus'][0]['driver']})"
    return (
        f"{gpus}, {seen['cpus']} CPUs, {seen['shared_memory_free'] >> 20} MB free in /dev/shm, "
        f"{seen['open_files']} open files, clock {seen['clock_gap_s']:+.1f} s"
    )
