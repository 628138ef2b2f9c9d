"""LoRA (`openrlhf.ds.lora.rank`): the engines and every saved model get merged weights under the
names of the base model.

Upstream trains the adapter (models/actor.py:177-188), and then uses PEFT's own names everywhere:

    trainer/ray/ppo_actor.py:477-485     the sync sends `base_model.model.*.base_layer.weight` and
                                            `*.lora_A.default.weight`, which vLLM refuses later
    utils/deepspeed/deepspeed.py:571-587    a save keeps only the adapter, which no vLLM loads

A merged weight is W + scaling * B A, made when it is asked for, one layer at a time. The weights
that are trained stay as they are: PEFT's own merge and unmerge would move a bfloat16 W. What the
type of W cannot hold of the change is counted. B rows of a layer's output, A of its rank, W [out, in]."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import deepspeed
import torch
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer

from r3_openrlhf.method.errors import TrainingStopped
from r3_openrlhf.stack.idle_rows import over_ranks

# the name that get_peft_model gives when it is told none (models/actor.py:188)
ADAPTER = "default"
# Below a saved model: PEFT's file next to the weights would make Transformers load the base
FOLDER = "adapter"
# metric: share of the adapter's change that the engines did not get
LOST_SHARE = "r3/sync/lora_lost_share"


@dataclass(slots=True)
class MergeLoss:
    """What merging loses to the type of the weights, summed over layers.

    A change below half a step of the type leaves its weight as it was: of bfloat16, below 1/512 to
    1/256 of the weight."""

    total: float = 0.0  # sum of |change|
    lost: float = 0.0  # the same over weights that stay as they were

    @property
    def share(self) -> float:
        """Return the lost share of all change, in [0, 1]; 0 without any change."""
        return self.lost / self.total if self.total else 0.0

    def count(self, base: torch.Tensor, change: torch.Tensor, merged: torch.Tensor) -> None:
        """Add one layer's weights before, their change and after, each [out, in]."""
        size = change.abs()
        self.total += size.sum(dtype=torch.float32).item()
        self.lost += size[merged == base].sum(dtype=torch.float32).item()


class MergedWeight:
    """Replaces one layer's base weight: what upstream's sync and save read of a parameter."""

    requires_grad = True

    def __init__(self, layer: Linear, loss: MergeLoss) -> None:
        self._layer = layer
        self._base: Any = layer.get_base_layer().weight
        self._loss = loss

    @property
    def parts(self) -> list[torch.nn.Parameter]:
        """Return the parameters that ZeRO 3 gathers before `data` can be read."""
        return [
            self._base,
            self._layer.lora_A[ADAPTER].weight,
            self._layer.lora_B[ADAPTER].weight,
        ]

    @property
    def shape(self) -> torch.Size:
        """[out, in] of the base weight; under ZeRO 3 only while it is gathered."""
        return self._base.shape

    @property
    def ds_shape(self) -> torch.Size:
        """Return the shape, which under ZeRO 3 is the same at any time."""
        return self._base.ds_shape

    @property
    def dtype(self) -> torch.dtype:
        """The base weight's, which the engines hold too."""
        return self._base.dtype

    @property
    def data(self) -> torch.Tensor:
        """W + scaling * B A, a new tensor, with PEFT's own arithmetic. What it loses is counted."""
        base = self._base.data
        with torch.no_grad():
            change = self._layer.get_delta_weight(ADAPTER)
            merged = (base + change).to(base.dtype)
            self._loss.count(base, change, merged)
        return merged


def merged_parameters(model: PeftModel, loss: MergeLoss | None = None) -> list[tuple[str, Any]]:
    """(name in the base model, parameter or MergedWeight), each once, in the base model's order.
    loss: counts what merging loses when the weights are read."""
    base = model.get_base_model()
    counts = MergeLoss() if loss is None else loss
    merged = {
        id(layer.get_base_layer().weight): MergedWeight(layer, counts)
        for layer in _layers(model).values()
    }
    return [
        (name.replace(".base_layer.", "."), merged.get(id(parameter), parameter))
        for name, parameter in base.named_parameters()
        if not _is_of_adapter(name)
    ]


def check_layers(model: PeftModel) -> None:
    """Raise TrainingStopped, before step 1, if the adapter cannot be merged by weights."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.get_base_model().named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, layer in _layers(model).items():
        if not isinstance(layer, Linear):
            raise TrainingStopped(
                f"openrlhf.ds.lora.target_modules names {name}, a {type(layer.get_base_layer()).__name__}; LoRA is for linear layers here"
            )
        if len(names[id(layer.get_base_layer().weight)]) > 1:
            raise TrainingStopped(
                f"openrlhf.ds.lora.target_modules names {name}, whose weight is another layer's too; leave it out"
            )


def prepare(strategy, model: PeftModel) -> None:
    """Make `strategy.save_model` (ppo_actor.py:612, :677) save merged weights. TrainingStopped."""
    check_layers(model)
    strategy.save_model = functools.partial(save_merged, strategy)


@contextmanager
def merged_for_sync(trainer, model: PeftModel) -> Iterator[MergeLoss]:
    """Let upstream's broadcast_to_vllm (ppo_actor.py:409) read merged weights in the block.

    Yields what merging loses: after the block of all ranks, as upstream keeps the status of any (ppo_trainer.py:295)."""
    loss = MergeLoss()
    view = SimpleNamespace(named_parameters=lambda: merged_parameters(model, loss))
    actor, zero = (
        SimpleNamespace(model=SimpleNamespace(module=view)),
        SimpleNamespace(GatheredParameters=gathered),
    )
    with (
        patch.multiple(trainer, actor=actor),
        patch.multiple(ppo_actor, deepspeed=SimpleNamespace(zero=zero)),
    ):
        yield loss
    sums = over_ranks([loss.total, loss.lost], torch.distributed.ReduceOp.SUM, None)
    loss.total, loss.lost = sums


def gathered(parameters: list[Any], *, enabled: bool = True):
    """deepspeed.zero.GatheredParameters, of all that a merged weight is made of."""
    parts = [
        part for parameter in parameters for part in getattr(parameter, "parts", [parameter])
    ]
    return deepspeed.zero.GatheredParameters(parts, enabled=enabled)


def save_merged(strategy, model, tokenizer, output_dir, **kwargs) -> None:
    """Save a merged model in Hugging Face format, and the adapter alone in `adapter` for PEFT."""
    trained = strategy._unwrap_model(model)
    base, split = trained.get_base_model(), strategy.args.ds.zero_stage == 3
    state: dict[str, torch.Tensor] = {}
    adapter: dict[str, torch.Tensor] = {}
    of_adapter = [
        (name, parameter)
        for name, parameter in trained.named_parameters()
        if _is_of_adapter(name)
    ]
    for target, parameters in ((state, merged_parameters(trained)), (adapter, of_adapter)):
        for name, parameter in parameters:
            with gathered([parameter], enabled=split):
                if strategy.is_rank_0():
                    target[name] = parameter.data.to("cpu", copy=True)
    if strategy.is_rank_0():
        persistent = base.state_dict().keys()
        state |= {
            name: buffer.cpu() for name, buffer in base.named_buffers() if name in persistent
        }
        base.save_pretrained(output_dir, state_dict=state, **kwargs)
        tokenizer.save_pretrained(output_dir)
        trained.save_pretrained(
            Path(output_dir) / FOLDER, state_dict=adapter, save_embedding_layers=False
        )
    torch_dist_barrier_and_cuda_sync()


def _layers(model: PeftModel) -> dict[str, Any]:
    return {
        name: layer
        for name, layer in model.get_base_model().named_modules()
        if isinstance(layer, LoraLayer)
    }


def _is_of_adapter(name: str) -> bool:
    return ".lora_" in name
