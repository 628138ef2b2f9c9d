"""A run without a stack: steps that take STEP_S, a checkpoint when it is asked to end. Usage: steps.py RUN_DIR STEPS STEP_S

Goes on from its checkpoint, as a run does. Code 85: it was asked to end and saved."""

import sys
import time
from pathlib import Path

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.stop_request import GO_ON, StepClock, StopRequest

run, steps, step_s = RunDirectory(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
checkpoint = Path(run.checkpoints) / "_actor" / "latest"
checkpoint.parent.mkdir(parents=True, exist_ok=True)
stop = StopRequest(run.stop_request)
stop.clear()
stop.on_signals()
clock = StepClock.from_environment(save_minutes=None)
done = int(checkpoint.read_text().removeprefix("global_step")) if checkpoint.is_file() else 0
for step in range(done + 1, steps + 1):
    clock.next_step()
    time.sleep(step_s)  # the work
    clock.step_ended()
    run.append_metrics({"step": step})
    why = stop.reason() or clock.reason_to_stop()
    if why:
        checkpoint.write_text(f"global_step{step}")
        print(f"saved step {step}: {why}", flush=True)
        sys.exit(GO_ON)
print(f"finished {steps} steps", flush=True)
