"""vLLM's worker on a CPU, for OpenRLHF's weight sync. Imported before the model is loaded."""

import torch
import vllm.model_executor.layers.utils as vllm_layers
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from r3_openrlhf.machine import expert_weights
from r3_openrlhf.machine.cpu import cpu_platform

cpu_platform.install()


def _linear_on_live_weight(layer, remove_weight):
    """SILENT: vllm/model_executor/layers/utils.py:434 packs every weight once, when the model is
    loaded. Later `load_weights` calls succeed, the parameter's checksum changes, and the
    computation continues with the old copy. Here `layer.weight` is the only copy."""
    layer.cpu_linear = torch.nn.functional.linear


def _pack_experts_again(self, layer, w13, w2):
    """SILENT: vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py:166 packs weights of
    experts for the CPU's kernel with the first load alone."""
    is_first = self.moe_kernel is None
    set_up_kernel(self, layer, w13, w2)
    if not is_first:
        self.moe_kernel.fused_experts.process_weights_after_loading(layer)


def _select_and_return_experts(self, *args, **kwargs):
    """vllm/model_executor/layers/fused_moe/experts/cpu_moe.py:390 chooses the experts in Python, where
    they can be handed on. fused_moe/routed_experts_capturer.py:288 refuses every monolithic kernel that
    does not say so (modular_kernel.py:1017), and asks for them here (rollout.routing_replay)."""
    weights_NK, experts_NK = select_experts(self, *args, **kwargs)
    if self.routing_replay_capture_fn is not None:
        self.routing_replay_capture_fn(experts_NK)
    return weights_NK, experts_NK


vllm_layers.dispatch_cpu_unquantized_gemm = _linear_on_live_weight
# The kernel of convolutions (Qwen3.5) would expect packed weights (layers/mamba/ops/cpu/gdn_attention.py:108)
torch.cpu._is_avx512_bf16_supported = lambda: False
set_up_kernel = UnquantizedFusedMoEMethod._setup_kernel
UnquantizedFusedMoEMethod._setup_kernel = _pack_experts_again
select_experts = CPUUnquantizedExperts._select_experts
CPUUnquantizedExperts._select_experts = _select_and_return_experts
CPUUnquantizedExperts.supports_routing_replay_capture = lambda self: True

from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap  # noqa: E402  (after the patches above)


class CpuWorkerWrap(WorkerWrap):
    """trainer/ray/vllm_worker_wrap.py:40 allocates the received weight on "cuda"."""

    def update_weight(self, name, dtype, shape, empty_cache=False):
        """Receive a weight from the trainer. ValueError: its dtype is not the engine's."""
        if dtype != self.model_config.dtype:
            raise ValueError(
                f"{name} arrives as {dtype}, the engine holds {self.model_config.dtype}"
            )
        weight = torch.empty(shape, dtype=dtype, device=self.device)
        self._model_update_group.broadcast(weight, src=0)
        with expert_weights.loading(self, name, last=empty_cache):
            self.model_runner.model.load_weights(weights=[(name, weight)])
