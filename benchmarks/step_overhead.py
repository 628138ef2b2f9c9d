"""Measure what R³ adds to a training step: stock GRPO and R³ through the whole stack, in turn, on the same model and prompts.

    python benchmarks/step_overhead.py                   # a tiny model
    python benchmarks/step_overhead.py --model smollm2   # a real one, as in the quickstart
    python benchmarks/step_overhead.py --rounds 3 ranking.entropy_source=exact    # with configuration of both sides
    python benchmarks/step_overhead.py --every-row       # both with train.skip_zero_advantage=false beside them

The baseline is OpenRLHF's own estimator and policy update with R³'s three mechanisms off. It runs in the same program, so what
records a rollout (executor, rollout files) is in both. Target: R³'s own work at most 2 % of a step, with a real model. On the tiny
one a step is over in a second, and what costs the same at any size looks large. On a machine that does other work, read the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # runs from a checkout that is not installed

from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402

GRACE_S = 60  # for a run that is asked to end

PAIRS = {"tiny": ("grpo_cpu_smoke", "cpu_smoke"), "smollm2": ("grpo_quickstart", "quickstart")}
PHASES = {
    "sampling": "timing/generation",
    "log-probs, rewards, advantages": "timing/make_experience",
    "policy update": "timing/ppo_train",
    "weights to the engine": "timing/broadcast",
    "sum of the four": "timing/step_total",
}


EVERY_ROW = ", every row"  # ends the name of a side whose rows all pass through the model, as upstream's do

WORK = {
    "rollouts sampled": "sampled_rows",
    "rows trained": "trained_rows",
    "tokens sampled": "sampled_tokens",
    "tokens of trained rows, prompts included": "trained_tokens",
}


class RunFailed(Exception):
    """A training run ended with an error; the message is what it printed last."""


def run_pairs(
    model: str,
    *,
    rounds: int,
    steps: int | None,
    overrides: list[str],
    directory: Path,
    timeout_s: float,
    every_row: bool = False,
) -> dict[str, list[dict]]:
    """Return every step of every run by side ("stock", "r3"; with every_row also both with EVERY_ROW).

    Rounds alternate, and so does the side that is first."""
    sides = dict(zip(("stock", "r3"), PAIRS[model], strict=True))
    if every_row:
        sides |= {side + EVERY_ROW: experiment for side, experiment in sides.items()}
    of_sides: dict[str, list[dict]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, experiment in list(sides.items())[:: 1 if number % 2 == 0 else -1]:
            run_dir = directory / f"{side.replace(', ', '_').replace(' ', '_')}_{number}"
            settings = [f"run_dir={run_dir}", "checkpoint.save_steps=-1", *overrides]
            if side.endswith(EVERY_ROW):
                settings.append("train.skip_zero_advantage=false")
            if steps is not None:
                settings.append(f"train.max_steps={steps}")
            print(f"round {number + 1} of {rounds}: {experiment}", file=sys.stderr, flush=True)
            train(experiment, settings, timeout_s=timeout_s)
            of_sides[side] += steps_of(run_dir)
    return of_sides


def train(experiment: str, settings: list[str], *, timeout_s: float) -> None:
    """Run `r3 train` as a user starts it. None of its processes is left when this returns. Raises RunFailed."""
    command = [
        Path(sys.executable).with_name("r3"),
        "train",
        f"experiment={experiment}",
        *settings,
    ]
    process = psutil.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, printed = process.communicate(timeout=timeout_s)
    except BaseException as error:
        end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise RunFailed(f"{experiment} took more than {timeout_s:.0f} s") from None
        raise
    if process.returncode != 0:
        raise RunFailed(f"{experiment} failed: {printed.strip()[-2000:]}")


def end(process: psutil.Popen) -> None:
    """Ask the run to end, as Ctrl-C does, then end what is left of it: Ray's daemons, its workers and the engines."""
    tree = [process, *process.children(recursive=True)]
    process.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(tree, timeout=GRACE_S)
    for left in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    psutil.wait_procs(alive, timeout=GRACE_S)


def steps_of(run_dir: Path) -> list[dict]:
    """Return one dict per step: seconds, and the rows and tokens that the seconds were spent on."""
    rollouts = list(RunDirectory(run_dir).read_rollouts())
    steps = []
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        metrics = json.loads(line)
        rows = [row for row in rollouts if row["step"] == metrics["step"]]
        sampled = [row for row in rows if row["recalled_from"] is None]
        steps.append(
            metrics
            | {
                "sampled_rows": len(sampled),
                "sampled_tokens": sum(row["num_tokens"] for row in sampled),
                "trained_rows": sum(row["advantage"] is not None for row in rows),
            }
        )
    return steps


def report(stock: list[dict], r3: list[dict]) -> tuple[str, dict]:
    """Return medians and means over the given steps with their ratios, as a table and as a dict."""
    numbers: dict = {"values": {}, "ratios": {}}
    lines = [f"{'':<52}{'stock':>10}{'R³':>10}{'R³/stock':>10}"]

    def add(name: str, of_stock: float, of_r3: float) -> None:
        numbers["values"][name], numbers["ratios"][name] = (of_stock, of_r3), of_r3 / of_stock
        lines.append(f"{name:<52}{of_stock:>10.4g}{of_r3:>10.4g}{of_r3 / of_stock:>10.2f}")

    for name, key in PHASES.items():
        add(
            f"{name}, median s a step",
            *(statistics.median(step[key] for step in side) for side in (stock, r3)),
        )
    for name, key in WORK.items():
        add(
            f"{name}, mean of a step",
            *(statistics.fmean(step[key] for step in side) for side in (stock, r3)),
        )
    add(
        "sampling, ms per token sampled",
        *(ms_per(side, "timing/generation", "sampled_tokens") for side in (stock, r3)),
    )
    add(
        "policy update, ms per token trained",
        *(ms_per(side, "timing/ppo_train", "trained_tokens") for side in (stock, r3)),
    )
    added = [step["r3/time/added_s"] for step in r3]
    numbers["added_s"] = statistics.median(added)
    numbers["added_share"] = sum(added) / sum(step["timing/step_total"] for step in r3)
    counts = {
        key: sum(step[f"r3/{key}"] for step in r3)
        for key in ("replay/recalled", "reflection/groups", "ranking/groups")
    }
    lines += [
        "",
        f"added by R³ itself: median {numbers['added_s']:.4f} s a step, {numbers['added_share']:.2%} of all steps' time",
        "in these steps: " + ", ".join(f"{key} {count:.0f}" for key, count in counts.items()),
    ]
    return "\n".join(lines), numbers


def report_of_skipping(of_sides: dict[str, list[dict]]) -> str:
    """Return median seconds of each side's phases, and what they are of a stock step whose rows all pass."""
    sides = ["stock" + EVERY_ROW, "stock", "r3" + EVERY_ROW, "r3"]
    lines = [f"{'median s a step':<34}" + "".join(f"{side:>26}" for side in sides)]
    for name, key in PHASES.items():
        medians = [statistics.median(step[key] for step in of_sides[side]) for side in sides]
        cells = (f"{value:.3f} ({value / medians[0]:.2f})" for value in medians)
        lines.append(f"{name:<34}" + "".join(f"{cell:>26}" for cell in cells))
    for side in ("stock", "r3"):
        skipped = sum(step["r3/update/skipped_rows"] for step in of_sides[side])
        passed = sum(step["r3/update/rows"] for step in of_sides[side])
        lines.append(f"{side}: {skipped / (skipped + passed):.0%} of the rows have no gradient")
    return "\n".join(lines)


def ms_per(steps: list[dict], seconds: str, work: str) -> float:
    return 1e3 * sum(step[seconds] for step in steps) / sum(step[work] for step in steps)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(PAIRS), default="tiny")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side")
    parser.add_argument(
        "--steps", type=int, help="steps of a run (default: all of the experiment's)"
    )
    parser.add_argument(
        "--warmup", type=int, default=1, help="first steps of each run that do not count"
    )
    parser.add_argument(
        "--every-row",
        action="store_true",
        help="also run both with train.skip_zero_advantage=false",
    )
    parser.add_argument("--timeout-s", type=float, default=3600, help="of one run")
    parser.add_argument("--output", type=Path, help="also write every number as JSON")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="configuration of both sides"
    )
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as directory:
        try:
            steps = run_pairs(
                options.model,
                rounds=options.rounds,
                steps=options.steps,
                overrides=options.overrides,
                directory=Path(directory),
                timeout_s=options.timeout_s,
                every_row=options.every_row,
            )
        except RunFailed as error:
            print(f"Error: {error}", file=sys.stderr)
            return 1
    counted = {
        side: [step for step in of_side if step["step"] > options.warmup]
        for side, of_side in steps.items()
    }
    if not all(counted.values()):
        print(
            f"Error: no step is left after the first {options.warmup} of each run",
            file=sys.stderr,
        )
        return 1
    text, numbers = report(counted["stock"], counted["r3"])
    print(text)
    if options.every_row:
        print(report_of_skipping(counted))
    if options.output:
        options.output.write_text(json.dumps(numbers | {"steps": steps}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
