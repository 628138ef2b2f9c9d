"""Check by importing: whether each part of the stack loads, which torch it is, and which devices it sees.

The imports happen in another process, so that one that crashes (a wheel for other processors dies of SIGILL) is a line too.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from r3_openrlhf.operations.doctor.line import Line, judged, progress
from r3_openrlhf.operations.doctor.packages import SETUP, Stack, wanted

# What a run imports first; the last of each is vLLM's compiled part ("vllm" alone loads none of it). On CPUs vLLM itself picks
# the one for this processor (vllm/platforms/cpu.py: import_kernels) and only warns where none loads; _CHILD asks what it has.
MODULES: dict[Stack, tuple[str, ...]] = {
    "cpu": ("torch", "ray", "transformers", "deepspeed", "vllm"),
    "gpu": ("torch", "flash_attn", "ray", "transformers", "deepspeed", "vllm._C_stable_libtorch"),
}
TIME_LIMIT_S = 900  # for all imports, from a slow disk and under other load
_CHILD = """
import importlib, json, os, sys
out = os.fdopen(int(sys.argv[1]), "w")
for name in sys.argv[2:]:
    answer = {"module": name}
    try:
        module = importlib.import_module(name)
        if name == "vllm":
            import torch
            from vllm.platforms import current_platform
            current_platform.import_kernels()
            torch.ops._C.rms_norm
        if name == "torch":
            cuda = module.version.cuda
            answer |= {"version": module.__version__, "cuda": cuda, "devices": [], "gloo": False, "nccl": None}
            answer["gloo"] = module.distributed.is_available() and module.distributed.is_gloo_available()
            if cuda and module.distributed.is_nccl_available():
                answer["nccl"] = ".".join(map(str, module.cuda.nccl.version()))
            if module.cuda.is_available():
                answer["devices"] = [module.cuda.get_device_name(i) for i in range(module.cuda.device_count())]
    except BaseException as error:  # also SystemExit: whatever an import does, it is reported
        answer["error"] = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
    print(json.dumps(answer), file=out, flush=True)
"""


def load(modules: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """module -> what its import answered; "error" is there where it failed."""
    answers: dict[str, dict[str, Any]] = {}
    waiting = list(modules)
    while waiting:
        progress(waiting[0])
        read, write = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, str(write), *waiting],
            pass_fds=[write], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
        )  # fmt: skip
        os.close(write)
        limit = threading.Timer(TIME_LIMIT_S, child.kill)
        limit.start()
        with os.fdopen(read) as lines:
            for line in lines:
                answer = json.loads(line)
                waiting.remove(answer["module"])
                answers[answer["module"]] = answer
                progress(waiting[0] if waiting else "")
        code = child.wait()
        limit.cancel()
        if waiting:  # it died of the first that has no answer
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            answers[waiting.pop(0)] = {"error": f"the import ended its process with {name}"}
    return answers


def import_lines(stack: Stack, *, num_devices: int | None, driver: str | None) -> list[Line]:
    """num_devices: GPUs that the experiment wants here, None where none was given. driver: version of NVIDIA's driver."""
    answers = load(tuple(name for name in MODULES[stack] if _exists(name)))  # one that is not installed has its line
    lines = _torch_lines(answers.pop("torch"), stack, num_devices, driver) if "torch" in answers else []
    remedy = f"{SETUP[stack]} (if torch or the driver fails too, that first)"
    for module, answer in answers.items():
        error = answer.get("error")
        lines.append(judged(error is None, remedy, what=f"import {module}", found=error or "loads", wanted="loads"))
    if stack == "cpu":
        lines.append(Line(what="flash-attn", found="not used on CPUs", wanted="nothing"))
    return lines


def _exists(module: str) -> bool:
    spec = importlib.machinery.PathFinder.find_spec(module.partition(".")[0])
    # A mere directory of that name, as Ray's /tmp/ray, is no package
    return spec is not None and spec.origin is not None


def _torch_lines(torch: dict[str, Any], stack: Stack, num_devices: int | None, driver: str | None) -> list[Line]:
    want = "CPU build" if stack == "cpu" else f"CUDA {cuda_version()} build"
    if "error" in torch:
        return [judged(False, SETUP[stack], what="torch build", found=torch["error"], wanted=want)]
    build = f"CUDA {torch['cuda']} build" if torch["cuda"] else "CPU build"
    found, seen = f"{build} ({torch['version']})", torch["devices"]
    if stack == "cpu":
        remedy = "make setup; where GPUs are to be used: r3 doctor --stack gpu"
        gloo = {"found": "gloo" if torch["gloo"] else "no gloo", "wanted": "gloo instead"}
        return [
            judged(build == want, remedy, what="torch build", found=found, wanted=want),
            Line(what="CUDA devices", found=str(len(seen) or "none"), wanted="none needed"),
            judged(torch["gloo"], SETUP[stack], what="NCCL", **gloo),
        ]
    remedy = "make setup-gpu (where pip knows an index of CPU builds, a plain pip install takes one); on CPUs: experiment=quickstart"
    for_devices = "CUDA_VISIBLE_DEVICES, the driver's version, or cluster.gpus_per_node"
    if driver is None:
        for_devices = "no NVIDIA driver is visible: install one, or start the container with --gpus all"
    least, nccl = (
        num_devices or 1,
        {"found": torch["nccl"] or "this torch has none", "wanted": wanted("gpu")["nvidia-nccl-cu13"]},
    )
    devices = {
        "found": f"{len(seen)} x {', '.join(sorted(set(seen)))}" if seen else "none",
        "wanted": f"{least} or more",
    }
    return [
        judged(build == want, remedy, what="torch build", found=found, wanted=want),
        judged(len(seen) >= least, for_devices, what="CUDA devices", **devices),
        judged(nccl["found"] == nccl["wanted"], SETUP[stack], what="NCCL", **nccl),
    ]


def cuda_version() -> str:
    """ "13.0": what the locked torch is built for, by the version of cuda-toolkit that it asks for."""
    return ".".join(wanted("gpu")["cuda-toolkit"].split(".")[:2])
