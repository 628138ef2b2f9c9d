"""The experts of a model, as rollout.routing_replay needs them before a start (stack/expert_routing.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# model_type of Transformers -> the class of its router, which stack/expert_routing.py knows
ROUTERS = {
    "qwen3_moe": "Qwen3MoeTopKRouter",
    "qwen2_moe": "Qwen2MoeTopKRouter",
    "olmoe": "OlmoeTopKRouter",
}
# vLLM 0.29 keeps an id in one byte up to here (fused_moe/routed_experts_capturer.py)
ONE_BYTE = 256


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a model: their number in a layer, those of a token, and all layers, dense ones too."""

    num_experts: int
    top_k: int
    num_layers: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the experts of one token, as the engine returns them."""
        width = 1 if self.num_experts <= ONE_BYTE else 2
        return width * self.top_k * self.num_layers


def experts_of(model_config: PreTrainedConfig) -> Experts | None:
    """Return the experts of a model; None: it has none, or its router is not known."""
    text = model_config.get_text_config()
    if text.model_type not in ROUTERS or not text.num_experts:
        return None
    return Experts(text.num_experts, text.num_experts_per_tok, text.num_hidden_layers)


def check_routing(config: R3Config, model_config: PreTrainedConfig) -> None:
    """ConfigError: rollout.routing_replay is on, and the model has no router that it knows."""
    if not config.rollout.routing_replay or experts_of(model_config) is not None:
        return
    text = model_config.get_text_config()
    has_experts = "output_router_logits" in model_config.to_dict()
    what = (
        f"has the type {text.model_type}, whose router is not known (known: {', '.join(ROUTERS)})"
        if has_experts or text.model_type in ROUTERS
        else "has no experts"
    )
    raise ConfigError(
        f"rollout.routing_replay is true, but model.path {config.model.path} {what}; use "
        "rollout.routing_replay=false"
    )
