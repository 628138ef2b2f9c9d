"""Bytes and seconds of one step, each formula with its source. Pure: numbers in, numbers out.

P parameters, N data-parallel ranks, T tokens of one micro-batch, V vocabulary. Bytes are of one GPU
unless said otherwise. What is not known before a run (rates that a GPU reaches, what a process
takes for itself) is in RATES and the contexts; those are assumptions, not measurements.
"""

import heapq
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from r3_openrlhf.runs.planning.shapes import ModelShape

GiB = 2**30
BF16, FP32 = 2, 4

# DeepSpeed 0.19.6, runtime/zero/config.py; OpenRLHF's "auto" leaves these (config_utils.py:56)
REDUCE_BUCKET = 5 * 10**8  # elements
MAX_LIVE = 10**9  # parameters that ZeRO 3 keeps gathered, at most

# Bytes of a process on a GPU before its first tensor. Assumed
CUDA_CONTEXT = GiB // 2  # and its libraries
NCCL_BUFFERS = GiB // 2  # of the ranks' communicators
CUDA_GRAPHS = GiB  # vLLM's, which its sleep does not free


@dataclass(frozen=True)
class Rates:
    """Shares of the data sheet that are reached, and seconds (*_s). Assumed before any comparison,
    and kept; `SLOW` is half as fast everywhere: what runs of others on this kind of stack come to."""

    update: float = 0.30  # of the GPU's FLOP/s, forward and backward
    forward: float = 0.40
    decode: float = 0.60  # of the memory's bandwidth
    decode_step_s: float = 0.006  # schedule, launch, sample, return one token of each
    allreduce_s: float = 15e-6  # one of two a layer, with tensor parallelism
    collective: float = 0.70  # of the links' bandwidth, by NCCL's all-gather and reduce-scatter
    host_link: float = 20e9  # bytes per second and GPU, between GPU and pinned host memory
    tensor_sync_s: float = 0.010  # one named tensor to all engines, a remote call each
    sleep_s: float = 1.0  # an engine's sleep or wake besides what moves (vLLM 28714: 1 to 3)


RATES = Rates()
_HALF = {
    name: value * 2 if name.endswith("_s") else value / 2
    for name, value in asdict(RATES).items()
}
SLOW = Rates(**_HALF | {"sleep_s": 3.0})


# ── model states ──


@dataclass(frozen=True)
class Zero:
    """Model states, shared out (Rajbhandari et al. 2020, arXiv 1910.02054, figure 1): bytes
    of one rank, for so many parameters. offloaded: optimizer and gradients are on the host."""

    ranks: int
    stage: int
    offloaded: bool = False

    def _share(self, stage: int) -> int:
        return self.ranks if self.stage >= stage else 1

    def weights(self, params: int, *, hpz: int = 1) -> int:
        """bf16 at rest, split in stage 3; ds.zpg: a copy over `hpz` ranks (arXiv 2306.10209)."""
        second = BF16 * params // hpz if self.stage == 3 and hpz > 1 else 0
        return BF16 * params // self._share(3) + second

    def optimizer(self, params: int) -> int:
        """fp32 master weights and Adam's two moments, 12 P, split from stage 1 on (section 3.1)."""
        return 0 if self.offloaded else 3 * FP32 * params // self._share(1)

    def gradients(self, params: int, *, accumulate: int = BF16) -> int:
        """Gradients between optimizer steps, in ds.grad_accum_dtype; split from stage 2 on."""
        return 0 if self.offloaded else accumulate * params // self._share(2)

    def step_gradients(self, params: int) -> int:
        """Gradients again, in fp32, in a step (deepspeed/runtime/zero/stage_1_and_2.py, step)."""
        return 0 if self.offloaded else FP32 * params // self._share(1)

    def bucket(self, params: int, *, overlaps: bool = False) -> int:
        """Gradients on their way to the rank that owns them: reduce_bucket_size elements, however
        few parameters and ranks there are (stage_1_and_2.py:2508, stage3.py:737), with
        ds.overlap_comm twice; several ranks reduce a flattened copy (stage_1_and_2.py:1851)."""
        buffers = 2 if overlaps and self.stage < 3 else 1
        copy = min(params, REDUCE_BUCKET) if self.ranks > 1 else 0
        return BF16 * (buffers * REDUCE_BUCKET + copy) if self.stage >= 1 else 0

    def offload_buffer(self, largest: int) -> int:
        """With the optimizer on the host, a buffer of the largest weight on the GPU, and as much in
        pinned memory (stage_1_and_2.py:587-595)."""
        return BF16 * largest if self.offloaded and self.stage in (1, 2) else 0

    def gathered(self, params: int) -> int:
        """Weights that stage 3 gathers (stage3_max_live_parameters), besides its share."""
        return BF16 * min(params, MAX_LIVE) if self.stage == 3 and self.ranks > 1 else 0

    # Tensors that collectives move, in bytes of the whole bfloat16 tensor; `collective_seconds` has
    # the share of them that crosses a link.

    def forward_traffic(self, params: int, *, passes: int) -> int:
        """Bytes gathered by `passes` forward passes: 2 P each in stage 3, where weights are split."""
        return BF16 * params * passes if self.stage == 3 else 0

    def update_traffic(
        self, params: int, trained: int, *, passes: int, updates: int, local: bool = False
    ) -> int:
        """Bytes gathered and reduced by `passes` micro-batches in `updates` optimizer steps (arXiv
        1910.02054, section 7.2, for micro-batches that accumulate). T of P parameters are trained.

            stage 3       passes (2 (2 P) + 2 T)        gathered forward and backward, reduced
            stage 2       passes (2 T) + updates (2 T)  reduced; the new weights gathered
            stage 0, 1    updates (2 T + 2 T)           reduced once an update; gathered

        Gradients travel in bfloat16 (deepspeed/runtime/engine.py:1491), whatever sums them up. A layer
        that gradient checkpointing computes again is still gathered (stage3_max_reuse_distance).
        local: the second gather stays inside a node (ds.zpg) and is not counted here."""
        reduced = BF16 * trained
        if self.stage == 3:
            return passes * ((1 if local else 2) * BF16 * params + reduced)
        if self.stage == 2:
            return (passes + updates) * reduced
        return 2 * updates * reduced


# ── one micro-batch ──


def activation_bytes(
    shape: ModelShape, *, tokens: int, checkpointing: bool, flash: bool = True
) -> int:
    """Training. With gradient checkpointing each layer keeps its input, and one layer at a time is
    computed again. Without flash attention k and v are repeated for every head."""
    repeated = 0.0 if flash else shape.repeated_bytes
    layers = shape.kept_bytes + shape.layers * repeated
    if checkpointing:
        layers = shape.layers * BF16 * shape.hidden + shape.layer_bytes + repeated
    return round(tokens * (layers + shape.around_bytes))


def forward_bytes(shape: ModelShape, *, tokens: int) -> int:
    """Without gradient: a layer's input and result, and three of its widest tensors (gate, up and
    their product)."""
    return round(tokens * (2 * BF16 * shape.hidden + 3 * shape.widest_bytes))


# Per token and word of the vocabulary. Training, where the backward pass begins: fp32 logits
# (models/actor.py:250 copies), their gradient in fp32 and in bf16; flash-attn's kernel keeps no
# other. Log-probs alone: bf16 and fp32 copy; R³'s exact entropy (method/core/entropy.py): the model's
# own and a chunk. openrlhf.actor.entropy_coef adds a gradient in fp32 (models/utils.py:216, compiled).
ENTROPY_LOGIT_BYTES = FP32
TRAIN_LOGIT_BYTES = FP32 + FP32 + BF16
FORWARD_LOGIT_BYTES = BF16 + FP32


def kv_split(shape: ModelShape, tensor_parallel: int) -> int:
    """Over so many GPUs keys and values are split; beyond their heads each GPU holds a whole one
    (vllm/config/model.py, get_num_kv_heads)."""
    return min(tensor_parallel, shape.kv_heads)


def engine_step_bytes(shape: ModelShape, *, batched_tokens: int, sequences: int) -> int:
    """vLLM's own activations at its largest step: a layer's working set, and logits of every
    sequence three times in fp32 (logits, processed log-probs, sampling)."""
    return forward_bytes(shape, tokens=batched_tokens) + 3 * FP32 * sequences * shape.vocab


# ── seconds ──


def response_lengths(num: int, *, mean: float, longest: int, sigma: float = 0.7) -> list[int]:
    """`num` ascending lengths: quantiles of a log-normal, cut at `longest`, with this mean.

    sigma 0.7: 0.5 within a problem, 0.4 between problems, wrong answers 1.6 times as long."""
    mean = min(mean, float(longest))
    normal = statistics.NormalDist(0.0, sigma)
    factors = [math.exp(normal.inv_cdf((i + 0.5) / num)) for i in range(num)]
    low, high = 0.0, 50.0 * longest
    for _ in range(60):
        median = (low + high) / 2
        if sum(min(longest, median * factor) for factor in factors) / num < mean:
            low = median
        else:
            high = median
    return [max(1, round(min(longest, high * factor))) for factor in factors]


def decode_seconds(
    shape: ModelShape,
    lengths: list[int],
    *,
    prompt: int,
    slots: int,
    tensor_parallel: int,
    flops: float,
    bandwidth: float,
    rates: Rates = RATES,
) -> float:
    """One engine until its last response ends: `slots` sequences at a time, the others wait.

    A step reads the weights and every running sequence's keys and values once, so it is bound by
    memory (Pope et al. 2022, arXiv 2211.05102, section 2), or, with many sequences, by arithmetic;
    a fixed time is added."""
    iteration_s = _decoding(
        shape,
        prompt=prompt,
        tensor_parallel=tensor_parallel,
        flops=flops,
        bandwidth=bandwidth,
        rates=rates,
    )
    waiting = random.Random(0).sample(lengths, len(lengths))  # mixed, always alike
    running: list[tuple[int, int]] = []  # the decode steps at which each ends and has started
    step, seconds, started_sum = 0, 0.0, 0
    while waiting or running:
        while waiting and len(running) < slots:
            heapq.heappush(running, (step + waiting.pop(), step))
            started_sum += step
        until = running[0][0]
        count, steps = len(running), until - step
        seconds += steps * iteration_s(count, count * (step + steps / 2) - started_sum)
        step = until
        while running and running[0][0] == step:
            started_sum -= heapq.heappop(running)[1]
    return seconds


def paused_decode_seconds(
    shape: ModelShape,
    lengths: list[int],
    *,
    samples: int,
    partial: float,
    max_pauses: int,
    prompt: int,
    slots: int,
    tensor_parallel: int,
    flops: float,
    bandwidth: float,
    rates: Rates = RATES,
) -> float:
    """One engine, mean over steps that pause what is unfinished when their groups are whole (rollout.partial).

    `lengths` are those of a step, in groups of `samples`, at random. The prompts of what goes on are
    not read again in here: a prefill of a few seconds' tokens."""
    iteration_s = _decoding(
        shape,
        prompt=prompt,
        tensor_parallel=tensor_parallel,
        flops=flops,
        bandwidth=bandwidth,
        rates=rates,
    )
    generator, size = random.Random(0), max(1, len(lengths) // samples)
    groups: list[_Group] = []
    seconds = 0.0
    for number in range(PAUSED_STEPS + PAUSED_FILL):
        while len(groups) < size + math.ceil(partial * size):
            groups.append(_Group(left=generator.choices(lengths, k=samples)))
        spent = _paused_step(groups, size, max_pauses, slots, iteration_s)
        groups = [group for group in groups if not group.is_trained]
        if number >= PAUSED_FILL:
            seconds += spent
    return seconds / PAUSED_STEPS


# steps that are played, and first ones that fill the engine
PAUSED_STEPS, PAUSED_FILL = 8, 4


@dataclass(slots=True)
class _Group:
    """Tokens that each unfinished response still needs, and has."""

    left: list[int]
    done: list[int] = field(default_factory=list)
    pauses: int = 0
    is_trained: bool = False

    def keep_unfinished(self) -> None:
        """Drop the finished responses; if others are left, the group was paused."""
        kept = [place for place, left in enumerate(self.left) if left]
        self.left = [self.left[place] for place in kept]
        self.done = [self.done[place] for place in kept]
        if kept:
            self.pauses += 1


def _paused_step(
    groups: list[_Group],
    size: int,
    max_pauses: int,
    slots: int,
    iteration_s: Callable[[int, float], float],
) -> float:
    """Play a step; mark `size` groups as trained. Returns its seconds."""
    for group in groups:
        group.done = group.done or [0] * len(group.left)
    engine = _Engine(groups, slots=slots)
    seconds = 0.0
    while not engine.has_enough(size, max_pauses=max_pauses):
        engine.start_waiting()
        seconds += engine.decode_until_an_end(iteration_s)
        engine.take_ended()
    engine.pause()
    for group in engine.finished()[:size]:
        group.is_trained = True
    for group in groups:
        group.keep_unfinished()
    return seconds


class _Engine:
    """The responses of some groups in an engine with `slots` places. `step` counts decode steps."""

    def __init__(self, groups: list[_Group], *, slots: int) -> None:
        self.groups = groups
        self.slots = slots
        self.step = 0
        self.context = 0  # tokens of the running responses, without their prompts
        self.running: list[tuple[int, int, int, _Group, int]] = []
        """A heap of (step of the end, order of the start, step of the start, group, place)."""
        self._num_started = 0
        self._num_open = {id(group): len(group.left) for group in groups}
        self._waiting: list[tuple[_Group, int]] = []  # the next one is the last
        for group in reversed(groups):
            self._waiting += [(group, place) for place in range(len(group.left))]

    def finished(self) -> list[_Group]:
        """Return the groups of which no response is open."""
        return [group for group in self.groups if not self._num_open[id(group)]]

    def has_enough(self, size: int, *, max_pauses: int) -> bool:
        """Tell whether `size` groups are finished, and none is open that may not pause again."""
        if len(self.finished()) < size:
            return False
        unfinished = [group for group in self.groups if self._num_open[id(group)]]
        return all(group.pauses < max_pauses for group in unfinished)

    def start_waiting(self) -> None:
        """Fill the free places."""
        while self._waiting and len(self.running) < self.slots:
            group, place = self._waiting.pop()
            self._num_started += 1
            end = self.step + group.left[place]
            heapq.heappush(self.running, (end, self._num_started, self.step, group, place))
            self.context += group.done[place]

    def decode_until_an_end(self, iteration_s: Callable[[int, float], float]) -> float:
        """Decode up to the next end of a response. Returns seconds."""
        count = len(self.running)
        num_steps = self.running[0][0] - self.step
        mean_context = self.context + count * num_steps / 2
        self.context += count * num_steps
        self.step += num_steps
        return num_steps * iteration_s(count, mean_context)

    def take_ended(self) -> None:
        """Take out the responses that end at this step."""
        while self.running and self.running[0][0] == self.step:
            _, _, begin, group, place = heapq.heappop(self.running)
            self.context -= group.done[place] + self.step - begin
            self._num_open[id(group)] -= 1
            group.left[place] = 0

    def pause(self) -> None:
        """Write down how far the running responses are."""
        for _, _, begin, group, place in self.running:
            group.left[place] -= self.step - begin
            group.done[place] += self.step - begin


def _decoding(
    shape: ModelShape,
    *,
    prompt: int,
    tensor_parallel: int,
    flops: float,
    bandwidth: float,
    rates: Rates,
) -> Callable[[int, float], float]:
    """Return the seconds of one decode step of (sequences, tokens that they have besides their prompts)."""
    weights = BF16 * shape.matmul_params / tensor_parallel
    kv = shape.kv_bytes / kv_split(shape, tensor_parallel)
    fixed = rates.decode_step_s + (
        2 * shape.layers * rates.allreduce_s if tensor_parallel > 1 else 0.0
    )

    def iteration_s(count: int, tokens: float) -> float:
        context = count * prompt + tokens
        read = (weights + kv * context + 3 * FP32 * count * shape.vocab / tensor_parallel) / (
            rates.decode * bandwidth
        )
        compute = 2 * shape.matmul_params * count / tensor_parallel / (rates.forward * flops)
        return max(read, compute) + fixed

    return iteration_s


def forward_flops(shape: ModelShape, *, tokens: float, length: float) -> float:
    """2 P per token, and attention over half the sequence (arXiv 2001.08361, section 2.1)."""
    return tokens * (2 * shape.matmul_params + 4 * shape.attention_width * length / 2)


def update_flops(
    shape: ModelShape, *, tokens: float, length: float, checkpointing: bool
) -> float:
    """Backward: twice the forward; with checkpointing one more (arXiv 2205.05198, section 5)."""
    return (4 if checkpointing else 3) * forward_flops(shape, tokens=tokens, length=length)


def collective_seconds(
    size: float,
    *,
    ranks: int,
    gpus_per_node: int,
    link: float,
    network: float,
    rates: Rates = RATES,
) -> float:
    """Compute the seconds of all-gathers or reduce-scatters of tensors of `size` bytes over all ranks.

        (N - 1) / N * size / (share * B),    B = link, or over several nodes min(link, G network)

    Each of N ranks receives the parts of the others (NCCL's rings; nccl-tests, PERFORMANCE.md, "bus
    bandwidth"). link: bytes per second between a GPU and the others of its node; network: of a GPU to
    other nodes. A node's G GPUs use their network cards together. Nothing is hidden behind compute."""
    if ranks == 1:
        return 0.0
    bandwidth = link if ranks <= gpus_per_node else min(link, gpus_per_node * network)
    return (ranks - 1) / ranks * size / (rates.collective * bandwidth)


def sync_seconds(
    shape: ModelShape,
    *,
    tensor_parallel: int,
    state_bytes: int,
    sleeps: bool,
    rates: Rates = RATES,
) -> float:
    """Compute the seconds of a sync: a call per named tensor, the engine's weights from the host,
    optimizer states both ways, and once to sleep and to wake."""
    moved = BF16 * shape.params / tensor_parallel + 2 * state_bytes
    return (
        shape.tensors * rates.tensor_sync_s
        + moved / rates.host_link
        + 2 * rates.sleep_s * sleeps
    )
