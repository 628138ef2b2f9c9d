"""The vLLM Ray actor with the settings that R³ needs; everything else is OpenRLHF's."""

from __future__ import annotations

import os

import ray
from openrlhf.trainer.ray import vllm_engine

from r3_openrlhf.cpu_stack import cpu_platform
from r3_openrlhf.openrlhf_adapter.environment import config_from_environment, on_cpu

# trainer/ray/vllm_engine.py:37: the name is a Ray actor class already; this is the class that was decorated
UpstreamRolloutActor = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class.__ray_actor_class__


class R3RolloutActor(UpstreamRolloutActor):
    """Answers trainer/ray/vllm_engine.py:283-288 (`create_vllm_engines`): `max_logprobs` is 1 there and
    `logprobs_mode` only set with importance-sampling correction, otherwise the engine's log-probs are taken before
    the temperature and do not describe the sampling policy."""

    async def __init__(self, *args, **kwargs):
        config = config_from_environment()
        kwargs["logprobs_mode"] = "processed_logprobs"
        kwargs["max_logprobs"] = max(1, config.rollout.top_logprobs)
        if on_cpu():
            kwargs["worker_extension_cls"] = os.environ.get("R3_CPU_WORKER_EXTENSION", cpu_platform.WORKER_EXTENSION)
            kwargs["kv_cache_memory_bytes"] = config.cluster.cpu_kv_cache_mb * 2**20
        await UpstreamRolloutActor.__init__(self, *args, **kwargs)


RolloutRayActor = ray.remote(R3RolloutActor)
