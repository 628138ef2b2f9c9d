"""A run without a stack: steps that take STEP_S, a checkpoint when it is asked to end.

    steps.py RUN_DIR STEPS STEP_S [SAVE_S]

Goes on from its checkpoint, as a run does. Code 85: it was asked to end and saved. With SAVE_S it saves every second step, and a
checkpoint that it is asked for takes so many seconds. As with DeepSpeed, `latest` is written when the rest is there."""

import sys
import time
from pathlib import Path

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.stop_request import GO_ON, StepClock, StopRequest

run, steps, step_s = RunDirectory(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
save_s = float(sys.argv[4]) if len(sys.argv) > 4 else None


def save(step, seconds):
    folder = checkpoint.with_name(f"global_step{step}")
    folder.mkdir(exist_ok=True)
    (folder / "half").touch()
    time.sleep(seconds)  # the work
    (folder / "half").rename(folder / "whole")
    checkpoint.write_text(folder.name)


checkpoint = Path(run.checkpoints) / "_actor" / "latest"
checkpoint.parent.mkdir(parents=True, exist_ok=True)
stop = StopRequest(run.stop_request)
stop.clear()
stop.on_signals()
clock = StepClock.from_environment(save_minutes=None)
done = int(checkpoint.read_text().removeprefix("global_step")) if checkpoint.is_file() else 0
if done:
    run.roll_back(done)
for step in range(done + 1, steps + 1):
    clock.next_step()
    time.sleep(step_s)  # the work
    clock.step_ended()
    run.append_metrics({"step": step})
    why = stop.reason() or clock.reason_to_stop()
    if why:
        save(step, save_s or 0.0)
        print(f"saved step {step}: {why}", flush=True)
        sys.exit(GO_ON)
    if save_s is not None and step % 2 == 0:
        save(step, 0.0)
print(f"finished {steps} steps", flush=True)
