"""OpenRLHF's worker of vLLM on GPUs. vLLM starts its process itself, without Ray's set-up hook."""

from r3_openrlhf.machine import every_process

every_process.install()

from openrlhf.trainer.ray import vllm_worker_wrap  # noqa: E402  (after the patches)

from r3_openrlhf.machine import expert_weights  # noqa: E402


class WorkerWrap(vllm_worker_wrap.WorkerWrap):
    """trainer/ray/vllm_worker_wrap.py:45 and :68 load into what the kernels of experts read."""

    def update_weight(self, name, dtype, shape, empty_cache=False):
        """Receive a weight by NCCL. empty_cache: it is the last of this sync."""
        with expert_weights.loading(self, name, last=empty_cache):
            super().update_weight(name, dtype, shape, empty_cache)

    def update_weight_cuda_ipc(self, name, dtype, shape, ipc_handles=None, empty_cache=False):
        """Receive a weight of a process on the same GPU."""
        with expert_weights.loading(self, name, last=empty_cache):
            super().update_weight_cuda_ipc(name, dtype, shape, ipc_handles, empty_cache)
