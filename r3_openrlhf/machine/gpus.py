"""NVIDIA's GPUs without touching one, by nvidia-smi, and settings that a run cannot use."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GiB = 2**30
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads both
A_CONTEXT = 1 * GiB  # what is used of a GPU may be as much without saying anything
TIME_LIMIT_S = 60
_CSV = "--format=csv,noheader,nounits"
_GPUS = ("--query-gpu=index,uuid,memory.total,memory.used,name,driver_version", _CSV)
_PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory,process_name", _CSV)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has memory of a GPU. used: bytes, 0 where the driver does not say."""

    pid: int
    name: str
    used: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, its bytes, and who has them. A process of another container is in no list."""

    index: str
    uuid: str
    total: int
    used: int
    name: str = ""
    driver: str = ""
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


def gpus_of_this_machine(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs of this process, by nvidia-smi; [] where it cannot be asked."""
    try:
        gpus, processes = (
            subprocess.run(
                ["nvidia-smi", *query],
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT_S,
                check=True,
            ).stdout
            for query in (_GPUS, _PROCESSES)
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return visible(parsed(gpus, processes), environment)


def parsed(gpus: str, processes: str) -> list[Gpu]:
    """Parse nvidia-smi's two answers, in MiB. "[N/A]" instead of a number counts as 0."""
    holders: dict[str, list[Holder]] = {}
    for line in filter(str.strip, processes.splitlines()):
        uuid, pid, used, name = (word.strip() for word in line.split(",", 3))
        holders.setdefault(uuid, []).append(Holder(int(pid), name, _mib(used)))
    results = []
    for line in filter(str.strip, gpus.splitlines()):
        index, uuid, total, used, name, driver = (word.strip() for word in line.split(","))
        of_this = sorted(holders.get(uuid, []), key=lambda holder: -holder.used)
        results.append(Gpu(index, uuid, _mib(total), _mib(used), name, driver, tuple(of_this)))
    return results


def _mib(number: str) -> int:
    return int(number) * 2**20 if number.isdecimal() else 0


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Keep the devices of CUDA_VISIBLE_DEVICES, by number or (begin of a) UUID, up to a missing one
    (CUDA C++ Programming Guide). Without it, SLURM_STEP_GPUS or SLURM_JOB_GPUS have node numbers;
    where Slurm hides others nvidia-smi counts from 0: all it shows are the job's unless there are
    more. Of a MIG device only its name is known: it is a whole one that no one shares."""
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return _of_slurm(gpus, environment)
    driver = gpus[0].driver if gpus else ""
    chosen: list[Gpu] = []
    for part in setting.split(","):
        name = part.strip()
        if not name:
            continue
        named = _named(gpus, name, driver=driver)
        if len(named) != 1:
            break
        chosen += named
    return chosen


def _of_slurm(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Keep the GPUs of the Slurm step or job; all where it names none of more."""
    setting = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""
    numbers = setting.split(",")
    chosen = [gpu for gpu in gpus if gpu.index in numbers]
    shows_others = len(gpus) > len(numbers)
    return chosen if chosen and shows_others else list(gpus)


def _named(gpus: Sequence[Gpu], name: str, *, driver: str) -> list[Gpu]:
    """Return the GPUs with this number or begin of a UUID. A MIG device is made of its name."""
    if name.startswith("MIG-"):
        return [Gpu(name, name, 0, 0, "MIG", driver)]
    return [gpu for gpu in gpus if gpu.index == name or gpu.uuid.startswith(name)]


def taken_memory(gpus: Sequence[Gpu], *, share: float) -> list[tuple[str, bool]]:
    """Return (warning, is it fatal?) for each GPU on which other programs hold memory. `share`:
    of a GPU, that an engine takes when it starts; vLLM refuses to start where less is free."""
    results = []
    for gpu in gpus:
        if gpu.used <= A_CONTEXT:
            continue
        free = gpu.total - gpu.used
        refuses = free < share * gpu.total
        demand = f", and an engine takes {share * gpu.total / GiB:.1f} of it (cluster.vllm_gpu_memory_utilization={share:g})"
        sentence = (
            f"GPU {gpu.index} has {free / GiB:.1f} of {gpu.total / GiB:.1f} GiB free{demand if refuses else ''}: {_held(gpu)}; "
            "or take other GPUs with CUDA_VISIBLE_DEVICES. If it takes more while the engine falls asleep, vLLM ends the run"
        )
        results.append((sentence, refuses))
    return results


def _held(gpu: Gpu) -> str:
    if not gpu.holders:
        return "the rest is held by a process of another container or user; end it there"
    held = ", ".join(
        f"{holder.name} (pid {holder.pid}, {holder.used / GiB:.1f} GiB)"
        for holder in gpu.holders
    )
    pids = " ".join(str(holder.pid) for holder in gpu.holders)
    return (
        f"the rest is held by {held}; if that is a run of yours which has ended, `kill {pids}`"
    )
