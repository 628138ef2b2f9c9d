"""Changes to modules of others, in the real module."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from vllm.v1.worker import gpu_worker as worker

from r3_openrlhf.machine import every_process


@pytest.mark.stack
def test_engines_of_several_gpus_share_no_compiled_graphs_with_those_of_other_gpus(monkeypatch):
    seen = []
    monkeypatch.setattr(
        worker.Worker, "init_device", lambda self: seen.append(worker.envs.VLLM_CACHE_ROOT)
    )
    every_process._separate_compile_caches(worker)
    for size, gpus in ((2, "0,1"), (2, "0,1"), (2, "2,3"), (1, "0")):
        monkeypatch.setenv("VLLM_CACHE_ROOT", "/root")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        worker.Worker.init_device(
            SimpleNamespace(parallel_config=SimpleNamespace(world_size=size))
        )
    assert (
        seen[0] == seen[1] != seen[2]
        and seen[3] == "/root"
        and os.path.dirname(seen[0]) == "/root/gpus"
    )


@pytest.mark.stack
def test_openrlhf_can_be_imported_without_flash_attn_on_gpus_too():
    code = "from r3_openrlhf.machine import every_process as here; here.install(); import openrlhf.models.ring_attn_utils"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.stack
def test_the_processor_is_asked_for_once(monkeypatch):
    """The tests' own process has `install` from its beginning, as a rank has."""
    from deepspeed.ops.adam import cpu_adam
    from deepspeed.ops.op_builder import CPUAdamBuilder

    def refused(*_arguments, **_options):
        raise AssertionError("a process is started")

    known, builder = cpu_adam.get_cpu_info(), CPUAdamBuilder()
    monkeypatch.setattr(subprocess, "Popen", refused)
    # DeepSpeed would ask `lscpu` where py-cpuinfo cannot say it, by another function
    monkeypatch.setattr(builder, "_backup_cpuinfo", refused)
    builder.cpu_arch()
    builder.simd_width()
    assert cpu_adam.get_cpu_info() is known
