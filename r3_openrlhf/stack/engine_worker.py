"""OpenRLHF's worker of vLLM on GPUs. vLLM starts its process itself, without Ray's set-up hook."""

from r3_openrlhf.machine import every_process

every_process.install()

from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap  # noqa: E402  (after the patches)

__all__ = ["WorkerWrap"]
