"""A deliberately broken weight sync, for the test of the guard. Loaded inside the vLLM worker."""

import torch

from r3_openrlhf.machine.cpu.vllm_worker import CpuWorkerWrap


class StaleHead(CpuWorkerWrap):
    def update_weight(self, name, dtype, shape, empty_cache=False):
        if name != "lm_head.weight":
            return super().update_weight(name, dtype, shape, empty_cache)
        self._model_update_group.broadcast(torch.empty(shape, dtype=dtype), src=0)  # received, never loaded
