"""What this process may use of its machine, where that is less than the machine has."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from r3_openrlhf.machine import cgroups, memory
from r3_openrlhf.machine.gpus import gpus_of_this_machine, visible

ROOT = Path("/")
GiB = 2**30


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPUs' time that the cgroups grant, the smallest of all parents; None: no limit."""
    quotas = [_quota_of(kind, folder) for kind, folder in cgroups.folders(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(kind: str, folder: Path) -> float | None:
    if kind == cgroups.V2:
        quota, _, period = cgroups.text(folder / "cpu.max").partition(" ")
    else:
        quota = cgroups.text(folder / "cpu.cfs_quota_us")
        period = cgroups.text(folder / "cpu.cfs_period_us")
    # "max", -1, or no such file: no limit here
    if not quota.isdecimal() or not period.isdecimal():
        return None
    return int(quota) / int(period)


def cpu_notes(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Say how many CPUs this process may use, where the machine or the job has more."""
    usable, total = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    found = []
    if usable < total:
        found.append(f"CPUs: {usable} of the {total} of this machine (their affinity)")
    quota = cpu_quota(root)
    if quota is not None and quota < usable:
        found.append(
            f"CPUs: the time of {quota:g} (a limit of the container or job), and {usable} are seen; "
            f"threads are counted by those seen, so set OMP_NUM_THREADS={max(1, math.floor(quota))}"
        )
    of_job = environment.get("SLURM_CPUS_ON_NODE", "")
    if of_job.isdecimal() and usable < int(of_job):
        found.append(
            f"CPUs: {usable} for this step of the {of_job} that Slurm gave the job here (SLURM_CPUS_ON_NODE); "
            "srun --cpus-per-task gives a step more"
        )
    return found


def memory_notes(root: Path = ROOT) -> list[str]:
    """Say how much memory this process may have, where the machine has more."""
    allowed, total = memory.total_memory(root), memory.host_memory(root)
    if allowed == total:
        return []
    return [
        f"memory: {allowed / GiB:.1f} GiB, a limit of the container or job; this machine has {total / GiB:.1f}"
    ]


def gpu_notes(needed: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Say which GPUs of this machine stay idle: hidden ones, and those beyond the `needed`."""
    every = gpus_of_this_machine({})
    seen = visible(every, environment)
    found = []
    if len(seen) < len(every):
        given = environment.get("CUDA_VISIBLE_DEVICES")
        why = "those of Slurm's step" if given is None else f"CUDA_VISIBLE_DEVICES={given}"
        found.append(f"GPUs: {len(seen)} of the {len(every)} of this machine ({why})")
    if needed < len(seen):
        found.append(f"GPUs: the run takes {needed} of {len(seen)}; the others stay idle")
    return found
