"""The vLLM Ray actor with the settings that R³ needs; everything else is OpenRLHF's."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import ray
from openrlhf.trainer.ray import vllm_engine
from vllm.inputs import TokensPrompt

from r3_openrlhf.config import R3Config
from r3_openrlhf.machine.cpu import cpu_platform
from r3_openrlhf.stack.blocked_signals import keep_blocked
from r3_openrlhf.stack.engine_notes import EngineFacts, facts_of
from r3_openrlhf.stack.environment import config_from_environment, on_cpu
from r3_openrlhf.stack.partial_engines import Occupancy
from r3_openrlhf.stack.rollout_executor import TOP_LOGPROBS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

DEFAULT_BATCHED_TOKENS = 8192
PAUSE_POLL_S = 0.01
# by its name: vLLM imports it elsewhere
WORKER_EXTENSION = "r3_openrlhf.stack.engine_worker.WorkerWrap"
MAX_SOCKET_PATH = 107  # Linux' limit (unix(7)) without the zero at its end
UUID_CHARS = 36
# trainer/ray/vllm_engine.py:37: the name is a Ray actor; this is the decorated class
UpstreamRolloutActor: Any = (
    vllm_engine.RolloutRayActor.__ray_metadata__.modified_class.__ray_actor_class__
)


def engine_limits(config: R3Config, *, cpu: bool) -> dict[str, int]:
    """Sequences and tokens of an engine step. An engine made from engine arguments takes 128 and
    2,048 unless it is told (vllm/engine/arg_utils.py:2751, config/scheduler.py:42).

    Deterministic on a CPU: one sequence, its prompt whole. The last digits of a batch's logits
    depend on its rows, and vLLM ends if a seeded prompt comes in parts (v1/worker/gpu_model_runner.py:3783)."""
    if cpu and config.train.deterministic:
        return {"max_num_seqs": 1, "max_num_batched_tokens": max(2048, config.data.max_len)}
    limits = {"max_num_seqs": config.sequences_per_engine}
    if not cpu:
        limits["max_num_batched_tokens"] = max(
            DEFAULT_BATCHED_TOKENS, config.sequences_per_engine
        )
    return limits


def keep_files_in(session_dir: str) -> None:
    """Put vLLM's files where Ray keeps the session's, or one above; they go with them: sockets
    (vllm/utils/network_utils.py:157) and the file by which its processes meet (:136)."""
    os.environ["TMPDIR"] = os.path.dirname(session_dir)  # a shorter path than the session's own
    tempfile.tempdir = None
    for folder in (session_dir, os.path.dirname(session_dir)):
        if len(folder) + 1 + UUID_CHARS <= MAX_SOCKET_PATH:
            os.environ.setdefault("VLLM_RPC_BASE_PATH", folder)
            return


class PausableEngine:
    """An engine as the executor asks it for responses that may be paused (rollout.partial).

    Others of the actor's requests, such as held-out problems, are never paused."""

    def __init__(self, actor: Any, *, places: int) -> None:
        self.actor = actor
        self.occupancy = Occupancy(places)
        self.is_pausing = False
        self._requests: set[str] = set()
        self._num_groups = 0

    @property
    def llm(self) -> AsyncLLM:
        """Return vLLM's engine."""
        return self.actor.llm

    @property
    def policy_step(self) -> int | None:
        """Return the policy step of the weights, if the actor was told."""
        return self.actor.policy_step

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: object
    ) -> RequestOutput | None:
        """Sample as upstream's actor (vllm_engine.py:154), under a name by which it can be ended."""
        request = uuid.uuid4().hex
        self._requests.add(request)
        self.occupancy.change(1)
        try:
            outputs = self.llm.generate(
                TokensPrompt(prompt_token_ids=prompt_token_ids),
                deepcopy(sampling_params),
                request_id=request,
            )
            final = None
            async for output in outputs:
                final = output
            return final
        finally:
            self._requests.discard(request)
            self.occupancy.change(-1)

    async def continue_group(
        self,
        prompt: str,
        label: str,
        samples: list,
        sampling_params: SamplingParams,
        max_length: int,
        hf_tokenizer: PreTrainedTokenizerBase,
        policy_step: int | None,
    ) -> list:
        """Go on with the unfinished responses to a prompt until they are whole or paused.

        Args:
            samples: of each response its pieces so far; or the whole response, or None in its place.
            policy_step: of the weights in here; None: the actor was told.

        Returns:
            the same, with what became of them."""
        executor = self.actor.executor
        self._num_groups += 1
        try:
            found = list(samples)
            places = [place for place, one in enumerate(samples) if isinstance(one, list)]
            tasks = [
                executor.execute(
                    prompt=prompt,
                    label=label,
                    sampling_params=sampling_params,
                    max_length=max_length,
                    hf_tokenizer=hf_tokenizer,
                    llm_engine=self,
                    earlier=samples[place],
                    policy_step=policy_step,
                )
                for place in places
            ]
            for place, one in zip(places, await asyncio.gather(*tasks), strict=True):
                found[place] = one
            is_whole = not any(isinstance(one, list) for one in found)
            if is_whole and executor.reads_groups:
                found = await executor.graded(found)
            return found
        finally:
            self._num_groups -= 1

    async def pause(self) -> None:
        """End the sampling of all groups that were asked before; `continue_group` returns their pieces.

        A request may reach vLLM only after it was told to end all, so it is told again."""
        self.is_pausing = True
        try:
            while self._num_groups:
                if self._requests:
                    await self.llm.abort(list(self._requests))
                await asyncio.sleep(PAUSE_POLL_S)
        finally:
            self.is_pausing = False


class R3RolloutActor(UpstreamRolloutActor):
    """Answers trainer/ray/vllm_engine.py:283-288 (`create_vllm_engines`): `max_logprobs` is 1 there
    and `logprobs_mode` only set with importance-sampling correction, otherwise the engine's
    log-probs are taken before the temperature and do not describe the sampling policy."""

    # optimizer steps of the weights in here; None: the caller knows
    policy_step: int | None = None
    pausable: PausableEngine | None = None  # with rollout.partial

    async def __init__(self, *args, **kwargs):
        keep_blocked()
        keep_files_in(ray._private.worker._global_node.get_session_dir_path())
        config = config_from_environment()
        kwargs["logprobs_mode"] = "processed_logprobs"
        kwargs["max_logprobs"] = TOP_LOGPROBS
        kwargs["trust_remote_code"] = config.model.trust_remote_code  # upstream: True
        kwargs |= engine_limits(config, cpu=on_cpu())
        if config.rollout.routing_replay:
            kwargs["enable_return_routed_experts"] = True  # vllm/config/model.py:246
        kwargs["worker_extension_cls"] = WORKER_EXTENSION
        if config.rollout.partial:
            self.pausable = PausableEngine(self, places=kwargs["max_num_seqs"])
        if on_cpu():
            kwargs["worker_extension_cls"] = os.environ.get(
                "R3_CPU_WORKER_EXTENSION", cpu_platform.WORKER_EXTENSION
            )
            kwargs["kv_cache_memory_bytes"] = cpu_platform.KV_CACHE_BYTES
        await UpstreamRolloutActor.__init__(self, *args, **kwargs)

    async def facts(self) -> EngineFacts:
        """Return the engine's settings after its start."""
        return facts_of(self.llm)

    async def generate_responses(
        self,
        prompt: str,
        label: str,
        sampling_params,
        max_length: int,
        hf_tokenizer,
        num_samples: int = 1,
        images=None,
    ):
        """Upstream's (vllm_engine.py:183). A trajectory gives a list: turns are responses."""
        found = await UpstreamRolloutActor.generate_responses(
            self, prompt, label, sampling_params, max_length, hf_tokenizer, num_samples, images
        )
        if getattr(self.executor, "reads_groups", False):
            found = await self.executor.graded(found)
        return [
            response for one in found for response in (one if isinstance(one, list) else [one])
        ]

    async def continue_group(self, **asked: Any) -> list:
        """Go on with unfinished responses until they are whole or paused (PausableEngine)."""
        assert self.pausable is not None
        return await self.pausable.continue_group(**asked)

    async def pause_groups(self) -> None:
        """Pause the responses of all groups that were asked before (PausableEngine)."""
        assert self.pausable is not None
        await self.pausable.pause()

    async def take_occupancy(self) -> float:
        """Return the share of the engine's places that they took since the last call."""
        assert self.pausable is not None
        return self.pausable.occupancy.take()

    async def set_policy_step(self, step: int) -> None:
        """Record that the weights just received are those after `step` optimizer steps (asynchronous)."""
        self.policy_step = step


RolloutRayActor = ray.remote(R3RolloutActor)
