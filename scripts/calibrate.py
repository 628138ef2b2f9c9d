"""Measure on one GPU the rates that `r3 plan` assumes, in two minutes; docs/cluster.md.

    python scripts/calibrate.py experiment=r3_1p5b_deepscaler_8gpu gpu=h100-80gb

It prints the rates, and the plan's seconds with them. Without a GPU it is a rehearsal on a small model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.config.loading import load_config, split_settings  # noqa: E402
from r3_openrlhf.runs.planning import formulas as f  # noqa: E402
from r3_openrlhf.runs.planning.forecast import make_plan, num_problems_of  # noqa: E402
from r3_openrlhf.runs.planning.hardware import DEFAULT, Gpu, gpu_named  # noqa: E402
from r3_openrlhf.runs.planning.shapes import measured, shape_of  # noqa: E402

LAYERS = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
}
LAYERS |= {"num_key_value_heads": 2, "vocab_size": 1024}
ON_A_CPU = {"hidden_size": 128, "intermediate_size": 256}
TOKENS, SEQUENCES = 4096, 256  # of a micro-batch; of a decode step
COPIED = 2**30  # bytes from the host, and that a decode step reads
TENSORS = 50  # sent to another process


def measured_rates(gpu: Gpu, *, cuda: bool) -> dict[str, float]:
    """Rates by the names of formulas.Rates: shares of this GPU's sheet, bytes per second, seconds.

    forward, update: layers of a 1.5B model, in bfloat16. decode: products of a few tokens with weights that no cache holds.
    host_link: from pinned memory. tensor_sync_s: a tensor to another process and its answer (CUDA IPC), without Ray's call.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device, tokens, size = ("cuda", TOKENS, COPIED) if cuda else ("cpu", 64, 2**24)
    config = AutoConfig.for_model("qwen2", **LAYERS | ({} if cuda else ON_A_CPU))
    flops = f.forward_flops(measured(config), tokens=tokens, length=tokens)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).to(device)
    ids = torch.zeros((1, tokens), dtype=torch.long, device=device)
    weight = torch.ones(
        (size // 2 // config.hidden_size, config.hidden_size),
        dtype=torch.bfloat16,
        device=device,
    )
    few = torch.ones((config.hidden_size, SEQUENCES), dtype=torch.bfloat16, device=device)
    host = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    with torch.no_grad():
        forward = flops / seconds_of(lambda: model(ids)) / gpu.flops
        decode = weight.nbytes / seconds_of(lambda: weight @ few) / gpu.bandwidth
    update = (
        3 * flops / seconds_of(lambda: model(ids).logits.float().sum().backward()) / gpu.flops
    )
    host_link = size / seconds_of(lambda: host.to(device, non_blocking=True, copy=True))
    return {
        "forward": forward,
        "update": update,
        "decode": decode,
        "host_link": host_link,
        "tensor_sync_s": sync_seconds(device),
    }


def seconds_of(work: Callable[[], Any]) -> float:
    """The median; the timer waits for the GPU."""
    from torch.utils.benchmark import Timer

    return Timer("work()", globals={"work": work}).blocked_autorange(min_run_time=2.0).median


def sync_seconds(device: str) -> float:
    import torch

    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    receiver = context.Process(target=receive, args=(tensors, answers), daemon=True)
    receiver.start()
    times = []
    for _ in range(TENSORS):
        tensor = torch.ones(2**20, dtype=torch.bfloat16, device=device)
        started = time.perf_counter()
        tensors.put(tensor)
        answers.get(timeout=120)
        times.append(time.perf_counter() - started)
    tensors.put(None)
    receiver.join()
    return statistics.median(times)


def receive(tensors: Any, answers: Any) -> None:
    while (tensor := tensors.get()) is not None:
        answers.put(tensor.sum().item())
        del tensor  # CUDA IPC: the sender's memory is in use for as long as this is


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "settings", nargs="+", metavar="experiment=NAME [gpu=NAME] [KEY=VALUE]..."
    )
    settings = tuple(parser.parse_args().settings)
    chosen = [
        setting.removeprefix("gpu=") for setting in settings if setting.startswith("gpu=")
    ]
    config = load_config(
        *split_settings([one for one in settings if not one.startswith("gpu=")], command="plan")
    )
    gpu, cuda = gpu_named((chosen or [DEFAULT])[0]), torch.cuda.is_available()
    found = measured_rates(gpu, cuda=cuda)
    print(json.dumps(found, indent=1))
    if not cuda:
        print("A rehearsal on a CPU: these are no rates of a GPU.", file=sys.stderr)
    sizes = {"num_problems": num_problems_of(config) or 1, "rates": replace(f.RATES, **found)}
    plan = make_plan(config, shape_of(config.model.path), gpu, **sizes)
    parts = ", ".join(f"{phase.name} {phase.seconds:,.1f}" for phase in plan.phases)
    print(f"{plan.step_s:,.0f} s a step: {parts}")


if __name__ == "__main__":
    main()
