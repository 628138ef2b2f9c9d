"""What a job of Slurm costs beside `r3 train` in a shell: time to the first step, time of a step, signal to exit.

    python benchmarks/slurm_times.py --rounds 3
    python benchmarks/slurm_times.py --rounds 0 --watch 60

Starts a Slurm of its own (nodes on the loopback; slurm-wlm and munge must be installed). Both sides run the recorded
smoke run of tests/recordings, so both do the same work; they alternate within this one run. The last job of each round
gets SIGUSR1 after its second step: it finishes its step, saves and ends. --watch runs a job on two nodes with a Ray and no
work for so many seconds, and says how much processor time its agents took: what watching costs, on busy cores too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.operations.cluster.conftest import Slurm, log_of, template_in, until  # noqa: E402
from tests.recordings import lines, playback_of  # noqa: E402

STEPS = 4
WITHIN_S = 1200.0


def steps_done(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def settings(*more: str) -> list[str]:
    return [*playback_of("r3"), "checkpoint.save_steps=-1", *more]


def step_seconds(run_dir: Path) -> list[float]:
    """Wall seconds of the steps behind the first, in which everything is warm."""
    return [step["timing/step_total"] for step in lines(run_dir / "metrics.jsonl")[1:]]


def bare(run_dir: Path) -> dict:
    """`r3 train` in a shell: seconds to the first step, seconds of each later one."""
    command = [Path(sys.executable).with_name("r3"), "train", "experiment=cpu_smoke", f"run_dir={run_dir}"]
    started = time.monotonic()
    with subprocess.Popen(
        [*command, *settings(f"train.max_steps={STEPS}")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        until(lambda: steps_done(run_dir) or process.poll() is not None, seconds=WITHIN_S, what="the first step")
        first = time.monotonic() - started
        if process.wait(WITHIN_S) != 0:
            raise SystemExit(f"r3 train failed: {run_dir}/train.log")
    return {"first_step_s": first, "steps": step_seconds(run_dir)}


def job(slurm: Slurm, run_dir: Path) -> dict:
    """The same as a job, from `r3 submit slurm` on."""
    started = time.monotonic()
    number = slurm.submit(run_dir, *settings(f"train.max_steps={STEPS}"))
    until(lambda: steps_done(run_dir) or slurm.ended(number), seconds=WITHIN_S, what=log_of(run_dir, number))
    first = time.monotonic() - started
    ended = slurm.wait(number, "COMPLETED", "FAILED", seconds=WITHIN_S)
    if ended["JobState"] != "COMPLETED":
        raise SystemExit(log_of(run_dir, number))
    return {"first_step_s": first, "steps": step_seconds(run_dir)}


def preempted(slurm: Slurm, run_dir: Path) -> dict:
    """SIGUSR1 after the second step: seconds until the job's command has ended, and of the step it interrupted."""
    number = slurm.submit(run_dir, *settings())
    until(lambda: steps_done(run_dir) >= 2 or slurm.ended(number), seconds=WITHIN_S, what=log_of(run_dir, number))
    sent = time.monotonic()
    slurm.call("scancel", "--signal=USR1", number)
    until(lambda: "preempted at step" in log_of(run_dir, number), seconds=WITHIN_S, what=log_of(run_dir, number))
    saved = time.monotonic() - sent
    until(lambda: " code 85, the job is" in log_of(run_dir, number), seconds=WITHIN_S, what=log_of(run_dir, number))
    left = time.monotonic() - sent
    slurm.call("scancel", number)
    slurm.wait(number, "CANCELLED", "FAILED")
    return {
        "signal_to_saved_s": saved,
        "signal_to_exit_s": left,
        "interrupted_step_s": statistics.median(step_seconds(run_dir)),
    }


def watching(slurm: Slurm, run_dir: Path, seconds: float) -> dict:
    """Processor seconds that the agents of a job on two nodes take in an hour, after its Ray has come up."""
    probe = f'{{{{ python }}}} {ROOT}/tests/operations/cluster/ray_probe.py "$run_dir"'
    small = "--ray-args=--num-cpus=1 --object-store-memory=80000000"
    run_dir.mkdir()
    number = slurm.submit(run_dir, "--nodes=2", small, template=template_in(run_dir, probe))
    until((run_dir / "probe.json").is_file, seconds=WITHIN_S, what=log_of(run_dir, number))
    module = ["-m", "r3_openrlhf.operations.cluster.node_agent"]
    agents = [process for process in slurm.processes(number) if process.cmdline()[1:3] == module]
    before, began = [process.cpu_times() for process in agents], time.monotonic()
    time.sleep(seconds)  # what is measured
    after, wall = [process.cpu_times() for process in agents], time.monotonic() - began
    (run_dir / "go").touch()
    slurm.wait(number, "COMPLETED", "FAILED", seconds=WITHIN_S)
    used = [b.user + b.system - a.user - a.system for a, b in zip(before, after, strict=True)]
    return {"agents": len(agents), "watched_s": wall, "agent_cpu_s_an_hour": [round(s / wall * 3600, 1) for s in used]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch", type=float, default=60.0, help="seconds; 0: not")
    options = parser.parse_args()
    rounds = options.rounds
    folder = Path(f"/tmp/r3t{os.getpid()}")  # sockets need a short path
    folder.mkdir(mode=0o755)
    runs = Path(tempfile.mkdtemp(prefix="r3-slurm-times-"))
    slurm = Slurm(folder)
    found: dict[str, list[dict]] = {"bare": [], "job": [], "preempted": []}
    try:
        slurm.start()
        for number in range(rounds):
            sides = [("bare", lambda path: bare(path)), ("job", lambda path: job(slurm, path))]
            for name, measure in sides[:: 1 if number % 2 == 0 else -1]:
                print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                found[name].append(measure(runs / f"{name}{number}"))
            print(f"round {number + 1} of {rounds}: preempted", file=sys.stderr, flush=True)
            found["preempted"].append(preempted(slurm, runs / f"preempted{number}"))
        watch = watching(slurm, runs / "watched", options.watch) if options.watch else {}
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(runs, ignore_errors=True)
    if not rounds:
        print(json.dumps(watch, indent=1))
        return
    first = {side: statistics.median(run["first_step_s"] for run in found[side]) for side in ("bare", "job")}
    step = {side: statistics.median(s for run in found[side] for s in run["steps"]) for side in ("bare", "job")}
    report = {
        "rounds": rounds,
        "first_step_s": first,
        "first_step_job_less_bare_s": first["job"] - first["bare"],
        "step_s": step,
        "step_ratio_job_to_bare": step["job"] / step["bare"],
        **{key: [round(run[key], 1) for run in found["preempted"]] for key in found["preempted"][0]},
        **watch,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
