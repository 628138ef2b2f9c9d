"""Checks of nodes: what an agent sees on its node, and what is wrong on any of them."""

import os
import resource
import shutil
from dataclasses import asdict
from typing import Any

from r3_openrlhf.config.words import Device
from r3_openrlhf.machine.gpus import A_CONTEXT, GiB, gpus_of_this_machine
from r3_openrlhf.machine.memory import total_memory

MIN_SHARED_MEMORY = 64 * 2**20  # bytes; Ray's object store and NCCL live there
MIN_OPEN_FILES = 1024


def look(*, gpus: int | None, device: str) -> dict[str, Any]:
    """Return what is on this node now, and what is wrong with it (`faults`). gpus: that the run needs here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # Ray opens many
    seen = {
        "gpus": [asdict(gpu) for gpu in gpus_of_this_machine()],
        "shared_memory_free": shutil.disk_usage("/dev/shm").free,
        "open_files": hard,
        "cpus": len(os.sched_getaffinity(0)),
        "memory": total_memory() / GiB,
    }
    return {**seen, "faults": faults(seen, gpus=gpus, device=device)}


def faults(seen: dict[str, Any], *, gpus: int | None, device: str) -> list[str]:
    """Return what is wrong with a node of this look."""
    here, shared, files = seen["gpus"], seen["shared_memory_free"], seen["open_files"]
    reasons = []
    if device == Device.CUDA:
        if gpus is not None and len(here) < gpus:
            reasons.append(f"{len(here)} GPUs, {gpus} are needed")
        taken = [gpu for gpu in here if gpu["used"] > A_CONTEXT]
        reasons += [
            f"{gpu['used'] >> 20} MB of GPU {gpu['index']} are in use by somebody else"
            for gpu in taken
        ]
    if shared < MIN_SHARED_MEMORY:
        reasons.append(
            f"/dev/shm has {shared >> 20} MB free, {MIN_SHARED_MEMORY >> 20} are needed"
        )
    if files < MIN_OPEN_FILES:
        reasons.append(f"ulimit -n is {files}, {MIN_OPEN_FILES} are needed")
    return reasons


def describe(node: str, seen: dict[str, Any]) -> str:
    """Describe a node in one line, for the log."""
    here = f"{len(seen['gpus'])} GPUs"
    if seen["gpus"]:
        here += f" ({seen['gpus'][0]['name']}, driver {seen['gpus'][0]['driver']})"
    memory = f"{seen['memory']:.0f} GiB of memory, {seen['shared_memory_free'] >> 20} MB free in /dev/shm"
    return f"{node}: {here}, {seen['cpus']} CPUs, {memory}, {seen['open_files']} open files"
