"""What does the training pass hold for the logits of one long row: all at once, as upstream, and in chunks?

    python benchmarks/logits_memory.py                              # 2,048 tokens, 152k words, on a CPU, a minute
    python benchmarks/logits_memory.py --tokens 36864 --device cuda   # the row that did not fit

A head of --hidden inputs stands for the model. The loss weighs each token by itself, as a policy loss does. Each way is a
process of its own; the peak is above what it held before the forward pass (on a CPU VmHWM, set back before it; on CUDA
torch's own count). Upstream's lines: models/actor.py:252-277, models/utils.py:172-188. The gradient of the weight is a
part of both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch


def upstream(device: torch.device):
    """OpenRLHF's function; its import is no part of what is measured."""
    if device.type == "cpu":  # OpenRLHF imports flash_attn
        from r3_openrlhf.machine.cpu import cpu_platform

        cpu_platform.install()
    from openrlhf.models.utils import log_probs_from_logits

    return log_probs_from_logits


def measure(way: str, options: argparse.Namespace) -> dict[str, float]:
    from r3_openrlhf.stack.chunked_logprobs import chunked_logprobs

    generator = torch.Generator().manual_seed(0)
    device = torch.device(options.device)
    log_probs_from_logits = upstream(device)
    hidden_TH = (
        torch.randn(options.tokens, options.hidden, generator=generator)
        .bfloat16()
        .to(device)
        .requires_grad_()
    )
    weight_VH = (
        (torch.randn(options.words, options.hidden, generator=generator) / 8)
        .bfloat16()
        .to(device)
    )
    weight_VH.requires_grad_()
    labels_T = torch.randint(options.words, (options.tokens,), generator=generator).to(device)
    advantages_T = torch.randn(options.tokens, generator=generator).to(device)
    before = start_of_peak(device)
    started = time.perf_counter()
    if way == "in chunks":
        logprobs_T = chunked_logprobs(
            hidden_TH, weight_VH, labels_T, chunk_tokens=options.chunk
        )
    else:
        logits_1TV = (hidden_TH @ weight_VH.T).to(torch.float32)[None]
        logprobs_T = log_probs_from_logits(logits_1TV, labels_T[None])[0]
    loss = (logprobs_T * advantages_T).mean()
    loss.backward()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {
        "seconds": time.perf_counter() - started,
        "peak": peak_of(device) - before,
        "loss": loss.item(),
        "gradient": weight_VH.grad.double().norm().item(),
    }


def start_of_peak(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak starts from now
    return status("VmRSS")


def peak_of(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else status("VmHWM")


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--words", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--way", choices=("all at once", "in chunks"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options)))
        return
    found = {}
    for way in ("all at once", "in chunks"):
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[way] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{options.tokens} tokens, {options.words} words, hidden size {options.hidden}, chunks of {options.chunk}"
    )
    for way, numbers in found.items():
        per_logit = numbers["peak"] / (options.tokens * options.words)
        print(
            f"{way:<12} peak {numbers['peak'] / 2**30:6.2f} GiB ({per_logit:.2f} bytes a token and word), "
            f"{numbers['seconds']:.1f} s, loss {numbers['loss']:.6f}, gradient {numbers['gradient']:.6f}"
        )
    print(f"peak: {found['all at once']['peak'] / found['in chunks']['peak']:.1f} times")


if __name__ == "__main__":
    main()
