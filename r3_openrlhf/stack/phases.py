"""The phase of a run: its processes append an event to events.jsonl when one begins, and the
console reads them.

An event is {"time": seconds since 1970, "phase": one of Phase, "step": the step under way or null},
and "warning" where a sentence is to be shown."""

import errno
import json
import os
import re
import sys
import time
from enum import StrEnum
from pathlib import Path

from r3_openrlhf.machine.build_locks import alone
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.environment import VARIABLE, config_from_environment

# Where the environment says 9.0a, as torch allows, DeepSpeed 0.19.6 reads a number and fails (op_builder/builder.py:708).
ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"


class Phase(StrEnum):
    """The phases of a run, in the words that the terminal shows."""

    CHECKING = "checking the settings"
    UNPACKING = "unpacking the model"
    TRAINING_MODEL = "training the small model"  # "tiny", "lab": made on the spot
    DATA = "preparing the data"
    CONVERTING = "converting the checkpoint"  # to another number of GPUs
    RAY = "starting Ray"
    LIBRARIES = "loading OpenRLHF, vLLM, DeepSpeed"
    ENGINE = "starting the rollout engine"
    LOADING = "loading the models"
    OPERATORS = "building DeepSpeed's operators"
    WAITING = "waiting for another program that builds DeepSpeed's operators"
    SAMPLING = "sampling"
    REWARDS = "log-probs and rewards"
    UPDATE = "policy update"
    SYNC = "weights to the engine"
    CHECKPOINT = "saving a checkpoint"
    EVALUATION = "held-out problems"
    SAVING = "saving the model"
    STOPPING = "stopping Ray"


def announce(
    run: RunDirectory,
    phase: Phase,
    *,
    step: int | None = None,
    at: float | None = None,
    warning: str | None = None,
) -> None:
    """Record that a phase begins, now or at `at`. One write of one line, so that processes do not mix."""
    event = {"time": round(time.time() if at is None else at, 3), "phase": phase, "step": step}
    line = json.dumps(event | ({} if warning is None else {"warning": warning})) + "\n"
    file = os.open(run.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        written = os.write(file, line.encode())
        if written < len(line.encode()):  # a full disk took a part
            os.ftruncate(file, os.fstat(file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run.events))
    finally:
        os.close(file)


def under_way(run: RunDirectory) -> str | None:
    """Say what a run that ended now would lose; None: no step has begun since its start."""
    try:
        with run.events.open("rb") as events:
            events.seek(max(0, events.seek(0, os.SEEK_END) - 4096))
            last = json.loads(events.read().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return "the step"
    if last["phase"] in (Phase.SAVING, Phase.STOPPING):
        return "the run"
    if last["step"] is None:
        return None
    if last["phase"] == Phase.EVALUATION:  # of a step that has ended
        return f"step {last['step']} without its evaluation"
    return f"step {last['step']}"


def announce_builds(builder) -> None:
    """Make DeepSpeed say when it compiles an operator: deepspeed/ops/op_builder/builder.py:566
    (`jit_load`), a minute of silence on the first run. `builder` is that module.

    Of ranks and runs that share the cache one compiles, others wait; the first rank speaks for all.
    """
    jit_load = builder.OpBuilder.jit_load
    if hasattr(jit_load, "announces"):
        return

    def announced(self, verbose=True):
        from torch.utils.cpp_extension import _get_build_directory

        if ARCHITECTURES in os.environ:
            os.environ[ARCHITECTURES] = re.sub(r"(\d)[a-z]", r"\1", os.environ[ARCHITECTURES])
        directory = Path(_get_build_directory(self.name, verbose=False))
        speaks = VARIABLE in os.environ and os.environ.get("RANK", "0") == "0"
        run = RunDirectory(config_from_environment().run_dir) if speaks else None
        if run is not None and not run.path.is_dir():  # a node that does not see it
            run = None

        def waits(lock: Path) -> None:
            sys.stdout.write(f"waiting until {lock} is free\n")
            if run is not None:
                announce(run, Phase.WAITING)

        with alone(directory, waits):
            is_built = (directory / f"{self.name}.so").is_file()
            if run is not None and not is_built:
                announce(run, Phase.OPERATORS)
            try:
                return jit_load(self, verbose)
            finally:
                if run is not None and not is_built:
                    announce(run, Phase.LOADING)

    vars(announced)["announces"] = True
    builder.OpBuilder.jit_load = announced
