"""The parts that do not fit, and what would make them fit."""

import copy
import itertools
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.method.errors import ConfigError
from r3_openrlhf.runs.planning.forecast import make_plan, memory_of
from r3_openrlhf.runs.planning.hardware import Gpu
from r3_openrlhf.runs.planning.shapes import ModelShape

TIGHT = 0.9  # of a GPU: fragments, and what the formulas do not know


def missing_kv_cache(config: R3Config, kv_tokens: int) -> int:
    """Tokens that an engine's KV cache lacks for data.max_len, which vLLM refuses; 0: none."""
    return max(0, config.data.max_len - kv_tokens)


def check_split(config: R3Config, *, heads: int, kv_heads: int) -> None:
    """ConfigError where vLLM cannot share a model's attention heads evenly among an engine's GPUs
    (vllm/config/model.py, verify_with_parallel_config), which it says when it starts."""
    size = config.cluster.vllm_tensor_parallel_size
    if not _shares_heads(size, heads=heads, kv_heads=kv_heads):
        others = range(1, config.cluster.gpus_per_node + 1)
        even = [str(n) for n in others if _shares_heads(n, heads=heads, kv_heads=kv_heads)]
        raise ConfigError(
            f"cluster.vllm_tensor_parallel_size is {size}, but model.path {config.model.path} has {heads} attention heads, "
            f"{kv_heads} for keys and values, which vLLM cannot share evenly; use {', '.join(even)}"
        )


def _shares_heads(size: int, *, heads: int, kv_heads: int) -> bool:
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


def fits(config: R3Config, shape: ModelShape, gpu: Gpu) -> bool:
    """Check that each phase fits, and that an engine has space for the longest row."""
    phases, kv_tokens = memory_of(config, shape, gpu)
    if missing_kv_cache(config, kv_tokens):
        return False
    return all(phase.peak <= gpu.memory_bytes for phase in phases)


def remedies(config: R3Config, shape: ModelShape, gpu: Gpu) -> list[tuple[str, ...]]:
    """Up to two ways to fit, each as "key=value": single settings that do, else pairs, else three
    together. Where several do, those that cost least come first, in the order of `_changes`."""
    changes = [
        (key, value)
        for key, value in _changes(config)
        if key != "cluster.vllm_tensor_parallel_size"
        or _shares_heads(value, heads=shape.heads, kv_heads=shape.kv_heads)
    ]
    ways: list[tuple[str, ...]] = []
    for number in (1, 2, 3):
        for chosen in itertools.combinations(changes, number):
            keys = [key for key, _ in chosen]
            if len(set(keys)) < number:
                continue
            changed = _changed(config, chosen)
            if changed is not None and fits(changed, shape, gpu):
                ways.append(tuple(f"{key}={str(value).lower()}" for key, value in chosen))
            if len(ways) == 2:
                return ways
        if ways:
            return ways
    return ways


def _changes(config: R3Config) -> list[tuple[str, Any]]:
    """Return settings that may change, cheapest first: the micro-batch, then where weights and states are."""
    train, cluster, longest = config.train, config.cluster, config.data.max_len
    changes: list[tuple[str, Any]] = []
    if not config.model.gradient_checkpointing:
        changes.append(("model.gradient_checkpointing", True))
    if train.dynamic_batch:
        of_rollout = config.rollout.max_tokens_per_gpu or train.max_tokens_per_gpu
        if of_rollout > longest:
            changes.append(("rollout.max_tokens_per_gpu", longest))
        if train.max_tokens_per_gpu > longest:
            changes.append(("train.max_tokens_per_gpu", longest))
    elif train.micro_batch_size > 1:
        changes.append(("train.micro_batch_size", 1))
    changes += [
        ("cluster.vllm_gpu_memory_utilization", share) for share in _other_shares(config)
    ]
    if not cluster.enable_sleep:
        changes.append(("cluster.enable_sleep", True))
    changes += [("train.zero_stage", stage) for stage in range(train.zero_stage + 1, 4)]
    sizes = [n * cluster.vllm_tensor_parallel_size for n in (2, 4, 8, 16)]
    changes += [
        ("cluster.vllm_tensor_parallel_size", size)
        for size in sizes
        if size <= cluster.gpus_per_node
    ]
    if not train.adam_offload:
        changes.append(("train.adam_offload", True))
    changes += [
        ("cluster.num_nodes", nodes) for nodes in (2, 4, 8, 16) if nodes > cluster.num_nodes
    ]
    return changes


def _other_shares(config: R3Config) -> list[float]:
    """Return shares of a GPU for the engine: smaller ones, then the largest, which may be larger."""
    share = config.cluster.vllm_gpu_memory_utilization
    smaller = [other for other in (0.8, 0.7, 0.6, 0.5, 0.4) if other < share]
    return [*smaller, 0.8] if share < 0.8 else smaller


def _changed(config: R3Config, changes: tuple[tuple[str, Any], ...]) -> R3Config | None:
    """Return the changed configuration; None where these settings are refused."""
    changed = copy.deepcopy(config)
    for key, value in changes:
        section, name = key.split(".")
        setattr(getattr(changed, section), name, value)
    try:
        for section in {key.split(".")[0] for key, _ in changes}:
            getattr(changed, section).__post_init__()
        changed.__post_init__()
    except ConfigError:
        return None
    return changed


def start_check(config: R3Config, shape: ModelShape, gpu: Gpu) -> str | None:
    """Before a run starts: a sentence where it will probably not fit, None where it will.

    ConfigError where the parts that no sample can change alone are larger than the GPU."""
    phases, kv_tokens = memory_of(config, shape, gpu)
    if fits(config, shape, gpu):
        return None
    ways = [" ".join(settings) for settings in remedies(config, shape, gpu)]
    use = (
        f"use {' or '.join(ways) or 'more GPUs, or a smaller model'} (r3 plan shows each part)"
    )
    surest = max(phases, key=lambda phase: phase.sure)
    worst = max(phases, key=lambda phase: phase.peak)
    if surest.sure > gpu.memory_bytes:
        raise ConfigError(
            f"this run does not fit: weights, optimizer and engine alone take {gib(surest.sure)} GiB of a GPU in the phase "
            f"{surest.name}, which has {gib(gpu.memory_bytes)}; {use}"
        )
    if missing_kv_cache(config, kv_tokens):
        return (
            f"an engine will have KV cache for {kv_tokens:,} tokens, less than data.max_len={config.data.max_len}, and vLLM will "
            f"refuse that; {use}"
        )
    return f"the phase {worst.name} is expected to take {gib(worst.peak)} GiB of a GPU, which has {gib(gpu.memory_bytes)}; {use}"


def host_check(config: R3Config, shape: ModelShape, gpu: Gpu, memory: int) -> str | None:
    """Say that the plan's host memory is more than `memory`, the bytes of this machine or job; None: it
    is not. The problems themselves count as nothing here."""
    needed = sum(make_plan(config, shape, gpu, num_problems=1).host_bytes.values())
    if needed <= memory:
        return None
    return (
        f"the run is expected to take {gib(needed)} GiB of host memory, and this machine or its job has {gib(memory)}; "
        "ask for more (--mem), or use fewer GPUs per node (r3 plan shows each part)"
    )


def gib(size: float) -> str:
    """GiB with one decimal."""
    return f"{size / 2**30:.1f}"
