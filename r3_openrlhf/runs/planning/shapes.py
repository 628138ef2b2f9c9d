"""The shape of a decoder-only transformer: gated MLP, grouped queries (Llama, Qwen2, Qwen3)."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError, quoted

KINDS = ("llama", "qwen2", "qwen3", "mistral")  # config.json's model_type


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Names as in config.json, shortened."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool  # one matrix is both embedding and head
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def layer_params(self) -> int:
        """Two norms, q, k, v, o, and gate, up, down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * q + 2 * kv) + (q + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def params(self) -> int:
        """All of them; a tied head counts once."""
        return self.layers * self.layer_params + self.hidden + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def matmul_params(self) -> int:
        """Weights that multiply each token: all but the embedding, which is looked up."""
        return self.params - (0 if self.tied else self.vocab * self.hidden)

    def adapter_params(self, rank: int, targets: Collection[str] = ()) -> int:
        """LoRA parameters: rank x (in + out) per layer of `targets`; empty: all but the head."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {
            "q_proj": self.hidden + q,
            "k_proj": self.hidden + kv,
            "v_proj": self.hidden + kv,
            "o_proj": q + self.hidden,
            "gate_proj": self.hidden + self.intermediate,
            "up_proj": self.hidden + self.intermediate,
            "down_proj": self.intermediate + self.hidden,
        }
        return self.layers * rank * sum(size for name, size in sizes.items() if not targets or name in targets)

    @property
    def tensors(self) -> int:
        """Parameters as named tensors, which the weight sync sends one by one."""
        return self.layers * (9 + 3 * self.qkv_bias + 2 * self.qk_norm) + (2 if self.tied else 3)


def _qwen2(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocab: int, tied: bool
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=vocab,
        tied=tied,
        qkv_bias=True,
    )


# config.json of the models of these names on the Hugging Face hub
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": _qwen2(24, 896, 4864, 14, 2, 151936, True),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(24, 896, 4864, 14, 2, 151936, True),
    "Qwen/Qwen2.5-1.5B": _qwen2(28, 1536, 8960, 12, 2, 151936, True),
    "Qwen/Qwen2.5-7B": _qwen2(28, 3584, 18944, 28, 4, 152064, False),
    "Qwen/Qwen2.5-32B": _qwen2(64, 5120, 27648, 40, 8, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _qwen2(28, 1536, 8960, 12, 2, 151936, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen2(28, 3584, 18944, 28, 4, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": _qwen2(64, 5120, 27648, 40, 8, 152064, False),
    "meta-llama/Llama-3.1-8B": ModelShape(
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
        tied=False,
    ),
    "HuggingFaceTB/SmolLM2-135M": ModelShape(
        layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocab=49152, tied=True
    ),
    # built here (runs/models/tiny.py, tiny_agent.py, tiny_code.py)
    "tiny": _qwen2(2, 64, 128, 2, 1, 448, False),
    "tiny_agent": _qwen2(2, 64, 128, 2, 1, 384, False),
    "tiny_code": _qwen2(2, 64, 128, 2, 1, 448, False),
}
SAME = {"smollm2": "HuggingFaceTB/SmolLM2-135M"}  # names of this project


def shape_of(model: str) -> ModelShape:
    """The shape of a directory's config.json, or of a published name. ConfigError for others."""
    file = Path(model) / "config.json"
    if file.is_file():
        return _read(file)
    name = SAME.get(model, model)
    for published in (name, name.removesuffix("-Instruct")):
        if published in PUBLISHED:
            return PUBLISHED[published]
    raise ConfigError(
        f"model.path is {model}: there is no config.json and its shape is not in r3_openrlhf/runs/planning/shapes.py; use a "
        f"directory that holds the model, or one of {', '.join(PUBLISHED)}"
    )


def known_shape(model: str) -> ModelShape | None:
    """`shape_of`; None where the plan does not know the model."""
    try:
        return shape_of(model)
    except ConfigError:
        return None


def _read(file: Path) -> ModelShape:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        kind = found["model_type"]
        if kind not in KINDS:
            raise ConfigError(f"{file} is of a {kind} model; the plan knows {', '.join(KINDS)}")
        heads, hidden = found["num_attention_heads"], found["hidden_size"]
        return ModelShape(
            layers=found["num_hidden_layers"],
            hidden=hidden,
            intermediate=found["intermediate_size"],
            heads=heads,
            kv_heads=found.get("num_key_value_heads") or heads,
            head_dim=found.get("head_dim") or hidden // heads,
            vocab=found["vocab_size"],
            tied=bool(found.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2" or bool(found.get("attention_bias", False)),
            qk_norm=kind == "qwen3",
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read as a model's shape: {quoted(error)}; restore it from a copy"
        ) from error
