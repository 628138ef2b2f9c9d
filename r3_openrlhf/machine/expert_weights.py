"""Weights of experts for an engine that has changed their layout for its kernels.

vLLM lays them out when it loads a model (fused_moe/oracle/unquantized.py:329, on CPUs
experts/cpu_moe.py:305), and a later `load_weights` writes a checkpoint's order into that (issue 42821).
`Worker.reload_weights` misses models/gpt_oss.py, which copies without a weight loader. Here a layer
has tensors as before its first load while its weights come, one after another."""

import contextlib
import re
from collections.abc import Iterator
from typing import Protocol

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.reload import layerwise, meta, utils


class SyncedWorker(Protocol):
    """OpenRLHF's worker of vLLM, and what is kept on it here.

    Attributes:
        r3_experts: layers of experts by their numbers.
        r3_open: the number of the layer whose weights come now, or "".
        r3_came: the numbers of the layers whose weights came in this sync."""

    vllm_config: VllmConfig
    r3_experts: dict[str, RoutedExperts]
    r3_open: str
    r3_came: set[str]

    def get_model(self) -> torch.nn.Module:
        """Return the engine's model."""


@contextlib.contextmanager
def loading(worker: SyncedWorker, name: str, *, last: bool) -> Iterator[None]:
    """Wrap the loading of a weight by OpenRLHF's worker. last: of this sync. ValueError: some did not come."""
    if not hasattr(worker, "r3_experts"):
        modules = worker.get_model().modules()
        worker.r3_experts = {
            _number(f"{one.layer_name}."): one
            for one in modules
            if isinstance(one, RoutedExperts)
        }
        worker.r3_open, worker.r3_came = "", set()
    number = _number(name)
    if number != worker.r3_open:
        _lay_out(worker)
        if number in worker.r3_experts:
            _open(worker.r3_experts[number])
            worker.r3_open = number
    yield
    if last:
        _lay_out(worker)
        if missing := worker.r3_experts.keys() - worker.r3_came:
            raise ValueError(
                f"no weights came for the experts of the layers {', '.join(missing)}"
            )
        worker.r3_came.clear()


def _open(layer: RoutedExperts) -> None:
    info = layerwise.get_layerwise_info(layer)
    info.kernel_tensors = utils.get_layer_params_buffers(layer)
    info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
    meta.restore_layer_on_meta(layer, info)
    meta.materialize_layer(layer, info)
    for weight in layer.parameters(recurse=False):
        weight.data.fill_(torch.nan)  # what does not come is no number


def _lay_out(worker: SyncedWorker) -> None:
    """Lay out the open layer's weights, where CUDA graphs expect them."""
    if not worker.r3_open:
        return
    layer = worker.r3_experts[worker.r3_open]
    if any(weight.isnan().any() for weight in layer.parameters(recurse=False)):
        raise ValueError(
            f"weights of the experts of layer {worker.r3_open} did not come, or are no numbers"
        )
    with torch.no_grad(), set_current_vllm_config(worker.vllm_config):
        layer.quant_method.process_weights_after_loading(layer)
        layerwise._copy_and_restore_kernel_tensors(
            layer, info := layerwise.get_layerwise_info(layer)
        )
    info.reset()
    worker.r3_came.add(worker.r3_open)
    worker.r3_open = ""


def _number(name: str) -> str:
    """Return the layer of a weight of experts, by its name in either library; "" for any other weight."""
    match = re.search(r"\.(\d+)\.(?:[^.]+\.)*experts\.", name)
    return match[1] if match else ""
