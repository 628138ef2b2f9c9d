"""Changes to modules of others, in the real module."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from r3_openrlhf.machine import every_process

worker = pytest.importorskip("vllm.v1.worker.gpu_worker", reason="vLLM is not installed")


@pytest.mark.stack
def test_engines_of_several_gpus_share_no_compiled_graphs_with_those_of_other_gpus(monkeypatch):
    seen = []
    monkeypatch.setattr(worker.Worker, "init_device", lambda self: seen.append(worker.envs.VLLM_CACHE_ROOT))
    every_process._separate_compile_caches(worker)
    for size, gpus in ((2, "0,1"), (2, "0,1"), (2, "2,3"), (1, "0")):
        monkeypatch.setenv("VLLM_CACHE_ROOT", "/root")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        worker.Worker.init_device(SimpleNamespace(parallel_config=SimpleNamespace(world_size=size)))
    assert seen[0] == seen[1] != seen[2] and seen[3] == "/root" and os.path.dirname(seen[0]) == "/root/gpus"


@pytest.mark.stack
def test_an_engine_falls_asleep_beside_programs_that_take_memory(monkeypatch):
    """The real method asserts on what the whole GPU has; any other assertion of it stays one."""
    free, backend = iter([50, 40] * 2), SimpleNamespace(suspend=lambda level: None)
    monkeypatch.setattr(worker.torch.accelerator, "get_memory_info", lambda: (next(free), 80))
    monkeypatch.setattr(worker.torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(worker.Worker, "sleep", worker.Worker.sleep)  # to be put back
    engine = SimpleNamespace(_get_sleep_mode_backend=lambda: backend)
    with pytest.raises(AssertionError, match="after sleeping"):
        worker.Worker.sleep(engine)
    every_process._sleep_beside_others(worker)
    worker.Worker.sleep(engine)

    def suspend(level):
        raise AssertionError("another")

    backend.suspend = suspend
    monkeypatch.setattr(worker.torch.accelerator, "get_memory_info", lambda: (50, 80))
    with pytest.raises(AssertionError, match="another"):
        worker.Worker.sleep(engine)


@pytest.mark.stack
def test_openrlhf_can_be_imported_without_flash_attn_on_gpus_too():
    code = (
        "from r3_openrlhf.machine import every_process as here; here.install(); import openrlhf.models.ring_attn_utils"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
