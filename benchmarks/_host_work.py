"""One training step's work on the host at a given scale, without models, engine or Ray; for step_overhead.py.

The real code runs on synthetic responses, in the order of a real step: rollout executor, pickle (what crosses to the
controller), samples generator, experience maker, history store, rollout files. Only what needs a device is given:
the engine's answer (vLLM's own `LogprobsProcessor` collects its log-probs), the actor's log-probs and exact entropies.

Every response has the full number of tokens. Of eight problems one is always right, one always wrong with stored
successes, one always wrong without, five are mixed. What is wrong is truncated.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

# What both sides import of others; a process can bring it along. Nothing of ours, which could change what stock does.
LIBRARIES = ("vllm.v1.engine.logprobs", "openrlhf.trainer.ppo_utils.experience_maker")
VOCAB_SIZE = 151936  # of DeepSeek-R1-Distill-Qwen-1.5B's logits
FIRST_WORD = 300  # ids below are special tokens and single bytes
DISTINCT_LOGPROBS = 32  # responses with log-probs of their own; the others share theirs
FLAT_LOGPROBS = 8  # responses in vLLM's own container, for comparison: 19 MB each at full scale
STORED_STEPS = 3  # earlier steps of the same problems in the history store


@dataclass(frozen=True)
class Scale:
    prompts: int
    samples: int
    tokens: int
    top_logprobs: int
    engines: int
    tokenizer: str  # a directory
    threads: int

    @property
    def rollouts(self) -> int:
        return self.prompts * self.samples


class Clock:
    """Seconds per part: wall clock, and CPU of this process (all threads)."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        found = self.parts[name]
        found[0] += time.perf_counter() - wall
        found[1] += time.process_time() - cpu

    def timed(self, name: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            with self.part(name):
                return function(*args, **kwargs)

        return call


class Memory:
    """Peak resident bytes of this process above what it held at `start`."""

    def start(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
        self.before = self._status("VmRSS")

    def peak(self) -> int:
        return self._status("VmHWM") - self.before

    def now(self) -> int:
        return self._status("VmRSS") - self.before

    @staticmethod
    def _status(key: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        raise OSError(f"/proc/self/status has no {key}")


# ── input ──


def token_pool(vocab_size: int, size: int, seed: int):
    """int32 [size]: few words are frequent, as in text, and those have small ids, as in a BPE vocabulary."""
    import numpy as np

    ranks = np.random.default_rng(seed).zipf(1.15, size=size)
    first = min(FIRST_WORD, vocab_size // 2)
    return (first + np.minimum(ranks, vocab_size - first) - 1).astype(np.int32)


def topk_logprobs(num_tokens: int, k: int, seed: int):
    """float32 [T, 1 + k], the sampled token first: most positions nearly certain, some open, as a reasoning model's."""
    import numpy as np

    rng = np.random.default_rng(seed)
    steepness_T1 = rng.lognormal(mean=1.0, sigma=0.9, size=(num_tokens, 1))
    weight_Tk = np.exp(-steepness_T1 * np.arange(k) + rng.normal(scale=0.3, size=(num_tokens, k)))
    tail_T1 = np.exp(-steepness_T1 * k) / -np.expm1(-steepness_T1)
    probs_Tk = weight_Tk / (weight_Tk.sum(axis=1, keepdims=True) + tail_T1)
    probs_Tk = -np.sort(-probs_Tk, axis=1)
    drawn_T = (probs_Tk.cumsum(axis=1) < rng.random((num_tokens, 1))).sum(axis=1).clip(max=k - 1)
    sampled_T1 = np.take_along_axis(probs_Tk, drawn_T[:, None], axis=1)
    return np.log(np.maximum(np.hstack([sampled_T1, probs_Tk]), 1e-30)).astype(np.float32)


def engine_logprobs(scale: Scale, clock: Clock, *, responses: int) -> tuple[list, float]:
    """What the engine hands over, collected token by token by vLLM's LogprobsProcessor (with R³'s container once the
    rollout executor is there), requests in turn as they are in a batch; and the bytes that each holds."""
    from vllm.v1.engine import logprobs as engine
    from vllm.v1.outputs import LogprobsLists

    arrays = [topk_logprobs(scale.tokens, scale.top_logprobs, seed) for seed in range(responses)]
    ids = [token_pool(VOCAB_SIZE, array.size, seed).reshape(array.shape) for seed, array in enumerate(arrays)]
    rows = list(zip(ids, arrays, strict=True))
    memory = Memory()
    memory.start()
    processors = [
        engine.LogprobsProcessor(
            tokenizer=None,
            logprobs=engine.create_sample_logprobs(True),
            prompt_logprobs=None,
            cumulative_logprob=0.0,
            num_logprobs=scale.top_logprobs,
            num_prompt_logprobs=None,
        )
        for _ in arrays
    ]
    for start in range(0, scale.tokens, 32):
        block = range(start, min(start + 32, scale.tokens))
        outputs = [[LogprobsLists(i[t : t + 1], a[t : t + 1], i[t : t + 1, 0]) for i, a in rows] for t in block]
        with clock.part("collected"):
            for at_t in outputs:
                for processor, output in zip(processors, at_t, strict=True):
                    processor._update_sample_logprobs(output)
    return [processor.logprobs for processor in processors], memory.now() / len(processors)


def is_correct(problem: int, sample: int) -> bool:
    return {0: True, 1: False, 2: False}.get(problem % 8, (problem + sample) % 3 == 0)


class Step:
    """Problems, prompts and tokens of one step; the same for both sides."""

    def __init__(self, scale: Scale, directory: Path) -> None:
        from transformers import AutoTokenizer

        from r3_openrlhf.config.loading import load_config
        from r3_openrlhf.problems import prompts as prompting
        from r3_openrlhf.problems.training_file import Label
        from r3_openrlhf.runs.directory import RunDirectory
        from r3_openrlhf.stack.arguments import openrlhf_arguments
        from r3_openrlhf.stack.upstream_parser import check_arguments

        self.scale = scale
        self.tokenizer = AutoTokenizer.from_pretrained(scale.tokenizer)
        self.config = load_config(
            "r3_1p5b_deepscaler_8gpu",
            [
                f"run_dir={directory / 'run'}",
                f"rollout.batch_size={scale.prompts}",
                f"rollout.n_samples_per_prompt={scale.samples}",
                f"rollout.max_new_tokens={scale.tokens}",
                "ranking.entropy_source=auto",  # the bounds are one of the parts; the experiment has exact
                f"data.max_len={scale.tokens + 4096}",
                f"data.chat_template={str(self.tokenizer.chat_template is not None).lower()}",
                f"cluster.gpus_per_node={scale.engines}",
                "reward.urls=[http://localhost:9]",  # never asked: grades are given below
            ],
        )
        self.run = RunDirectory(self.config.run_dir)
        self.run.create(self.config)
        self.args = check_arguments(
            openrlhf_arguments(self.config, self.run, model_dir=scale.tokenizer, platform="cuda")
        )
        self.labels = [
            Label(
                uid=f"{i:016x}",
                problem=f"Problem {i}. " + "Find the number of integer solutions, and explain each step. " * 5,
                references=[str(i)],
                task="math",
            ).to_json()
            for i in range(scale.prompts)
        ]
        data = self.config.data
        self.prompts = [
            prompting.render(self.tokenizer, data, prompting.problem_message(data, Label.from_json(label).problem))
            for label in self.labels
        ]
        self.prompt_ids = [self.tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in self.prompts]
        self.pool = token_pool(len(self.tokenizer), 1_000_000 + scale.tokens, seed=7)
        self.places = random.Random(11)

    def response_ids(self):
        start = self.places.randrange(1_000_000)
        return self.pool[start : start + self.scale.tokens]

    def reward(self, correct: bool) -> float:
        from r3_openrlhf.method.core.rewards import length_reward

        longest = self.config.reward.length_reward_max_tokens
        return 1.0 + length_reward(self.scale.tokens, max_tokens=longest) if correct else 0.0


# ── stock OpenRLHF ──


class GivenForward:
    """In place of the remote forward passes of `make_experience`: log-probs close to the engine's, no KL."""

    def make_experience(self, samples_list):
        import torch

        with self.clock.part("given forward"):
            for samples in samples_list:
                given = samples.rollout_log_probs
                given = torch.zeros(samples.action_mask.shape) if given is None else given + 1e-3 * samples.action_mask
                samples.action_log_probs = given
                samples.base_action_log_probs = samples.values = None
                samples.kl = torch.zeros_like(given)
        return samples_list


def maker_of(cls, step: Step, clock: Clock, **kwargs):
    """An experience maker without models behind it."""
    made = type(f"Given{cls.__name__}", (GivenForward, cls), {})
    strategy = SimpleNamespace(args=step.args)
    maker = made(None, None, None, None, SimpleNamespace(value=0.0), strategy, step.tokenizer, **kwargs)
    maker.clock = clock
    return maker


def stock_side(step: Step, clock: Clock, memory: Memory) -> dict:
    """What OpenRLHF itself does in its controller with the same responses (importance correction off: no log-probs)."""
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    generator = SamplesGenerator(SimpleNamespace(args=step.args), None, None, step.tokenizer, [])
    _, engine_bytes = engine_logprobs(step.scale, clock, responses=FLAT_LOGPROBS)
    memory.start()
    samples = []
    for i, prompt in enumerate(step.prompts):
        for j in range(step.scale.samples):
            ids, prompt_ids, correct = step.response_ids().tolist(), step.prompt_ids[i], is_correct(i, j)
            response = {
                "prompt": prompt,
                "label": step.labels[i],
                "observation_tokens": prompt_ids + ids,
                "action_ranges": [(len(prompt_ids), len(prompt_ids) + len(ids))],
                "rollout_log_probs": None,
                "truncated": not correct,
                "reward": step.reward(correct),
                "scores": float(correct),
                "extra_logs": {},
            }
            with clock.part("crossing"):
                response = pickle.loads(pickle.dumps(response, protocol=5))
            with clock.part("responses to tensors"):
                samples.append(generator._process_response_into_experience(response, max_len=step.config.data.max_len))
    maker = maker_of(RemoteExperienceMaker, step, clock)
    maker.split_rollout_samples = clock.timed("micro-batches", maker.split_rollout_samples)
    with clock.part("experience maker"):
        maker.make_experience_batch(samples)
    return {"peak_bytes": memory.peak(), "engine_bytes_per_response": engine_bytes}


# ── R³ ──


def r3_side(step: Step, clock: Clock, memory: Memory) -> dict:
    """All of R³'s host work of one step."""
    from r3_openrlhf.method.history.store import HistoryStore
    from r3_openrlhf.stack.experience_maker import R3ExperienceMaker
    from r3_openrlhf.stack.samples_generator import R3SamplesGenerator

    scale, config = step.scale, step.config
    executor = executor_of(step, clock)
    flat, engine_bytes = engine_logprobs(scale, clock, responses=DISTINCT_LOGPROBS)
    history = HistoryStore.open(
        step.run.history,
        limits=config.history,
        seed=config.train.seed,
    )
    for number in range(1, STORED_STEPS + 1):
        history.commit_step(number, 1, stored_rollouts(step, flat, number))

    strategy = SimpleNamespace(args=step.args)
    from r3_openrlhf.problems.prompts import r3_of

    r3 = r3_of(config, history)
    generator = R3SamplesGenerator(strategy, None, None, step.tokenizer, [], config=config, r3=r3)
    maker = maker_of(r3_maker(R3ExperienceMaker), step, clock, config=config, r3=r3)
    generator.step = maker.step = STORED_STEPS
    generator.epoch = 2
    maker.split_rollout_samples = clock.timed("micro-batches", maker.split_rollout_samples)
    time_parts(maker, clock)

    memory.start()
    with clock.part("reflection prompts"):
        reflections = generator._further(step.prompts, step.labels)
    samples = asyncio.run(sampled(step, executor, flat, generator, clock))
    with clock.part("experience maker"):
        maker.make_experience_batch(samples)
    with clock.part("history"):
        history.commit_step(STORED_STEPS + 1, 2, maker.rollouts)
    with clock.part("rollouts"):
        step.run.write_rollouts(maker.step + 1, maker.records)
    peak_bytes = memory.peak()
    history.close()
    return {
        "peak_bytes": peak_bytes,
        "engine_bytes_per_response": engine_bytes,
        "history_bytes": step.run.history.stat().st_size,
        "rollouts_bytes": sum(file.stat().st_size for file in step.run.rollouts.iterdir()),
        "reflections": len(reflections),
        "recalled": maker.metrics["r3/replay/recalled"],
        "ranked_groups": maker.metrics["r3/ranking/groups"],
        "exact_groups": maker.metrics["r3/ranking/groups_exact"],
        "added_by_metrics_s": {key: value for key, value in maker.metrics.items() if key.startswith("r3/time/")},
    }


def executor_of(step: Step, clock: Clock):
    """The real rollout executor; each part that counts is timed, and grades are given."""
    from r3_openrlhf.stack import rollout_executor
    from r3_openrlhf.stack.environment import environment_of

    os.environ.update(environment_of(step.config))
    for name, function in (("arrays", "logprobs_array"), ("bounds", "topk_entropy_bounds")):
        setattr(rollout_executor, function, clock.timed(name, getattr(rollout_executor, function)))
    executor = rollout_executor.AgentExecutor()
    executor.vocab_size = VOCAB_SIZE
    return executor


async def sampled(step: Step, executor, flat: list, generator, clock: Clock) -> list:
    """One Experience per response, through executor, pickle and samples generator."""
    from r3_openrlhf.method.types import Verdict
    from r3_openrlhf.rewards.exchange import Grade
    from r3_openrlhf.stack import samples_generator

    record = clock.timed("records", samples_generator.rollout_from_response)
    samples_generator.rollout_from_response = record
    place = (0, 0)

    class Engine:
        async def generate(self, prompt_ids, params):
            with clock.part("given"):
                i, j = place
                logprobs = flat[(i * step.scale.samples + j) % len(flat)]
                reason = "stop" if is_correct(i, j) else "length"
                completion = SimpleNamespace(
                    token_ids=step.response_ids().tolist(), logprobs=logprobs, finish_reason=reason
                )
                return SimpleNamespace(outputs=[completion])

    class Grader:
        async def grade(self, request):
            correct = is_correct(*place)
            verdict = Verdict.CORRECT if correct else Verdict.WRONG
            return Grade(verdict=verdict, reason=verdict.value, score=float(correct), reward=step.reward(correct))

    executor.grader = Grader()
    tokenizer = Tokenizer(step.tokenizer, clock)
    samples = []
    for i, (prompt, label) in enumerate(zip(step.prompts, step.labels, strict=True)):
        for j in range(step.scale.samples):
            place = (i, j)
            with clock.part("executor"):
                response = await executor.execute(
                    prompt,
                    label,
                    SimpleNamespace(max_tokens=step.scale.tokens, seed=None, stop_token_ids=None),
                    step.config.data.max_len,
                    tokenizer,
                    Engine(),
                )
            with clock.part("crossing"):
                buffers = []
                data = pickle.dumps(response, protocol=5, buffer_callback=buffers.append)
                response = pickle.loads(data, buffers=[buffer.raw().tobytes() for buffer in buffers])
            with clock.part("responses to tensors"):
                samples.append(generator._process_response_into_experience(response, max_len=step.config.data.max_len))
    return samples


class Tokenizer:
    """Tells the decoding of a response, which stock vLLM does token by token, from the executor's other work."""

    def __init__(self, tokenizer, clock: Clock) -> None:
        self.tokenizer = tokenizer
        self.decode = clock.timed("decode", tokenizer.decode)

    def __call__(self, *args, **kwargs):
        return self.tokenizer(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


def r3_maker(upstream):
    """With exact entropies that are given instead of computed by the actor."""
    from r3_openrlhf.method.types import EntropyStatistics

    class Maker(upstream):
        def _announce_entropy(self, samples_list, wanted):
            self.wanted = wanted

        def _exact_entropy(self, samples_list):
            draw = random.Random(5)
            return {
                i: EntropyStatistics(peak=draw.uniform(1, 2), global_=draw.uniform(0, 1), source="exact")
                for i in sorted(self.wanted)
            }, 0.0

    return Maker


def time_parts(maker, clock: Clock) -> None:
    """Split the experience maker's time by its own methods."""
    for name, method in (
        ("group, recall", "_batch"),
        ("rows", "_samples"),
        ("old log-probs of recalled rows", "_set_old_logprobs"),
        ("advantages and returns", "_set_advantages"),
        ("metrics and records", "_report"),
    ):
        setattr(maker, method, clock.timed(name, getattr(maker, method)))


def stored_rollouts(step: Step, flat: list, number: int) -> list:
    """An earlier step's rollouts of the same problems. Half of the always-wrong problems were right once."""
    import numpy as np

    from r3_openrlhf.method.types import Context, Rollout, Verdict
    from r3_openrlhf.problems.training_file import Label

    columns = [np.asarray(f.logprobs[:: step.scale.top_logprobs + 1], dtype=np.float32) for f in flat]
    rollouts = []
    for i, label in enumerate(step.labels):
        for j in range(step.scale.samples):
            correct = problem_was_correct(i, j)
            rollouts.append(
                Rollout(
                    uid=Label.from_json(label).uid,
                    context=Context.PLAIN,
                    prompt_ids=np.array(step.prompt_ids[i], dtype=np.int32),
                    response_ids=step.response_ids(),
                    response_logprobs=columns[(i * step.scale.samples + j) % len(columns)],
                    verdict=Verdict.CORRECT if correct else Verdict.WRONG,
                    reward=step.reward(correct),
                    truncated=not correct,
                    finish_reason="stop" if correct else "length",
                    policy_step=number - 1,
                    epoch=1,
                    reason="correct" if correct else "wrong",
                )
            )
    return rollouts


def problem_was_correct(problem: int, sample: int) -> bool:
    return problem % 8 != 2 and sample % 4 == 0


def measure(side: str, scale: Scale, directory: str) -> dict:
    """Run one side ("stock" or "r3") in this process: {"parts": {name: [wall s, CPU s]}, "peak_bytes": ..., ...}."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import torch

    from r3_openrlhf.machine.cpu import cpu_platform

    torch.set_num_threads(scale.threads)
    if cpu_platform.is_needed():
        cpu_platform.install()  # importing OpenRLHF needs flash-attn's helpers
    clock, memory = Clock(), Memory()
    found = {"stock": stock_side, "r3": r3_side}[side](Step(scale, Path(directory) / side), clock, memory)
    return {"parts": {name: tuple(values) for name, values in clock.parts.items()}, **found}
