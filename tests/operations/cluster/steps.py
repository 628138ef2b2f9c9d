"""A run without a stack: steps that take STEP_S, a checkpoint when it is asked to end.

    steps.py RUN_DIR STEPS STEP_S [--save-s SAVE_S] [--held]

Goes on from its checkpoint, as a run does. Code 85: it was asked to end and saved. With SAVE_S it saves every second step, and a
checkpoint that it is asked for takes so many seconds. As with DeepSpeed, `latest` is written when the rest is there.

--held: after half of its steps it waits, unless it goes on from a checkpoint, to be asked to end or for the file RUN_DIR/go. What is
done to it meanwhile may take as long as it likes."""

import argparse
import sys
import time
from pathlib import Path

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.stop_request import GO_ON, StepClock, StopRequest

parser = argparse.ArgumentParser()
parser.add_argument("run_dir")
parser.add_argument("steps", type=int)
parser.add_argument("step_s", type=float)
parser.add_argument("--save-s", type=float)
parser.add_argument("--held", action="store_true")
options = parser.parse_args()
run, steps, save_s = RunDirectory(options.run_dir), options.steps, options.save_s


def save(step, seconds):
    folder = checkpoint.with_name(f"global_step{step}")
    folder.mkdir(exist_ok=True)
    (folder / "half").touch()
    time.sleep(seconds)  # the work
    (folder / "half").rename(folder / "whole")
    checkpoint.write_text(folder.name)


def held(step):
    return options.held and not done and step == steps // 2 and not (run.path / "go").exists()


checkpoint = Path(run.checkpoints) / "_actor" / "latest"
checkpoint.parent.mkdir(parents=True, exist_ok=True)
stop = StopRequest(run.stop_request)
stop.ask("")
stop.on_signals()
clock = StepClock.from_environment(save_minutes=None)
done = int(checkpoint.read_text().removeprefix("global_step")) if checkpoint.is_file() else 0
if done:
    run.roll_back(done)
for step in range(done + 1, steps + 1):
    clock.next_step()
    time.sleep(options.step_s)  # the work
    clock.step_ended()
    run.append_metrics({"step": step})
    while not (why := stop.reason() or clock.reason_to_stop()) and held(step):
        time.sleep(0.1)  # only the pace of asking
    if why:
        save(step, save_s or 0.0)
        print(f"saved step {step}: {why}", flush=True)
        sys.exit(GO_ON)
    if save_s is not None and step % 2 == 0:
        save(step, 0.0)
print(f"finished {steps} steps", flush=True)
