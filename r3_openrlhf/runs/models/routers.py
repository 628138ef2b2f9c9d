"""The experts of a model, as rollout.routing_replay needs them before a start (stack/expert_routing.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.models.model_config import read_config

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
    if "output_router_logits" not in model_config.to_dict():
        raise ConfigError(
            f"rollout.routing_replay is true, but model.path {config.model.path} has no experts; use "
            "rollout.routing_replay=false"
        )
    raise ConfigError(unknown_router(config))


def unknown_router(config: R3Config) -> str:
    """Say that the model's router is none that routing replay knows."""
    return (
        f"rollout.routing_replay is true, but model.path {config.model.path} is of no type whose router "
        f"is known ({', '.join(ROUTERS)}); use rollout.routing_replay=false"
    )


def expert_bytes_of(config: R3Config, model: str) -> int:
    """Return the bytes of the experts of a token that the run keeps. model: a directory or a name on the hub."""
    if not config.rollout.routing_replay:
        return 0
    experts = experts_of(read_config(model, trusted=config.model.trust_remote_code))
    return 0 if experts is None else experts.bytes_per_token
