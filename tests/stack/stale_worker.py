"""A deliberately broken weight sync, for the test of the guard. Loaded inside the vLLM worker."""

import os

import torch

from r3_openrlhf.machine.cpu.vllm_worker import CpuWorkerWrap


class Stale(CpuWorkerWrap):
    _first, _syncs = None, 0

    def update_weight(self, name, dtype, shape, empty_cache=False):
        self._first = self._first or name
        self._syncs += name == self._first
        if self._syncs < int(os.environ["R3_TEST_STALE_FROM"]):
            return super().update_weight(name, dtype, shape, empty_cache)
        # received, never loaded
        self._model_update_group.broadcast(torch.empty(shape, dtype=dtype), src=0)
