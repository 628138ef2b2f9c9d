"""Stock GRPO and R³ through the whole stack, in turn, on the same model and prompts; for step_overhead.py.

The baseline is OpenRLHF's own estimator and policy update with R³'s three mechanisms off. It runs in the same program,
so what records a rollout (executor, rollout files) is in both.
"""

from __future__ import annotations

import contextlib
import json
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import psutil

from r3_openrlhf.runs.directory import RunDirectory

ROOT = Path(__file__).parents[1]
GRACE_S = 60  # for a run that is asked to end

PAIRS = {"tiny": ("grpo_cpu_smoke", "cpu_smoke"), "smollm2": ("grpo_quickstart", "quickstart")}
PHASES = {
    "sampling": "timing/generation",
    "log-probs, rewards, advantages": "timing/make_experience",
    "policy update": "timing/ppo_train",
    "weights to the engine": "timing/broadcast",
    "sum of the four": "timing/step_total",
}


class RunFailed(Exception):
    """A training run ended with an error; the message is what it printed last."""


def run_pairs(
    model: str, *, rounds: int, steps: int | None, overrides: list[str], directory: Path, timeout_s: float
) -> dict[str, list[dict]]:
    """Every step of every run, by side ("stock", "r3"). Rounds alternate, and so does who goes first."""
    sides = dict(zip(("stock", "r3"), PAIRS[model], strict=True))
    found: dict[str, list[dict]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, experiment in list(sides.items())[:: 1 if number % 2 == 0 else -1]:
            run_dir = directory / f"{side}_{number}"
            settings = [f"run_dir={run_dir}", "checkpoint.save_steps=-1", *overrides]
            if steps is not None:
                settings.append(f"train.max_steps={steps}")
            print(f"round {number + 1} of {rounds}: {experiment}", file=sys.stderr, flush=True)
            train(experiment, settings, timeout_s=timeout_s)
            found[side] += [{**step, "round": number} for step in steps_of(run_dir)]
    return found


def train(experiment: str, settings: list[str], *, timeout_s: float) -> None:
    """`r3 train` as a user starts it. None of its processes is left when this returns. Raises RunFailed."""
    command = [Path(sys.executable).with_name("r3"), "train", f"experiment={experiment}", *settings]
    process = psutil.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
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
    """One dict per step: seconds, and the rows and tokens that the seconds were spent on."""
    rollouts = list(RunDirectory(run_dir).read_rollouts())
    with (run_dir / "metrics.jsonl").open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    ended = {event.step: event.wall_time for event in events_of(run_dir / "tensorboard")}
    steps = []
    for line in lines:
        rows = [row for row in rollouts if row["step"] == line["step"]]
        sampled = [row for row in rows if row["recalled_from"] is None]
        trained = [row for row in rows if row["advantage"] is not None]
        before = ended.get(line["step"] - 1)
        steps.append(
            {
                "step": line["step"],
                "epoch": line["epoch"],
                **{key: line[key] for key in PHASES.values()},
                # between the ends of two steps; also what upstream's four timings leave out
                "clock": ended[line["step"]] - before if before is not None else None,
                "sampled_rows": len(sampled),
                "sampled_tokens": sum(row["num_tokens"] for row in sampled),
                "trained_rows": len(trained),
                "trained_tokens": sum(row["num_tokens"] for row in trained),
                "row_tokens": line["trained_tokens"],  # with the prompts, which the update goes through as well
                **{key: value for key, value in line.items() if key.startswith("r3/time/")},
                **{key: line[key] for key in ("r3/replay/recalled", "r3/reflection/groups", "r3/ranking/groups")},
            }
        )
    return steps


def events_of(directory: Path) -> list:
    """TensorBoard's scalar events of one metric: each carries the time at which its step was logged."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = directory.rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(file)).Reload()
    tag = next(tag for tag in accumulator.Tags()["scalars"] if tag.endswith("timing/step_total"))
    return accumulator.Scalars(tag)


# ── what it says ──


def report(found: dict[str, list[dict]], *, warmup: int) -> tuple[str, dict]:
    """Medians over steps after the first `warmup` of each run, their ratios, and the same numbers as a dict."""
    sides = {side: [s for s in steps if s["step"] > warmup] for side, steps in found.items()}
    stock, r3 = sides["stock"], sides["r3"]
    if not stock or not r3:
        raise RunFailed(f"no step is left after the first {warmup} of each run; use more steps or a smaller --warmup")
    numbers: dict = {"steps": {side: len(steps) for side, steps in sides.items()}, "seconds": {}, "ratios": {}}
    lines = [f"{'median seconds per step':<52}{'stock':>10}{'R³':>10}{'R³/stock':>10}"]

    def add(name: str, one: float, other: float) -> None:
        numbers["seconds"][name], numbers["ratios"][name] = (one, other), other / one
        lines.append(f"{name:<52}{one:>10.4g}{other:>10.4g}{other / one:>10.2f}")

    for name, key in PHASES.items():
        add(name, median(stock, key), median(r3, key))
    if all(any(s["clock"] is not None for s in steps) for steps in sides.values()):
        add("from one step's end to the next", median(stock, "clock"), median(r3, "clock"))
    first = [[s for s in steps if s["epoch"] == 1] for steps in (stock, r3)]
    if all(first):  # nothing is stored yet: no recalled rows, no reflection groups
        add("sum of the four, first epoch only", *(median(steps, "timing/step_total") for steps in first))
    lines.append("")
    lines.append(f"{'mean per step':<52}{'stock':>10}{'R³':>10}{'R³/stock':>10}")
    for name, key in (
        ("rollouts sampled", "sampled_rows"),
        ("rows trained", "trained_rows"),
        ("tokens sampled", "sampled_tokens"),
        ("tokens trained", "trained_tokens"),
        ("tokens of trained rows, prompts included", "row_tokens"),
    ):
        add(name, mean(stock, key), mean(r3, key))
    lines.append("")
    lines.append(f"{'ms for the work done':<52}{'stock':>10}{'R³':>10}{'R³/stock':>10}")
    for name, seconds, work in (
        ("sampling, per rollout sampled", ("timing/generation",), "sampled_rows"),
        ("sampling, per token sampled", ("timing/generation",), "sampled_tokens"),
        ("log-probs and update, per row trained", ("timing/make_experience", "timing/ppo_train"), "trained_rows"),
        ("log-probs and update, per token trained", ("timing/make_experience", "timing/ppo_train"), "trained_tokens"),
        ("policy update, per token of a row with its prompt", ("timing/ppo_train",), "row_tokens"),
        ("whole step, per row trained", ("timing/step_total",), "trained_rows"),
        ("whole step, per token trained", ("timing/step_total",), "trained_tokens"),
    ):
        add(name, *(1e3 * per(steps, seconds, work) for steps in (stock, r3)))
    lines.append("")
    added, whole = [s["r3/time/added_s"] for s in r3], [s["timing/step_total"] for s in r3]
    numbers["added_s"], numbers["added_share"] = statistics.median(added), sum(added) / sum(whole)
    names = sorted(key for key in r3[0] if key.startswith("r3/time/") and key != "r3/time/added_s")
    parts = ", ".join(f"{name.rpartition('/')[2]} {mean(r3, name):.4f}" for name in names)
    lines.append(
        f"added by R³ itself: median {numbers['added_s']:.4f} s a step, {numbers['added_share']:.2%} of all steps' time "
        f"(means: {parts})"
    )
    totals = {
        key: sum(s[key] for s in r3) for key in ("r3/replay/recalled", "r3/reflection/groups", "r3/ranking/groups")
    }
    lines.append(
        f"in these steps: {totals['r3/replay/recalled']:.0f} rows recalled, {totals['r3/reflection/groups']:.0f} "
        f"reflection groups, {totals['r3/ranking/groups']:.0f} ranked groups"
    )
    return "\n".join(lines), numbers


def median(steps: list[dict], key: str) -> float:
    return statistics.median(s[key] for s in steps if s[key] is not None)


def mean(steps: list[dict], key: str) -> float:
    return statistics.fmean(s[key] for s in steps)


def per(steps: list[dict], seconds: tuple[str, ...], work: str) -> float:
    return sum(s[key] for s in steps for key in seconds) / sum(s[work] for s in steps)
