"""A model's parameters, KV cache and activations, measured on the meta device: Transformers builds
the model of a config.json without weights, and one pass says what each layer keeps. So the plan
knows every text architecture that the installed Transformers does, and has a formula for none.

Weights are counted in bfloat16, KV cache as vLLM keeps it without quantization; layers with a
sliding window count as those without one, and a state that does not grow (linear attention) as 0.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r3_openrlhf.method.errors import ConfigError, shortened
from r3_openrlhf.runs.models.checks import packing_fault
from r3_openrlhf.runs.models.model_config import read_config
from r3_openrlhf.runs.models.routers import experts_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel

TOKENS = 64  # of the pass on the meta device
ATTENTION = "r3_planned"  # its entry in Transformers' table of attentions
SAME = {"smollm2": "HuggingFaceTB/SmolLM2-135M"}  # names of this project


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model that a plan needs. Bytes are of one token."""

    params: int
    matmul_params: int  # weights that multiply each token; of experts those that it is sent to
    tensors: int
    largest: int  # entries of the largest one
    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int  # among which an engine's GPUs can split the cache
    attention_width: int  # heads x their dimension, summed over the layers that attend to all
    kv_bytes: int  # keys and values, all layers
    kept_bytes: float  # by autograd, of all layers, with flash attention
    layer_bytes: float  # the same of the largest layer
    widest_bytes: float  # one tensor of it
    repeated_bytes: (
        float  # more of the largest layer where keys and values are repeated for every head
    )
    around_bytes: float  # before and after the layers
    linear_sizes: Mapping[str, int]  # inputs + outputs of the linear layers of a name; no head
    packing_fault: str | None = None  # runs/models/checks.py
    expert_bytes: int = 0  # of the experts of a token; 0: no router that routing replay knows

    def adapter_params(self, rank: int, targets: Collection[str] = ()) -> int:
        """LoRA parameters: rank x (in + out) of each linear layer of `targets`; empty: of all."""
        return rank * sum(
            size for name, size in self.linear_sizes.items() if not targets or name in targets
        )


_MEASURED_WITH = ("transformers", "torch")  # the extra `cluster` has neither


@functools.cache
def published() -> dict[str, ModelShape]:
    """Return what `measured` gives for published models and for those that are built here, by name."""
    found = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    shapes = {name: ModelShape(**fields) for name, fields in found.items()}
    return shapes | {same: shapes[name] for same, name in SAME.items()}


@functools.cache
def shape_of(model: str) -> ModelShape:
    """Return the shape of a model directory, a name in `published` or one in the hub's cache. Nothing
    is fetched, and no code of the model runs. ConfigError: Transformers makes no text model of it."""
    if not (Path(model) / "config.json").is_file():
        for name in (model, model.removesuffix("-Instruct")):
            if name in published():
                return published()[name]
    try:
        return measured(read_config(model, local_files_only=True))
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name not in _MEASURED_WITH:
            raise _unreadable(model, error) from error
        raise ConfigError(
            f"model.path is {model}, which is not in the plan's table, so it is measured with "
            f"{' and '.join(_MEASURED_WITH)}, and {error.name} is not installed: "
            "pip install 'r3_openrlhf[eval,torch]'"
        ) from error
    # of any architecture's own code, for a configuration of strangers
    except Exception as error:
        raise _unreadable(model, error) from error


def _unreadable(model: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"model.path is {model}, which the plan cannot read ({type(error).__name__}: "
        f"{shortened(error)}); use a directory with its config.json, or one of "
        f"{', '.join(published())}"
    )


def measured(config: PreTrainedConfig) -> ModelShape:
    """Measure the shape of the text model of a configuration of Transformers."""
    import torch
    from transformers import AttentionInterface, AutoModelForCausalLM

    fault, config, tape = packing_fault(config), config.get_text_config(), _Tape()
    experts = experts_of(config)
    AttentionInterface.register(ATTENTION, tape.attention)
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation=ATTENTION
            )
        except KeyError:  # it chooses among classes of its own
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="eager"
            )
    model.tie_weights()
    cache, layers = tape.run(model.train())
    params = dict(model.named_parameters())
    head, linears, looked_up = model.get_output_embeddings(), Counter[str](), 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            linears[name.rpartition(".")[2]] += module.in_features + module.out_features
        if isinstance(module, torch.nn.Embedding) and module.weight is not head.weight:
            looked_up += module.weight.numel()
    return ModelShape(
        params=sum(weight.numel() for weight in params.values()),
        matmul_params=round(sum(_used(name, weight, config) for name, weight in params.items()))
        - looked_up,
        tensors=len(params),
        largest=max(weight.numel() for weight in params.values()),
        layers=len(layers),
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        heads=getattr(config, "num_attention_heads", 1),
        kv_heads=max((one.keys.shape[1] for one in cache), default=1),
        attention_width=tape.attention_width,
        kv_bytes=sum(2 * (one.keys.numel() + one.values.numel()) for one in cache) // TOKENS,
        kept_bytes=sum(map(sum, layers)),
        layer_bytes=max(map(sum, layers)),
        widest_bytes=max(map(max, layers)),
        repeated_bytes=tape.repeated_bytes,
        around_bytes=sum(tape.kept[None]),
        linear_sizes=dict(linears),
        packing_fault=fault,
        expert_bytes=0 if experts is None else experts.bytes_per_token,
    )


def _used(name: str, weight: Tensor, config: PreTrainedConfig) -> float:
    """Count the entries that multiply a token: all, or those of its experts ([experts, out, in])."""
    is_of_experts = ".experts." in name and weight.dim() == 3
    return weight.numel() * (config.num_experts_per_tok / len(weight) if is_of_experts else 1.0)


class _Tape:
    """The tensors that a pass on the meta device keeps for the backward pass."""

    def __init__(self) -> None:
        self.layer: int | None = None
        # layer -> bytes a token
        self.kept: dict[int | None, list[float]] = defaultdict(lambda: [0.0])
        # each storage once, alive, so that its address does not come again
        self.held: dict[int, Any] = {}
        self.attention_width, self.repeated_bytes = 0, 0.0

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.held:
            self.held[storage._cdata] = storage
            self.kept[self.layer].append(storage.nbytes() / TOKENS)
        return tensor

    def attention(
        self,
        _module: Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: object,
        **_options: object,
    ) -> tuple[Tensor, None]:
        """Keep what flash attention keeps: [1, heads, T, dim] of q, k and v, and the result."""
        repeated = (
            (query.shape[1] - key.shape[1])
            * (key.shape[-1] + value.shape[-1])
            * key.element_size()
        )
        self.repeated_bytes = max(self.repeated_bytes, repeated)
        self.attention_width += query.shape[1] * query.shape[-1]
        result = query.new_empty(
            len(query), query.shape[2], query.shape[1], value.shape[-1]
        ).requires_grad_()
        for tensor in (query, key, value, result):
            self.keep(tensor)
        return result, None

    def run(self, model: PreTrainedModel) -> tuple[list[Any], list[list[float]]]:
        """(layers of the KV cache, bytes a token of each tensor that each layer keeps)."""
        import torch
        from transformers.modeling_layers import GradientCheckpointingLayer

        layers = [
            module
            for module in model.modules()
            if isinstance(module, GradientCheckpointingLayer)
        ]
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(
                lambda *_, number=number: setattr(self, "layer", number)
            )
            layer.register_forward_hook(lambda *_: setattr(self, "layer", None))
        self.held |= {
            (storage := weight.untyped_storage())._cdata: storage
            for weight in model.parameters()
        }
        ids = torch.zeros((1, TOKENS), dtype=torch.long, device="meta")
        with torch.autograd.graph.saved_tensors_hooks(self.keep, lambda tensor: tensor):
            output = model(ids, use_cache=True)
        cache = getattr(getattr(output, "past_key_values", None), "layers", ())
        grows = [one for one in cache if getattr(one, "keys", None) is not None]
        return grows, [self.kept[number] for number in range(len(layers))]
