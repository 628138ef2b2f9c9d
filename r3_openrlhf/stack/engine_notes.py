"""Compare a started vLLM engine with what the run asked for: sentences for the first page."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

# --ds.param_dtype -> vLLM's and torch's word
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


class EngineFacts(NamedTuple):
    """Settings of an engine after its start: vLLM may have changed those that it was given."""

    max_model_len: int  # tokens of prompt and response
    dtype: str  # of the weights, as torch names it
    has_prefix_cache: bool


def facts_of(engine: "AsyncLLM") -> EngineFacts:
    """Read the settings of an engine (vllm/v1/engine/async_llm.py:118, `vllm_config`)."""
    settings = engine.vllm_config
    return EngineFacts(
        max_model_len=settings.model_config.max_model_len,
        dtype=str(settings.model_config.dtype).removeprefix("torch."),
        has_prefix_cache=bool(settings.cache_config.enable_prefix_caching),
    )


def engine_notes(
    facts: EngineFacts, *, max_len: int, policy_dtype: str, wants_prefix_cache: bool
) -> list[str]:
    """Return a sentence for each setting of the engine that differs from the run's.

    Args:
        max_len: tokens that the run asks for (data.max_len).
        policy_dtype: of the policy's weights, as --ds.param_dtype says.
        wants_prefix_cache: a run asks for a prefix cache on GPUs, not on CPUs."""
    found = []
    if facts.max_model_len != max_len:
        found.append(
            f"engine: it takes {facts.max_model_len:,} tokens of prompt and response, and data.max_len is {max_len:,}"
        )
    policy = DTYPES.get(policy_dtype, policy_dtype)
    if facts.dtype != policy:
        found.append(
            f"engine: its weights are {facts.dtype}, the policy's {policy}, so log-probs of the two differ more"
        )
    if wants_prefix_cache and not facts.has_prefix_cache:
        found.append(
            "engine: vLLM turned the prefix cache off for this model, so each response computes its prompt again"
        )
    return found
