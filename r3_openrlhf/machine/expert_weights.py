"""Weights of experts for an engine that has laid them out anew for its kernels.

vLLM lays them out once, when it loads a model (fused_moe/oracle/unquantized.py:329, on CPUs
experts/cpu_moe.py:305), and a later `load_weights` writes a checkpoint's order into that (issue 42821).
`Worker.reload_weights` misses models/gpt_oss.py, which copies without a weight loader. Here a layer
has tensors as before its first load while its weights come, one after another."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.reload import layerwise, meta, utils


class ExpertWeights:
    """The layers of experts of a worker's model, by their numbers, and what came in this sync."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.open, self.loaded = worker, "", set[str]()
        modules = worker.get_model().modules()
        self.layers = {_number(f"{one.layer_name}."): one for one in modules if isinstance(one, RoutedExperts)}

    @contextlib.contextmanager
    def loading(self, name: str, *, last: bool) -> Iterator[None]:
        """Around the load of one weight. ValueError: the sync ends and some weights did not come."""
        number = _number(name)
        if number != self.open:
            self._lay_out()
            if number in self.layers:
                self._begin(number)
        yield
        if last:
            self._lay_out()
            if missing := self.layers.keys() - self.loaded:
                raise ValueError(f"no weights came for the experts of the layers {', '.join(missing)}")
            self.loaded = set()

    def _begin(self, number: str) -> None:
        self.open, layer = number, self.layers[number]
        info = layerwise.get_layerwise_info(layer)
        info.kernel_tensors = utils.get_layer_params_buffers(layer)
        info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
        meta.restore_layer_on_meta(layer, info)
        meta.materialize_layer(layer, info)
        for weight in layer.parameters(recurse=False):
            weight.data.fill_(torch.nan)  # what does not come is no number

    def _lay_out(self) -> None:
        """Lay out the open layer's weights, where CUDA graphs expect them."""
        if not self.open:
            return
        layer, info = self.layers[self.open], layerwise.get_layerwise_info(self.layers[self.open])
        if any(weight.isnan().any() for weight in layer.parameters(recurse=False)):
            raise ValueError(f"weights of the experts of layer {self.open} did not come, or are no numbers")
        with torch.no_grad(), set_current_vllm_config(self.worker.vllm_config):
            layer.quant_method.process_weights_after_loading(layer)
            layerwise._copy_and_restore_kernel_tensors(layer, info)
        info.reset()
        self.loaded.add(self.open)
        self.open = ""


def _number(name: str) -> str:
    """The layer of a weight of experts, by its name in either library; "" of any other weight."""
    match = re.search(r"\.(\d+)\.(?:[^.]+\.)*experts\.", name)
    return match[1] if match else ""


def loading(worker: Any, name: str, *, last: bool) -> contextlib.AbstractContextManager[None]:
    """Around the load of a weight by OpenRLHF's worker. last: of this sync."""
    if not hasattr(worker, "r3_experts"):
        worker.r3_experts = ExpertWeights(worker)
    return worker.r3_experts.loading(name, last=last)
