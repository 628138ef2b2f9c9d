"""A configuration, a model's shape and a GPU -> a Plan: bytes by phase, seconds, disk, history.

Models are colocated (config.ClusterConfig): each GPU has a policy process and a share of an engine.
With cluster.enable_sleep the engine frees its memory after sampling, and the policy's optimizer and
gradients are on the host between updates; bf16 weights stay
(openrlhf/utils/deepspeed/deepspeed_utils.py:167-178)."""

import math
from dataclasses import dataclass, replace
from typing import Any

from r3_openrlhf.config import R3Config
from r3_openrlhf.config.words import TokenValues
from r3_openrlhf.method.core.distill import TaughtRows
from r3_openrlhf.method.r3 import FIRST_REFLECTION_EPOCH
from r3_openrlhf.runs.planning import formulas as f
from r3_openrlhf.runs.planning.hardware import Gpu
from r3_openrlhf.runs.planning.history_forecast import PROMPT_TOKENS
from r3_openrlhf.runs.planning.shapes import ModelShape

HUB_PROBLEMS = {"agentica-org/DeepScaleR-Preview-Dataset": 40_315, "openai/gsm8k": 7_473}
# Shares of a step's groups, assumed (docs/cluster.md#planning-a-run)
COLLAPSED, HARD = 0.45, 0.20
TAUGHT = 0.5  # of a step's rows: those that fail and have a success to show
BATCHED_TOKENS = 8192  # of an engine step, as stack/rollout_engine.py sets it
# host memory of a process with torch, before its first tensor. Assumed
PROCESS_BYTES = 3 * 2**30
# Host bytes per token. In Ray's store a response on its way (int32 ids, float32 log-probs) and its
# Experience: ids, attention, action masks in int64, three of log-probs, advantages, returns, KL; in
# the controller the rows, and their micro-batches
ROW_BYTES = 4 + 4 + 3 * (3 * 8 + 6 * 4)
# of each token that a loss on logits compares (distill.top_k): int32 ids and float32 log-probs, on their way
# from the policy, in the controller, on their way to the update and there
KEPT_BYTES = 4 * (4 + 4)
# of a row's experts (rollout.routing_replay): the response's in Ray's store, the rollout's in the
# controller, and the arguments of the passes and of the update
EXPERT_COPIES = 4
# On disk, per token, compressed (benchmarks/storage.py): 1.4 to 1.7 for text of 4 characters, and
# the values of the tokens of a tenth of the rows, ranked and recalled ones
ROLLOUT_BYTES = 2.0
TOKEN_VALUE_BYTES = 1.9  # of each kind that is kept of every row


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step on one GPU. `sure` are parts that do not depend on what is sampled."""

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
    """The needs of a run. Bytes and seconds."""

    model: str
    params: int
    gpu: Gpu
    nodes: int
    gpus_per_node: int
    mean_tokens: float
    num_problems: int
    phases: tuple[Phase, ...]
    host_bytes: dict[str, int]  # of the first node
    steps: int
    kv_tokens: int  # that an engine's cache holds
    disk: dict[str, int]  # what stays, at the end
    ahead: bool  # are rollouts sampled while a step trains, on GPUs of their own?
    expert_bytes: int  # of the experts of a token, with rollout.routing_replay

    @property
    def step_s(self) -> float:
        """Seconds of a step: phases in turn, or the later ones while the next rollouts come."""
        sampling, *others = (phase.seconds for phase in self.phases)
        return max(sampling, sum(others)) if self.ahead else sampling + sum(others)

    @property
    def hours(self) -> float:
        """Hours of the whole run, without its start, evaluations and checkpoints."""
        return self.step_s * self.steps / 3600


def num_problems_of(config: R3Config) -> int | None:
    """Return the number without reading a file; None where the configuration does not say."""
    size = (
        config.data.reasoning_gym.get("size")
        if config.data.path.startswith("reasoning_gym:")
        else None
    )
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
    rates: f.Rates = f.RATES,
) -> Plan:
    """mean_tokens: of a response; None: half of rollout.max_new_tokens, as in the history."""
    mean = min(mean_tokens or config.rollout.max_new_tokens / 2, config.rollout.max_new_tokens)
    run = _Run(config, shape, gpu, mean=mean, prompt=min(prompt_tokens, config.data.max_len))
    steps = run.steps(num_problems)
    phases = tuple(
        replace(phase, seconds=s)
        for phase, s in zip(run.phases(), run.seconds(rates), strict=True)
    )
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
        steps=steps,
        kv_tokens=run.kv_tokens,
        ahead=config.is_async,
        expert_bytes=shape.expert_bytes if config.rollout.routing_replay else 0,
        disk=run.disk(steps),
    )


def not_planned(config: R3Config) -> str | None:
    """Return a setting, as "key=value", whose memory no formula here has; None: there is none."""
    for name in ("ds.ring_attn_size", "ds.tensor_parallel_size"):
        value = config.flag(name)
        if value is not None and value != 1:
            return f"openrlhf.{name}={value}"
    return None


def memory_of(config: R3Config, shape: ModelShape, gpu: Gpu) -> tuple[tuple[Phase, ...], int]:
    """(phases without seconds, tokens of an engine's KV cache): decides if a run fits."""
    run = _Run(config, shape, gpu, mean=config.rollout.max_new_tokens / 2, prompt=PROMPT_TOKENS)
    return run.phases(), run.kv_tokens


class _Run:
    """The numbers that several phases share."""

    def __init__(
        self, config: R3Config, shape: ModelShape, gpu: Gpu, *, mean: float, prompt: int
    ) -> None:
        self.config, self.shape, self.gpu, self.mean, self.prompt = (
            config,
            shape,
            gpu,
            mean,
            prompt,
        )
        cluster, train, is_r3 = config.cluster, config.train, config.algorithm.keeps_history
        self.ranks, self.offload = config.num_policy_ranks, train.adam_offload
        self.tp, self.sleep, self.ahead = (
            cluster.vllm_tensor_parallel_size,
            cluster.enable_sleep,
            config.is_async,
        )
        self.length = prompt + mean
        # at most
        rows = config.rows_per_step * (config.agents.max_turns if config.is_agentic else 1)
        reflects = is_r3 and config.reflection.enabled
        late = (
            (train.num_epochs - FIRST_REFLECTION_EPOCH + 1) / train.num_epochs
            if reflects
            else 0.0
        )
        self.kept = 1 - COLLAPSED if config.filters_groups else 1.0  # of the groups sampled
        self.recorded = rows * (1 + HARD * max(0.0, late))
        self.sampled = self.recorded / self.kept
        replay = is_r3 and config.replay.enabled and config.replay.mode == "add"
        self.trained = (
            self.recorded + replay * COLLAPSED * config.rollout.batch_size * config.replay.k
        )

        self.zero = f.Zero(self.ranks, train.zero_stage, self.offload)
        rank, targets = (
            config.flag("ds.lora.rank") or 0,
            config.flag("ds.lora.target_modules") or (),
        )
        self.adapter = shape.adapter_params(
            rank, [targets] if isinstance(targets, str) else targets
        )
        self.trained_params = self.adapter or shape.params
        self.weights = self.zero.weights(shape.params, hpz=int(config.flag("ds.zpg") or 1))
        self.weights += self.zero.weights(self.adapter)
        self.reference = train.kl_coef > 0
        if self.reference and not config.flag("ref.offload"):
            self.weights += self.zero.weights(shape.params)
        accumulate = f.FP32 if config.flag("ds.grad_accum_dtype") == "fp32" else f.BF16
        self.optimizer = self.zero.optimizer(self.trained_params)
        self.gradients = self.zero.gradients(self.trained_params, accumulate=accumulate)
        # a model as large as the policy, with the same states; while one updates the other's sleep
        self.critic = config.algorithm.has_critic
        self.weights += self.critic * self.zero.weights(shape.params)
        self.of_one = self.optimizer + self.gradients
        self.states = self.of_one * (1 + self.critic)  # what sleeps
        self.live = self.zero.gathered(shape.params)
        self.policy_contexts = f.CUDA_CONTEXT * (
            1 + self.reference + self.critic
        ) + f.NCCL_BUFFERS * (self.ranks > 1)

        self.engine_weights = f.BF16 * shape.params // self.tp
        self.engine_context = f.CUDA_CONTEXT + f.CUDA_GRAPHS * (
            not config.flag("vllm.enforce_eager")
        )
        # what vLLM takes when it is awake: its weights, its steps, and KV cache for all the rest
        self.engine_share = int(cluster.vllm_gpu_memory_utilization * gpu.memory_bytes)
        sequences = config.sequences_per_engine
        tokens = max(BATCHED_TOKENS, sequences)
        step = f.engine_step_bytes(shape, batched_tokens=tokens, sequences=sequences) // self.tp
        cache = self.engine_share - self.engine_weights - step - f.CUDA_CONTEXT
        self.kv_tokens = max(0, cache * f.kv_split(shape, self.tp) // shape.kv_bytes)
        # between samplings: all without sleep; in asynchronous training it is on another GPU
        self.engine_at_rest = (
            0 if self.ahead else self.engine_context if self.sleep else self.engine_share
        )
        models = 1 + self.critic
        self.at_rest = {
            "weights": self.weights,
            "optimizer, gradients": 0 if self.sleep else self.states,
            "host Adam's buffer": models * self.zero.offload_buffer(shape.largest),
        }

    def steps(self, num_problems: int) -> int:
        """Count the steps of the whole run: all epochs, or what ends it earlier."""
        train, batch = self.config.train, self.config.rollout.batch_size
        steps = math.ceil(num_problems * self.kept / batch) * train.num_epochs
        if train.max_generated_tokens is not None:
            steps = min(
                steps, math.ceil(train.max_generated_tokens / (self.sampled * self.mean))
            )
        return min(steps, train.max_steps or steps)

    def _tokens(self, section: str) -> tuple[int, int]:
        """Tokens of the largest micro-batch, and those whose logits are in memory at once."""
        longest, train = self.config.data.max_len, self.config.train
        if section == "rollout" and self.config.distill.enabled:
            longest = max(longest, self.config.longest_taught_row)
        tokens = longest * getattr(self.config, section).micro_batch_size
        if train.dynamic_batch:
            limit = self.config.rollout.max_tokens_per_gpu if section == "rollout" else None
            tokens = max(longest, limit or train.max_tokens_per_gpu)
        return tokens, min(tokens, train.logits_chunk_tokens or tokens)

    # ── memory of the phases ──

    def phases(self) -> tuple[Phase, ...]:
        return self.sampling(), self.logprobs(), self.update(), self.sync()

    def sampling(self) -> Phase:
        kv = self.kv_tokens * self.shape.kv_bytes // f.kv_split(self.shape, self.tp)
        policy = {} if self.ahead else self.at_rest  # the policy is on other GPUs then
        contexts = (0 if self.ahead else self.policy_contexts) + self.engine_context
        parts = policy | {
            "engine's weights": self.engine_weights,
            "KV cache": kv,
            "engine's steps": max(0, self.engine_share - self.engine_weights - kv),
            "contexts": contexts - f.CUDA_CONTEXT,  # the engine's own is in its share
        }
        return Phase(
            "sampling",
            parts,
            sum(policy.values()) + max(self.engine_share, self.engine_weights),
        )

    def logprobs(self) -> Phase:
        tokens, with_logits = self._tokens("rollout")
        parts = self.at_rest | {
            "gathered weights": self.live,
            "activations": f.forward_bytes(self.shape, tokens=tokens),
            "logits": f.FORWARD_LOGIT_BYTES * with_logits * self.shape.vocab,
            "contexts": self.policy_contexts,
            "engine": self.engine_at_rest,
        }
        return Phase(
            "log-probs",
            parts,
            sum(self.at_rest.values()) + self.engine_at_rest * (not self.sleep),
        )

    def update(self) -> Phase:
        (tokens, with_logits), shape, train = (
            self._tokens("train"),
            self.shape,
            self.config.train,
        )
        checkpointing, flash = (
            self.config.model.gradient_checkpointing,
            "flash" in self.config.model.attn_implementation,
        )
        in_chunks = train.logits_chunk_tokens is not None and not self.adapter
        logit_bytes = f.TRAIN_LOGIT_BYTES
        if self.config.flag("actor.entropy_coef") is not None:
            logit_bytes += f.ENTROPY_LOGIT_BYTES
        of_batch = {
            "activations": f.activation_bytes(
                shape, tokens=tokens, checkpointing=checkpointing, flash=flash
            ),
            "logits": logit_bytes * with_logits * shape.vocab,
            "last layer's gradient": f.FP32 * shape.vocab * shape.hidden * in_chunks,
            "gradient bucket": self.zero.bucket(
                self.trained_params, overlaps=bool(self.config.flag("ds.overlap_comm"))
            ),
            "gathered weights": self.live,
        }
        at_step = self.zero.step_gradients(self.trained_params)
        # the optimizer's step comes when activations are gone
        if at_step > sum(of_batch.values()):
            of_batch = {"fp32 gradients": at_step}
        states = {
            "weights": self.weights,
            "optimizer": self.optimizer,
            "gradients": self.gradients,
        }
        states["host Adam's buffer"] = self.at_rest["host Adam's buffer"]
        if self.critic and not self.sleep:  # both at once (trainer/ppo_trainer.py:287)
            states["critic's states"] = self.of_one + at_step
            of_batch["critic's activations"] = of_batch.get("activations", 0)
        parts = (
            states
            | of_batch
            | {"contexts": self.policy_contexts, "engine": self.engine_at_rest}
        )
        return Phase(
            "update",
            parts,
            sum(states.values()) + at_step + self.engine_at_rest * (not self.sleep),
        )

    def sync(self) -> Phase:
        engine = (
            {"engine's weights": self.engine_weights}
            if self.sleep
            else {"engine": self.engine_at_rest}
        )
        contexts = self.policy_contexts + (self.engine_context if self.sleep else 0)
        parts = (
            self.at_rest
            | engine
            | {"tensor in flight": f.BF16 * self.shape.largest, "contexts": contexts}
        )
        return Phase(
            "sync",
            parts,
            sum(self.at_rest.values()) + (0 if self.ahead else self.engine_weights),
        )

    # ── seconds ──

    def seconds(self, rates: f.Rates) -> tuple[float, float, float, float]:
        """Estimate the seconds of the four phases: sampling, log-probs, update, sync."""
        shape, gpu, config = self.shape, self.gpu, self.config
        per_engine = -(-int(self.sampled) // (self.ranks // self.tp))
        lengths = f.response_lengths(
            per_engine, mean=self.mean, longest=config.rollout.max_new_tokens
        )
        slots = min(config.sequences_per_engine, max(1, int(self.kv_tokens / self.length)))
        engine: dict[str, Any] = {
            "prompt": self.prompt,
            "slots": slots,
            "tensor_parallel": self.tp,
            "flops": gpu.flops,
            "bandwidth": gpu.bandwidth,
            "rates": rates,
        }
        rollout = config.rollout
        if rollout.partial:
            sampling = f.paused_decode_seconds(
                shape,
                lengths,
                samples=rollout.n_samples_per_prompt,
                partial=rollout.partial,
                max_pauses=rollout.max_pauses,
                **engine,
            )
        else:
            sampling = f.decode_seconds(shape, lengths, **engine)
        tokens, all_flops = self.trained * self.length, self.ranks * gpu.flops
        passes = 1 + self.reference + self.critic
        logprobs = (
            passes
            * f.forward_flops(shape, tokens=tokens, length=self.length)
            / (rates.forward * all_flops)
        )
        gathered = self.zero.forward_traffic(shape.params, passes=self.passes("rollout"))
        logprobs += passes * self.collective_s(gathered, rates)
        logprobs += self.teacher_s(rates)
        checkpointing, tokens = (
            config.model.gradient_checkpointing,
            tokens * config.train.inner_epochs,
        )
        flops = f.update_flops(
            shape, tokens=tokens, length=self.length, checkpointing=checkpointing
        )
        update = (1 + self.critic) * (
            flops / (rates.update * all_flops) + self.update_traffic_s(rates)
        )
        if self.offload:  # gradients down, weights up, and Adam on the host
            update += (
                (1 + self.critic)
                * 3
                * f.BF16
                * self.trained_params
                / self.ranks
                / rates.host_link
            )
        moved = self.states if self.sleep and not self.offload else 0
        sync = f.sync_seconds(
            shape, tensor_parallel=self.tp, state_bytes=moved, sleeps=self.sleep, rates=rates
        )
        sync += self.collective_s(self.zero.forward_traffic(shape.params, passes=1), rates)
        return sampling, logprobs, update, sync

    def teacher_s(self, rates: f.Rates) -> float:
        """Estimate the seconds of the taught rows' pass after their teacher's prompts, which show a success."""
        distill = self.config.distill
        if not distill.enabled:
            return 0.0
        rows = self.taught
        length = self.length + min(self.mean, distill.max_success_tokens)
        flops = f.forward_flops(self.shape, tokens=rows * length, length=length)
        # as many gathers as the rows' part of the pass of all rows
        passes = math.ceil(self.passes("rollout") * rows / self.trained)
        gathered = self.zero.forward_traffic(self.shape.params, passes=passes)
        seconds = flops / (rates.forward * self.ranks * self.gpu.flops)
        return seconds + self.collective_s(gathered, rates) + self.average_s(rates)

    @property
    def taught(self) -> float:
        """Rows of a step that a teacher scores."""
        distill = self.config.distill
        share = 1.0 if distill.rows == TaughtRows.ALL else TAUGHT
        return min(share, distill.max_share) * self.recorded if distill.enabled else 0.0

    def average_s(self, rates: f.Rates) -> float:
        """Estimate the seconds in which a teacher's average follows, comes into the model and leaves it.

        Of each rank's part: the policy down after the step and before the pass; the float32 average up for it,
        and the policy after it. Without ZeRO 3 two broadcasts of all weights."""
        if not self.config.distill.averages:
            return 0.0
        part = f.BF16 * self.trained_params / self.ranks
        is_sharded = self.config.train.zero_stage == 3
        whole = 0 if is_sharded else 2 * f.BF16 * self.trained_params
        return 5 * part / rates.host_link + self.collective_s(whole, rates)

    def passes(self, section: str) -> int:
        """Count the micro-batches of one rank in a step, of log-probs ("rollout") or the update."""
        windows, train = self.config.updates_of(math.ceil(self.trained)), self.config.train
        rows = self.trained / self.ranks
        if not train.dynamic_batch:
            size = getattr(self.config, section).micro_batch_size
            each = rows / size
        else:
            each = rows * self.length / self._tokens(section)[0]
        if section == "rollout":
            return math.ceil(each)
        return train.inner_epochs * windows * math.ceil(each / windows)

    def collective_s(self, size: float, rates: f.Rates, *, ranks: int | None = None) -> float:
        """Seconds of collectives over tensors of `size` bytes; ranks: of how many, None: all."""
        return f.collective_seconds(
            size,
            ranks=ranks or self.ranks,
            gpus_per_node=self.config.policy_gpus_per_node,
            link=self.gpu.link,
            network=self.gpu.network,
            rates=rates,
        )

    def update_traffic_s(self, rates: f.Rates) -> float:
        """Seconds of an update's collectives (formulas.Zero.update_traffic), of one model."""
        passes = self.passes("train")
        updates = self.config.updates_of(math.ceil(self.trained))
        near = int(self.config.flag("ds.zpg") or 1)
        traffic = self.zero.update_traffic(
            self.shape.params,
            self.trained_params,
            passes=passes,
            updates=updates * self.config.train.inner_epochs,
            local=near > 1,
        )
        # with ds.zpg the backward pass gathers from its neighbours
        second = self.zero.forward_traffic(self.shape.params, passes=passes if near > 1 else 0)
        return self.collective_s(traffic, rates) + self.collective_s(second, rates, ranks=near)

    # ── around the GPUs ──

    def host(self) -> dict[str, int]:
        """Memory of the first node, where the controller is."""
        per_node, tokens = self.config.policy_gpus_per_node, self.trained * self.length
        sleeping = self.engine_weights + (0 if self.offload else self.states)
        # fp32 master, Adam, fp32 gradients
        models = 1 + self.critic
        offloaded = (
            4 * f.FP32 * self.trained_params * per_node // self.ranks if self.offload else 0
        )
        offloaded += per_node * self.zero.offload_buffer(self.shape.largest)
        # the average, and the policy while its weights are the average's
        of_average = (f.FP32 + f.BF16) * self.trained_params * per_node // self.ranks
        distill = self.config.distill
        kept = self.taught * self.mean * distill.top_k * distill.compares_logits
        found = {
            "asleep: optimizer, gradients, engine's weights": per_node * sleeping * self.sleep,
            "offloaded optimizer": models * offloaded,
            "processes": ((1 + models) * per_node + 2) * PROCESS_BYTES,
            "rows in controller and object store": int(tokens * ROW_BYTES + kept * KEPT_BYTES),
            **self.experts(tokens),
        }
        if distill.averages:
            found["teacher's average"] = of_average
        return found

    def experts(self, tokens: float) -> dict[str, int]:
        """Return the host memory of the engine's experts: of a step's rows, and of each engine's cache,
        for whose tokens vLLM keeps them all (fused_moe/routed_experts_capturer.py, RoutedExpertsManager)."""
        if not self.config.rollout.routing_replay:
            return {}
        a_token = self.shape.expert_bytes
        engines = max(1, self.config.policy_gpus_per_node // self.tp)
        return {
            "experts of the rows": int(EXPERT_COPIES * tokens * a_token),
            "experts of the engines' caches": engines * self.kv_tokens * a_token,
        }

    def disk(self, steps: int) -> dict[str, int]:
        """Return the bytes that are on disk at the end."""
        checkpoint, log = self.config.checkpoint, self.config.logging
        written = 1 if checkpoint.save_steps == -1 else max(1, steps // checkpoint.save_steps)
        best = self.config.held_out.path is not None  # its copy stays with the newest
        copies = min(written, checkpoint.max_num + best)
        kinds = (
            0
            if log.token_values != TokenValues.ALL
            else 3
            if self.config.measures_all_entropies
            else 2
        )
        per_step = (ROLLOUT_BYTES + TOKEN_VALUE_BYTES * kinds) * self.recorded * self.mean
        # DeepSpeed's: bf16 weights, and 12 bytes per trained parameter
        a_checkpoint = (1 + self.critic) * (
            f.BF16 * self.shape.params + 3 * f.FP32 * self.trained_params
        )
        if self.config.distill.averages:
            a_checkpoint += f.FP32 * self.trained_params
        found: dict[str, int] = {
            "checkpoints": (
                written if checkpoint.save_steps == -1 else min(checkpoint.max_num, written)
            )
            * a_checkpoint,
            "models": (copies + 1) * f.BF16 * self.shape.params,
            "rollouts": int(per_step * steps),
        }
        if self.config.keeps_history:
            found["history, at most"] = self.config.history.max_bytes
        return found
