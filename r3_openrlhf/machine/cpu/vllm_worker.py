"""vLLM's worker on a CPU, for OpenRLHF's weight sync. Imported before the model is loaded."""

from __future__ import annotations

import torch
import vllm.model_executor.layers.utils as vllm_layers

from r3_openrlhf.machine.cpu import cpu_platform

cpu_platform.install()


def _linear_on_live_weight(layer, remove_weight):
    """SILENT: vllm/model_executor/layers/utils.py:434 packs every weight once, when the model is
    loaded. Later `load_weights` calls succeed, the parameter's checksum changes, and the
    computation continues with the old copy. Here `layer.weight` is the only copy."""
    layer.cpu_linear = torch.nn.functional.linear


vllm_layers.dispatch_cpu_unquantized_gemm = _linear_on_live_weight

from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap  # noqa: E402  (after the patches above)


class CpuWorkerWrap(WorkerWrap):
    """trainer/ray/vllm_worker_wrap.py:40 allocates the received weight on "cuda"."""

    def update_weight(self, name, dtype, shape, empty_cache=False):
        """Receive a weight from the trainer. ValueError: its dtype is not the engine's."""
        if dtype != self.model_config.dtype:
            raise ValueError(f"{name} arrives as {dtype}, the engine holds {self.model_config.dtype}")
        weight = torch.empty(shape, dtype=dtype, device=self.device)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])
