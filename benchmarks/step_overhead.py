"""What R³ adds to a training step.

    python benchmarks/step_overhead.py host                    # R³'s work on the host at the paper's scale; no engine
    python benchmarks/step_overhead.py stack                   # stock GRPO and R³ through the whole stack, tiny model
    python benchmarks/step_overhead.py stack --model smollm2   # the same with a real model, as in the quickstart

`host` runs the real code on synthetic responses of full length (_host_work.py): once R³, once stock OpenRLHF's
controller on the same responses, each in a process of its own. Targets: 3 s and 2 GB on top per step.
`stack` runs `r3 train` for both, in turn (_stack_runs.py). Target: R³'s own work at most 2 % of a step, with a real
model. On the tiny one a step is over in a second, and what costs the same at any size looks large.
Seconds are wall clock; on a machine that does other work, read the CPU seconds and the ratios.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout that is not installed

import _host_work  # noqa: E402
import _stack_runs  # noqa: E402

# (part, row of the table, where it happens). "controller": one process; "engines": shared by all rollout engines.
PARTS = (
    ("collected", "top-k log-probs, collected token by token", "engines"),
    ("arrays", "the same as an array", "engines"),
    ("bounds", "entropy bounds", "engines"),
    ("other", "executor, the rest (prompt tokens, response dict)", "engines"),
    ("reflection prompts", "reflection prompts", "controller"),
    ("records", "responses to records", "controller"),
    ("group, recall", "groups, recall", "controller"),
    ("rows", "recalled rows and fillers as rows", "controller"),
    ("old log-probs of recalled rows", "old log-probs of recalled rows", "controller"),
    ("advantages and returns", "advantages and returns as tensors", "controller"),
    ("metrics and records", "metrics, records", "controller"),
    ("maker, other", "experience maker, the rest (ranking, eq. 3, log-prob gap)", "controller"),
    ("history", "history commit", "controller"),
    ("rollouts", "rollout file, with texts", "controller"),
)
TARGET_S, TARGET_BYTES = 3.0, 2e9
GB = 1e9


def host(arguments: argparse.Namespace) -> dict:
    from r3_openrlhf.runs.models.locate import resolve_model

    scale = _host_work.Scale(
        prompts=arguments.prompts,
        samples=arguments.samples,
        tokens=arguments.tokens,
        top_logprobs=arguments.top_logprobs,
        engines=arguments.engines,
        tokenizer=resolve_model(arguments.tokenizer),
        threads=arguments.threads,
    )
    os.environ["OMP_NUM_THREADS"] = str(scale.threads)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["_host_work", *_host_work.LIBRARIES])  # once for both sides
    found = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for side in ("stock", "r3"):
            print(f"{side}: {scale.rollouts} responses", file=sys.stderr, flush=True)
            # a fresh process: the peak of one side says nothing about the other's
            with ProcessPoolExecutor(1, mp_context=processes) as pool:
                found[side] = pool.submit(_host_work.measure, side, scale, directory).result()
    numbers = host_numbers(scale, found)
    print(host_table(scale, found, numbers))
    return {"scale": asdict(scale), "found": found, **numbers}


def host_numbers(scale: _host_work.Scale, found: dict) -> dict:
    """Seconds as (wall, CPU) per part; per process, so what the engines share is divided by their number."""
    parts = {name: tuple(values) for name, values in found["r3"]["parts"].items()}
    inside = ("given", "decode", "arrays", "bounds")
    parts["other"] = minus(parts["executor"], *(parts[name] for name in inside))
    parts["collected"] = of_all(scale, parts["collected"], _host_work.DISTINCT_LOGPROBS)
    # `given` is the engine's answer inside the executor, and the forward passes inside the maker
    inside = ("micro-batches", "given forward") + tuple(
        name for name, _, where in PARTS if where == "controller" and name in parts and name not in OUTSIDE_MAKER
    )
    parts["maker, other"] = minus(parts["experience maker"], *(parts[name] for name in inside))
    totals = {
        where: tuple(sum(parts[name][clock] for name, _, place in PARTS if place == where) for clock in (0, 1))
        for where in ("engines", "controller")
    }
    totals["engines"] = tuple(seconds / scale.engines for seconds in totals["engines"])
    return {
        "parts": parts,
        "totals": totals,
        "added_s": tuple(a + b for a, b in zip(totals["engines"], totals["controller"], strict=True)),
        "added_bytes": found["r3"]["peak_bytes"] - found["stock"]["peak_bytes"],
    }


OUTSIDE_MAKER = ("reflection prompts", "records", "history", "rollouts")


def minus(whole: tuple[float, float], *parts: tuple[float, float]) -> tuple[float, float]:
    return tuple(max(0.0, whole[clock] - sum(part[clock] for part in parts)) for clock in (0, 1))


def of_all(scale: _host_work.Scale, seconds: tuple[float, float], responses: int) -> tuple[float, float]:
    """Of every response of the step, from those of a few."""
    return tuple(value / responses * scale.rollouts for value in seconds)


def host_table(scale: _host_work.Scale, found: dict, numbers: dict) -> str:
    parts, r3, stock = numbers["parts"], found["r3"], found["stock"]
    lines = [
        f"{scale.prompts} prompts x {scale.samples} responses x {scale.tokens} tokens, top-{scale.top_logprobs}, "
        f"{scale.engines} engines ({scale.rollouts / scale.engines:g} responses each), {scale.threads} thread(s)",
        f"{r3['recalled']:.0f} rows recalled, {r3['reflections']} reflection prompts, {r3['ranked_groups']:.0f} ranked "
        f"groups ({r3['exact_groups']:.0f} by exact entropy); history file {r3['history_bytes'] / GB:.2f} GB, this step "
        f"in rollouts/ {r3['rollouts_bytes'] / GB:.3f} GB",
    ]

    def head(title: str) -> None:
        lines.extend(["", f"{title:<66}{'wall s':>8}{'CPU s':>8}"])

    def row(name: str, seconds: tuple[float, float]) -> None:
        lines.append(f"{name:<66}{seconds[0]:>8.3f}{seconds[1]:>8.3f}")

    for where, title in (
        ("engines", "what R³ does in each engine, while it samples"),
        ("controller", "what R³ does in the controller"),
    ):
        head(title)
        for name, text, place in PARTS:
            if place == where:
                share = scale.engines if where == "engines" else 1
                row(text, tuple(seconds / share for seconds in parts[name]))
        row("sum", numbers["totals"][where])
    lines.append("")
    row(f"both (target {TARGET_S:g} s)", numbers["added_s"])

    def per_engine(seconds: tuple[float, float]) -> tuple[float, float]:
        return tuple(value / scale.engines for value in seconds)

    head("for comparison")
    flat = of_all(scale, stock["parts"]["collected"], _host_work.FLAT_LOGPROBS)
    row("top-k log-probs in vLLM's own container, per engine", per_engine(flat))
    row("decoding in the executor, per engine (else vLLM's, by token)", per_engine(parts["decode"]))
    row("responses cross to the controller, stock", stock["parts"]["crossing"])
    row("responses cross to the controller, R³", parts["crossing"])
    row("responses to tensors, stock", stock["parts"]["responses to tensors"])
    row("responses to tensors, R³", minus(parts["responses to tensors"], parts["records"]))
    row("micro-batches, stock", stock["parts"]["micro-batches"])
    row("micro-batches, R³ (upstream's code, recalled rows included)", parts["micro-batches"])
    row(
        "advantages and returns, stock",
        minus(*(stock["parts"][name] for name in ("experience maker", "micro-batches", "given forward"))),
    )
    in_flight = r3["engine_bytes_per_response"] * scale.rollouts
    lines += [
        "",
        f"peak memory of the controller above its input: stock {stock['peak_bytes'] / GB:.2f} GB, R³ "
        f"{r3['peak_bytes'] / GB:.2f} GB, on top {numbers['added_bytes'] / GB:.2f} GB (target {TARGET_BYTES / GB:g} GB)",
        f"before that, top-k log-probs in flight: {r3['engine_bytes_per_response'] / 1e6:.2f} MB a response, "
        f"{in_flight / GB:.2f} GB in all engines if every response were at its end at once (vLLM's own container: "
        f"{stock['engine_bytes_per_response'] / 1e6:.2f} MB, {stock['engine_bytes_per_response'] * scale.rollouts / GB:.1f} GB)",
    ]
    return "\n".join(lines)


def stack(arguments: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        found = _stack_runs.run_pairs(
            arguments.model,
            rounds=arguments.rounds,
            steps=arguments.steps,
            overrides=arguments.overrides,
            directory=Path(directory),
            timeout_s=arguments.timeout_s,
        )
    text, numbers = _stack_runs.report(found, warmup=arguments.warmup)
    print(text)
    if arguments.model == "tiny":
        print(
            "tiny model: the shares are those of costs that do not grow with the model; judge the target with a real one"
        )
    return {"model": arguments.model, "found": found, **numbers}


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--output", type=Path, help="also write every number as JSON")
    common.add_argument("--directory", type=Path, help="where temporary files go (default: the system's)")
    commands = parser.add_subparsers(dest="command")
    one = commands.add_parser("host", parents=[common], help="R³'s work on the host, without engine and models")
    one.add_argument("--prompts", type=int, default=128)
    one.add_argument("--samples", type=int, default=16, help="responses to a prompt")
    one.add_argument("--tokens", type=int, default=8192, help="tokens of every response")
    one.add_argument("--top-logprobs", type=int, default=20)
    one.add_argument("--engines", type=int, default=8)
    one.add_argument("--threads", type=int, default=1, help="of torch, in the measured process")
    one.add_argument("--tokenizer", default="smollm2", help="a name or directory as model.path takes it")
    two = commands.add_parser("stack", parents=[common], help="stock GRPO and R³ through the whole stack")
    two.add_argument("--model", choices=sorted(_stack_runs.PAIRS), default="tiny")
    two.add_argument("--rounds", type=int, default=2, help="runs of each side")
    two.add_argument("--steps", type=int, help="steps of a run (default: all of the experiment's)")
    two.add_argument("--warmup", type=int, default=1, help="first steps of each run that do not count")
    two.add_argument("--timeout-s", type=float, default=3600, help="of one run")
    two.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="configuration of both sides")
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        return parsed(["host"])
    low = {
        "host": dict(prompts=8, samples=2, tokens=32, top_logprobs=1, engines=1, threads=1),
        "stack": dict(rounds=1),
    }
    for name, least in low[arguments.command].items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; use {least} or more")
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parsed(argv)
    print(f"python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    try:
        numbers = {"host": host, "stack": stack}[arguments.command](arguments)
    except _stack_runs.RunFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    if arguments.output:
        arguments.output.write_text(json.dumps(numbers, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
