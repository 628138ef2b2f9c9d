"""What does exact entropy cost beside the log-prob pass that runs anyway? Time and peak memory, in one run.

    python benchmarks/entropy.py --output entropy.json                        # one CUDA device, the paper's scale
    python benchmarks/entropy.py --device cpu --tokens 512 --vocab 20000      # the same script without one

All forms start from the same bfloat16 logits [tokens, vocabulary]:

    plain       log-probs as OpenRLHF's actor computes them: a float32 copy, gather - logsumexp by 1024 tokens
    unchunked   entropy as OpenRLHF's `compute_entropy`, not compiled: a float32 copy, softmax, logsumexp - sum(p * x)
    chunked N   r3_openrlhf.method.core.entropy.token_logprobs_and_entropy: both at once, N tokens at a time (auto: its default)

Time is the median of --repeats rounds, in each of which every form runs once. Memory is the peak above the logits
themselves (CUDA only). Ratios are to `plain`. Errors are to float64, over the first 64 tokens.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

from r3_openrlhf.method.core.entropy import token_logprobs_and_entropy  # noqa: E402

CHECKED_TOKENS = 64


def plain(logits_TV: torch.Tensor, labels_T: torch.Tensor) -> tuple[torch.Tensor, None]:
    """models/actor.py:260 and models/utils.py:160-188 of OpenRLHF 0.11.2, where flash-attn is absent."""
    logits_TV = logits_TV.to(torch.float32)
    label_T = logits_TV.gather(1, labels_T[:, None]).squeeze(1)
    return label_T - torch.cat(
        [chunk.logsumexp(dim=1) for chunk in logits_TV.split(1024)]
    ), None


def unchunked(logits_TV: torch.Tensor, labels_T: torch.Tensor) -> tuple[None, torch.Tensor]:
    """models/actor.py:260 and models/utils.py:216 of OpenRLHF 0.11.2."""
    logits_TV = logits_TV.to(torch.float32)
    probs_TV = torch.nn.functional.softmax(logits_TV, dim=-1)
    return None, torch.logsumexp(logits_TV, dim=-1) - torch.sum(probs_TV * logits_TV, dim=-1)


def chunked(chunk_tokens: int | None) -> Callable:
    return lambda logits_TV, labels_T: token_logprobs_and_entropy(
        logits_TV, labels_T, chunk_tokens=chunk_tokens
    )


def in_float64(
    logits_TV: torch.Tensor, labels_T: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_TV = logits_TV.double().log_softmax(dim=1)
    return logprobs_TV.gather(1, labels_T[:, None]).squeeze(1), torch.special.entr(
        logprobs_TV.exp()
    ).sum(dim=1)


def with_peak_bytes(
    form: Callable, logits_TV: torch.Tensor, labels_T: torch.Tensor
) -> tuple[tuple, int | None]:
    """(result, peak bytes allocated above those before the call). None on a CPU, where torch does not count them."""
    if not logits_TV.is_cuda:
        return form(logits_TV, labels_T), None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = form(logits_TV, labels_T)
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def seconds(form: Callable, logits_TV: torch.Tensor, labels_T: torch.Tensor) -> float:
    cuda = logits_TV.is_cuda
    if cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    form(logits_TV, labels_T)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def errors(found: tuple, exact: tuple) -> dict[str, float | None]:
    names = ("logprob_error", "entropy_error")
    return {
        name: None
        if values_T is None
        else float((values_T[:CHECKED_TOKENS].double() - exact_T).abs().max())
        for name, values_T, exact_T in zip(names, found, exact, strict=True)
    }


def measure(
    device: torch.device, num_tokens: int, vocab_size: int, chunks: list[int], repeats: int
) -> list[dict]:
    """One row per form: seconds, peak bytes, ratios to plain, errors; or the reason why it has none."""
    generator = torch.Generator(device).manual_seed(0)
    logits_TV = torch.empty(num_tokens, vocab_size, dtype=torch.bfloat16, device=device)
    # filled in parts: this script itself holds no float32 copy
    for rows_TV in logits_TV.split(256):
        rows_TV.copy_(torch.randn(rows_TV.shape, generator=generator, device=device) * 3)
    labels_T = torch.randint(vocab_size, (num_tokens,), generator=generator, device=device)
    exact = in_float64(logits_TV[:CHECKED_TOKENS], labels_T[:CHECKED_TOKENS])

    forms = {"plain": plain, "unchunked": unchunked, "chunked auto": chunked(None)} | {
        f"chunked {n}": chunked(n) for n in chunks
    }
    rows = {}
    for name, form in forms.items():  # also the warm-up
        try:
            found, peak_bytes = with_peak_bytes(form, logits_TV, labels_T)
            rows[name] = {"form": name, "peak_bytes": peak_bytes, **errors(found, exact)}
        except torch.cuda.OutOfMemoryError:
            rows[name] = {"form": name, "failed": "out of memory"}
        found = None
    working = [name for name in forms if "failed" not in rows[name]]
    times: dict[str, list[float]] = {name: [] for name in working}
    for _ in range(repeats):
        for name in working:
            times[name].append(seconds(forms[name], logits_TV, labels_T))
    for name in working:
        row = rows[name]
        row["seconds"] = statistics.median(times[name])
        if "plain" in working:
            row["seconds_ratio"] = row["seconds"] / statistics.median(times["plain"])
            if row["peak_bytes"] is not None and rows["plain"]["peak_bytes"]:
                row["peak_ratio"] = row["peak_bytes"] / rows["plain"]["peak_bytes"]
    return list(rows.values())


def machine(device: torch.device) -> dict:
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return facts | {
            "device": properties.name,
            "device_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return facts | {"device": f"cpu, {torch.backends.cpu.get_cpu_capability()}"}


def table(rows: list[dict]) -> str:
    def cell(row: dict, key: str, pattern: str, factor: float = 1) -> str:
        return "-" if row.get(key) is None else pattern.format(row[key] * factor)

    lines = [
        f"{'form':<14}{'ms':>10}{'x plain':>9}{'peak MiB':>11}{'x plain':>9}{'logprob err':>13}{'entropy err':>13}"
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"{row['form']:<14}{row['failed']:>20}")
            continue
        lines.append(
            f"{row['form']:<14}{cell(row, 'seconds', '{:.2f}', 1e3):>10}{cell(row, 'seconds_ratio', '{:.2f}'):>9}"
            f"{cell(row, 'peak_bytes', '{:.1f}', 2**-20):>11}{cell(row, 'peak_ratio', '{:.3f}'):>9}"
            f"{cell(row, 'logprob_error', '{:.1e}'):>13}{cell(row, 'entropy_error', '{:.1e}'):>13}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 32, 64, 128, 256, 1024])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument(
        "--output", type=Path, help="also write the rows and the machine's facts as JSON"
    )
    arguments = parser.parse_args(argv)
    for name in ("tokens", "vocab", "repeats"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name)}; use 1 or more")
    if min(arguments.chunks) < 1:
        parser.error(f"--chunks holds {min(arguments.chunks)}; use 1 or more")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "Skipped: torch sees no CUDA device here. Use --device cpu --tokens 512 --vocab 20000 to try the script."
        )
        return 0

    device = torch.device(arguments.device)
    facts = machine(device) | {
        "tokens": arguments.tokens,
        "vocab": arguments.vocab,
        "repeats": arguments.repeats,
    }
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    rows = measure(
        device, arguments.tokens, arguments.vocab, arguments.chunks, arguments.repeats
    )
    print(table(rows))
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
