"""A configuration, a model's shape and a GPU -> a Plan: bytes by phase and part, seconds, disk, history.

All models are colocated (config.ClusterConfig): on each GPU lie a policy process and a share of a vLLM engine. With
cluster.enable_sleep the engine gives its memory back after sampling, and the policy moves optimizer and gradients to the
host between updates; its bf16 weights stay (openrlhf/utils/deepspeed/deepspeed_utils.py:167-178).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.method import history_forecast
from r3_openrlhf.planning import formulas as f
from r3_openrlhf.planning.hardware import Gpu
from r3_openrlhf.planning.shapes import ModelShape

PROMPT_TOKENS = 200
HUB_PROBLEMS = {"agentica-org/DeepScaleR-Preview-Dataset": 40_315}
# Shares of a step's groups, assumed (docs/scale.md)
COLLAPSED, HARD = 0.45, 0.20
BATCHED_TOKENS = 8192  # of an engine step, as openrlhf_adapter/rollout_engine.py sets it
PROCESS_BYTES = 3 * 2**30  # host memory of a process with torch, before its first tensor. Assumed
# Host bytes per token. A response on its way to the controller has int32 ids and float32 log-probs. There it becomes an
# Experience: ids, attention and action masks in int64, three float32 or int64 tensors of log-probs, advantages, returns, KL
RESPONSE_BYTES = 4 + 4
EXPERIENCE_BYTES = 3 * 8 + 6 * 4
CONTROLLER_COPIES = 2  # the rows, and their micro-batches
# On disk, per token, compressed (benchmarks/rollout_files.py): 1.7 for text of 4 characters, and the values of the tokens of a tenth
# of the rows, ranked and recalled ones
ROLLOUT_BYTES = 2.0
TOKEN_VALUE_BYTES = 1.9  # of each kind that is kept of every row


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step on one GPU. `sure` are parts that are there whatever is sampled."""

    name: str
    parts: dict[str, int]
    sure: int
    seconds: float = 0.0

    @property
    def peak(self) -> int:
        """Bytes, all parts together."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will need. Bytes and seconds."""

    model: str
    params: int
    gpu: Gpu
    nodes: int
    gpus_per_node: int
    mean_tokens: float
    num_problems: int
    phases: tuple[Phase, ...]
    host_bytes: dict[str, int]  # of the first node
    host_s: float  # R³'s own work in the controller
    steps: int
    kv_tokens: int  # that an engine's cache holds
    disk: dict[str, int]  # what stays, at the end
    rollouts_per_day: int
    ahead: bool = False  # are rollouts sampled while a step trains, on GPUs of their own?
    coverage: dict[int, float] = field(default_factory=dict)  # epoch -> share of problems with something to recall

    @property
    def step_s(self) -> float:
        """Seconds of a step: its phases one after another, or the rest of them while the next rollouts are sampled."""
        return step_seconds(self.phases, self.host_s, ahead=self.ahead)

    @property
    def hours(self) -> float:
        """Of the whole run, without its start, evaluations and checkpoints."""
        return self.step_s * self.steps / 3600

    @property
    def steps_per_day(self) -> float:
        """At `step_s` each."""
        return 86_400 / self.step_s


def num_problems_of(config: R3Config) -> int | None:
    """Without reading a file; None where the configuration does not say."""
    if config.is_agentic:
        return config.agents.num_tasks
    size = config.data.reasoning_gym.get("size") if config.data.path.startswith("reasoning_gym:") else None
    found = size or HUB_PROBLEMS.get(config.data.path)
    if config.data.max_samples is not None:
        found = min(found or config.data.max_samples, config.data.max_samples)
    return found


def make_plan(
    config: R3Config,
    shape: ModelShape,
    gpu: Gpu,
    *,
    num_problems: int,
    mean_tokens: float | None = None,
    prompt_tokens: int = PROMPT_TOKENS,
) -> Plan:
    """mean_tokens: of a response; None: half of rollout.max_new_tokens, as the history's forecast takes it."""
    mean = min(mean_tokens or config.rollout.max_new_tokens / 2, config.rollout.max_new_tokens)
    run = _Run(config, shape, gpu, mean=mean, prompt=min(prompt_tokens, config.data.max_len))
    steps = run.steps(num_problems)
    seconds_of = (run.sampling_seconds(), run.logprobs_seconds(), run.update_seconds(), run.sync_seconds())
    phases = tuple(replace(phase, seconds=s) for phase, s in zip(run.phases(), seconds_of, strict=True))
    disk, per_step = run.disk(steps)
    host_s = run.host_seconds()
    seconds = step_seconds(phases, host_s, ahead=config.is_async)
    return Plan(
        model=config.model.path,
        params=shape.params,
        gpu=gpu,
        nodes=config.cluster.num_nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        mean_tokens=mean,
        num_problems=num_problems,
        phases=phases,
        host_bytes=run.host(),
        host_s=host_s,
        steps=steps,
        kv_tokens=run.kv_tokens,
        ahead=config.is_async,
        disk=disk,
        rollouts_per_day=int(per_step * 86_400 / seconds),
        coverage=coverage(config, num_problems=num_problems, mean_tokens=mean, steps=steps),
    )


def step_seconds(phases: tuple[Phase, ...], host_s: float, *, ahead: bool) -> float:
    """The first phase is the sampling; `ahead`: it goes on beside the others."""
    sampling, *others = (phase.seconds for phase in phases)
    rest = sum(others) + host_s
    return max(sampling, rest) if ahead else sampling + rest


def not_planned(config: R3Config) -> str | None:
    """A setting, as "key=value", whose memory no formula here has; None: there is none."""
    for name in ("ds.ring_attn_size", "ds.tensor_parallel_size"):
        value = flag(config, name)
        if value is not None and value != 1:
            return f"openrlhf.{name}={value}"
    return None


def memory_of(config: R3Config, shape: ModelShape, gpu: Gpu) -> tuple[tuple[Phase, ...], int]:
    """(the phases without their seconds, tokens that an engine's KV cache holds): what decides whether a run fits."""
    run = _Run(config, shape, gpu, mean=config.rollout.max_new_tokens / 2, prompt=PROMPT_TOKENS)
    return run.phases(), run.kv_tokens


def coverage(config: R3Config, *, num_problems: int, mean_tokens: float, steps: int) -> dict[int, float]:
    """Epoch -> share of problems and verdicts with something to recall, if each was ever seen (history/forecast.py)."""
    expected = history_forecast(config, num_problems=num_problems, mean_tokens=mean_tokens, steps=steps)
    if expected is None:
        return {}
    return {1: 0.0} | {epoch: expected.coverage for epoch in range(2, config.train.num_epochs + 1)}


class _Run:
    """The numbers that several phases share."""

    def __init__(self, config: R3Config, shape: ModelShape, gpu: Gpu, *, mean: float, prompt: int) -> None:
        self.config, self.shape, self.gpu, self.mean, self.prompt = config, shape, gpu, mean, prompt
        cluster, train = config.cluster, config.train
        self.ranks, self.stage, self.offload = config.num_policy_ranks, train.zero_stage, train.adam_offload
        self.tp, self.sleep = cluster.vllm_tensor_parallel_size, cluster.enable_sleep
        self.flash = "flash" in config.model.attn_implementation
        self.accumulate = f.FP32 if flag(config, "ds.grad_accum_dtype") == "fp32" else f.BF16
        self.hpz = int(flag(config, "ds.zpg") or 1)
        self.length = prompt + mean
        # of an agentic run: no trajectory ends before agents.max_turns
        rows = config.rows_per_step * (config.agents.max_turns if config.is_agentic else 1)
        self.reference = train.kl_coef > 0
        replay = config.algo == "r3" and config.replay.enabled and config.replay.mode == "add"
        reflects = config.algo == "r3" and config.reflection.enabled
        late = (train.num_epochs - config.reflection.first_epoch + 1) / train.num_epochs if reflects else 0.0
        self.kept = 1 - COLLAPSED if config.filters_groups else 1.0  # of the groups that are sampled
        self.recorded = rows * (1 + HARD * max(0.0, late))
        self.sampled = self.recorded / self.kept
        self.trained = self.recorded + replay * COLLAPSED * config.rollout.batch_size * config.replay.k
        self.weights = f.weight_bytes(shape, ranks=self.ranks, stage=self.stage, hpz=self.hpz)
        rank, targets = flag(config, "ds.lora.rank") or 0, flag(config, "ds.lora.target_modules") or ()
        self.adapter = shape.adapter_params(rank, [targets] if isinstance(targets, str) else targets)
        self.weights += f.BF16 * self.adapter // (self.ranks if self.stage == 3 else 1)
        self.trained_params = self.adapter or shape.params
        self.optimizer = f.optimizer_bytes(
            self.trained_params, ranks=self.ranks, stage=self.stage, offloaded=self.offload
        )
        self.gradients = f.gradient_bytes(
            self.trained_params, ranks=self.ranks, stage=self.stage, offloaded=self.offload, accumulate=self.accumulate
        )
        self.states = self.optimizer + self.gradients  # what sleeps
        self.engine_weights = f.BF16 * shape.params // self.tp
        self.kv_tokens = self._kv_tokens()

    def steps(self, num_problems: int) -> int:
        """Of the whole run: all epochs, or what ends it earlier."""
        train, batch = self.config.train, self.config.rollout.batch_size
        steps = math.ceil(num_problems * self.kept / batch) * train.num_epochs
        if train.max_generated_tokens is not None:
            steps = min(steps, math.ceil(train.max_generated_tokens / (self.sampled * self.mean)))
        return min(steps, train.max_steps or steps)

    # ── parts of memory ──

    @property
    def _policy_contexts(self) -> int:
        return f.CONTEXTS.cuda * (2 if self.reference else 1) + (f.CONTEXTS.nccl if self.ranks > 1 else 0)

    @property
    def _engine_context(self) -> int:
        eager = self.config.cluster.vllm_enforce_eager
        return f.CONTEXTS.cuda + (0 if eager else f.CONTEXTS.graphs)

    @property
    def _engine_share(self) -> int:
        """What vLLM takes when it is awake: its weights, its steps, and KV cache for all the rest."""
        return int(self.config.cluster.vllm_gpu_memory_utilization * self.gpu.memory_bytes)

    @property
    def _reference_bytes(self) -> int:
        weights = f.weight_bytes(self.shape, ranks=self.ranks, stage=self.stage)
        return weights if self.reference and not flag(self.config, "ref.offload") else 0

    def _kv_tokens(self) -> int:
        sequences = self.config.sequences_per_engine
        tokens = max(self.config.cluster.vllm_max_num_batched_tokens or BATCHED_TOKENS, sequences)
        step = f.engine_step_bytes(self.shape, batched_tokens=tokens, sequences=sequences) // self.tp
        cache = self._engine_share - self.engine_weights - step - f.CONTEXTS.cuda
        return max(0, cache * f.kv_split(self.shape, self.tp) // f.kv_bytes_per_token(self.shape))

    def _asleep(self) -> dict[str, int]:
        """The engine between two samplings. Without sleep it keeps everything; in asynchronous training, on another GPU."""
        if self.config.is_async:
            return {"engine": 0}
        return {"engine": self._engine_context if self.sleep else self._engine_share}

    def _live(self) -> int:
        """What ZeRO 3 gathers beside its share."""
        return f.BF16 * f.gathered_params(self.shape) if self.stage == 3 and self.ranks > 1 else 0

    def _policy_at_rest(self) -> dict[str, int]:
        states = 0 if self.sleep else self.states
        return {"weights": self.weights + self._reference_bytes, "optimizer, gradients": states}

    def _tokens(self, section: str) -> int:
        """Of the largest micro-batch."""
        config = self.config
        longest = config.data.max_len
        if config.train.dynamic_batch:
            limit = config.rollout.max_tokens_per_gpu if section == "rollout" else None
            return max(longest, limit or config.train.max_tokens_per_gpu)
        return longest * getattr(config, section).micro_batch_size

    # ── phases ──

    def phases(self) -> tuple[Phase, ...]:
        return self.sampling(), self.logprobs(), self.update(), self.sync()

    def sampling(self) -> Phase:
        kv = self.kv_tokens * f.kv_bytes_per_token(self.shape) // f.kv_split(self.shape, self.tp)
        ahead = self.config.is_async  # the policy is on other GPUs then
        policy = {} if ahead else self._policy_at_rest()
        parts = policy | {
            "engine's weights": self.engine_weights,
            "KV cache": kv,
            "engine's steps": max(0, self._engine_share - self.engine_weights - kv),
            # the engine's own is in its share
            "contexts": (0 if ahead else self._policy_contexts) + self._engine_context - f.CONTEXTS.cuda,
        }
        sure = sum(policy.values()) + max(self._engine_share, self.engine_weights)
        return Phase("sampling", parts, sure)

    def sampling_seconds(self) -> float:
        engines = self.ranks // self.tp
        per_engine = -(-int(self.sampled) // engines)
        lengths = f.response_lengths(per_engine, mean=self.mean, longest=self.config.rollout.max_new_tokens)
        fitting = max(1, int(self.kv_tokens / self.length))
        return f.decode_seconds(
            self.shape,
            lengths,
            prompt=self.prompt,
            slots=min(self.config.sequences_per_engine, fitting),
            tensor_parallel=self.tp,
            flops=self.gpu.flops,
            bandwidth=self.gpu.bandwidth,
        )

    @property
    def _in_chunks(self) -> bool:
        return self.config.train.logits_chunk_tokens is not None

    def _tokens_with_logits(self, tokens: int) -> int:
        return min(tokens, self.config.train.logits_chunk_tokens or tokens)

    def logprobs(self) -> Phase:
        tokens = self._tokens("rollout")
        policy = self._policy_at_rest()
        parts = policy | {
            "gathered weights": self._live(),
            "activations": f.forward_bytes(self.shape, tokens=tokens),
            "logits": f.forward_logits_bytes(self.shape, tokens=self._tokens_with_logits(tokens)),
            "contexts": self._policy_contexts,
            **self._asleep(),
        }
        sure = sum(policy.values()) + self._asleep()["engine"] * (not self.sleep)
        return Phase("log-probs", parts, sure)

    def logprobs_seconds(self) -> float:
        passes = 2 if self.reference else 1
        flops = passes * f.forward_flops(self.shape, tokens=self.trained * self.length, length=self.length)
        return flops / (self.ranks * f.RATES.forward * self.gpu.flops)

    def update(self) -> Phase:
        tokens, checkpointing = self._tokens("train"), self.config.model.gradient_checkpointing
        of_batch = {
            "activations": f.activation_bytes(
                self.shape, tokens=tokens, checkpointing=checkpointing, flash=self.flash
            ),
            "logits": f.train_logits_bytes(
                self.shape,
                tokens=self._tokens_with_logits(tokens),
                entropy=self.config.train.entropy_coef is not None,
            ),
            "last layer's gradient": f.FP32
            * self.shape.vocab
            * self.shape.hidden
            * (self._in_chunks and not self.adapter),
            "gradient bucket": f.bucket_bytes(self.trained_params, stage=self.stage, ranks=self.ranks),
            "gathered weights": self._live(),
        }
        at_step = f.step_gradient_bytes(
            self.trained_params, ranks=self.ranks, stage=self.stage, offloaded=self.offload
        )
        if at_step > sum(of_batch.values()):  # the optimizer's step comes when activations are gone
            of_batch = {"fp32 gradients": at_step}
        states = {
            "weights": self.weights + self._reference_bytes,
            "optimizer": self.optimizer,
            "gradients": self.gradients,
        }
        parts = states | of_batch | {"contexts": self._policy_contexts} | self._asleep()
        sure = sum(states.values()) + at_step + self._asleep()["engine"] * (not self.sleep)
        return Phase("update", parts, sure)

    def update_seconds(self) -> float:
        checkpointing = self.config.model.gradient_checkpointing
        tokens_trained = self.trained * self.length * self.config.train.inner_epochs
        flops = f.update_flops(self.shape, tokens=tokens_trained, length=self.length, checkpointing=checkpointing)
        seconds = flops / (self.ranks * f.RATES.update * self.gpu.flops)
        if self.offload:  # gradients down, weights up, and Adam on the host
            seconds += 3 * f.BF16 * self.trained_params / self.ranks / f.RATES.host_link
        return seconds

    def sync(self) -> Phase:
        largest = f.BF16 * self.shape.vocab * self.shape.hidden
        policy = self._policy_at_rest()
        engine = {"engine's weights": self.engine_weights} if self.sleep else self._asleep()
        context = self._engine_context if self.sleep else 0
        parts = policy | engine | {"tensor in flight": largest, "contexts": self._policy_contexts + context}
        weights = 0 if self.config.is_async else self.engine_weights
        return Phase("sync", parts, sum(policy.values()) + weights)

    def sync_seconds(self) -> float:
        state_bytes = self.states if self.sleep and not self.offload else 0
        return f.sync_seconds(self.shape, tensor_parallel=self.tp, state_bytes=state_bytes)

    # ── around the GPUs ──

    def host(self) -> dict[str, int]:
        """Of the first node, where the controller is."""
        per_node, tokens = self.config.policy_gpus_per_node, self.trained * self.length
        asleep = per_node * (self.states + self.engine_weights) if self.sleep else 0
        offloaded = 0
        if self.offload:  # fp32 master, Adam, fp32 gradients
            asleep = per_node * self.engine_weights if self.sleep else 0
            offloaded = 4 * f.FP32 * self.trained_params * per_node // self.ranks
        return {
            "asleep: optimizer, gradients, engine's weights": asleep,
            "offloaded optimizer": offloaded,
            "processes": (2 * per_node + 2) * PROCESS_BYTES,
            "controller's rows": int(CONTROLLER_COPIES * EXPERIENCE_BYTES * tokens),
            "Ray's object store": int((RESPONSE_BYTES + EXPERIENCE_BYTES) * tokens),
        }

    def host_seconds(self) -> float:
        """The controller's own work: CPU seconds per token of `benchmarks/step_overhead.py host` (docs/performance.md)."""
        return 2.53 / (128 * 16 * 8192) * self.trained * self.mean if self.config.algo == "r3" else 0.0

    def disk(self, steps: int) -> tuple[dict[str, int], float]:
        """(what stays at the end, bytes of rollouts a step)."""
        config, checkpoint = self.config, self.config.checkpoint
        kept = 1 if checkpoint.save_steps == -1 else min(checkpoint.max_num, max(1, steps // checkpoint.save_steps))
        written = 1 if checkpoint.save_steps == -1 else max(1, steps // checkpoint.save_steps)
        best = config.held_out.path is not None  # its copy stays beside the newest
        copies = min(written, (checkpoint.max_num_hf or written) + best)
        kinds = (config.logging.token_entropy == "all") + (config.logging.token_logprobs == "all")
        per_token = ROLLOUT_BYTES * config.logging.rollout_text + TOKEN_VALUE_BYTES * kinds
        per_step = per_token * self.recorded * self.mean
        found: dict[str, int] = {
            "checkpoints": kept * f.checkpoint_bytes(self.shape.params, self.trained_params),
            "models": (copies * checkpoint.save_hf + 1) * f.BF16 * self.shape.params,
            "rollouts": int(per_step * steps),
        }
        if config.algo == "r3":
            found["history, at most"] = config.history.max_bytes
        return found, per_step


def flag(config: R3Config, name: str) -> Any:
    """One of OpenRLHF's own flags that the configuration passes on; None where it does not."""
    flags: Any = config.openrlhf
    if name in flags:
        return flags[name]
    for part in name.split("."):
        flags = flags.get(part) if isinstance(flags, dict) else None
    return flags
