"""Measure the rates that `r3 plan` assumes, on one GPU in two minutes; without one on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

LAYERS = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 4, "num_attention_heads": 12,
          "num_key_value_heads": 2, "vocab_size": 1024}  # fmt: skip
TOKENS, SEQUENCES = 4096, 256  # of a micro-batch; of a decode step
COPIED = 2**30  # bytes from the host, and that a decode step reads
TENSORS = 50  # sent to another process
ON_A_CPU = {"hidden_size": 128, "intermediate_size": 256}


def calibrate(*, cuda: bool) -> dict[str, float]:
    """Measured rates by the names of formulas.Rates; FLOP and bytes per second, and seconds.

    forward, update: layers of a 1.5B model, in bfloat16. decode: products of a few tokens with
    weights that no cache holds. host_link: from pinned memory. tensor_sync_s: a tensor to another
    process of this machine and its answer (CUDA IPC on GPUs), without Ray's call."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from r3_openrlhf.runs.planning import formulas as f
    from r3_openrlhf.runs.planning.shapes import measured

    device, tokens, size = ("cuda", TOKENS, COPIED) if cuda else ("cpu", 64, 2**24)
    config = AutoConfig.for_model("qwen2", **LAYERS | ({} if cuda else ON_A_CPU))
    shape = measured(config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
    ids = torch.zeros((1, tokens), dtype=torch.long, device=device)
    weight = torch.ones((size // 2 // config.hidden_size, config.hidden_size), dtype=torch.bfloat16, device=device)
    few = torch.ones((config.hidden_size, SEQUENCES), dtype=torch.bfloat16, device=device)
    host = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    flops = f.forward_flops(shape, tokens=tokens, length=tokens)
    with torch.no_grad():
        rates = {"forward": flops / _seconds(lambda: model(ids))}
        rates["decode"] = weight.nbytes / _seconds(lambda: weight @ few)
    rates["update"] = 3 * flops / _seconds(lambda: model(ids).logits.float().sum().backward())
    rates["host_link"] = size / _seconds(lambda: host.to(device, non_blocking=True, copy=True))
    return rates | {"tensor_sync_s": _sync_seconds(device)}


def _seconds(work: Callable[[], Any]) -> float:
    """The median; the timer waits for the GPU."""
    from torch.utils.benchmark import Timer

    return Timer("work()", globals={"work": work}).blocked_autorange(min_run_time=2.0).median


def _sync_seconds(device: str) -> float:
    import torch

    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    receiver = context.Process(target=_receive, args=(tensors, answers), daemon=True)
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


def _receive(tensors: Any, answers: Any) -> None:
    while (tensor := tensors.get()) is not None:
        answers.put(tensor.sum().item())
        del tensor  # CUDA IPC: the sender's memory is in use for as long as this is
