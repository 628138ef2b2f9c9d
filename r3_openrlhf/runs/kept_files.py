"""Copies that a run keeps: the user's reward functions, and models in Hugging Face format.

The functions let a moved run be evaluated, and show a changed function. Of models OpenRLHF writes
checkpoints/global_step{N}_hf each time (trainer/ray/ppo_actor.py:675) and keeps all: 47 of 7B
are 0.7 TB."""

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from r3_openrlhf.runs.directory import RunDirectory

FOLDER = "reward_functions"


def file_of(path: str) -> Path | None:
    """Return the file of an import path "file.py:name"; None for a module."""
    file = path if path.endswith(".py") else path.rpartition(":")[0]
    return Path(file) if file.endswith(".py") else None


def copy_in(run: Path, path: str) -> str:
    """Return the import path of the run's copy, which need not exist."""
    file = file_of(path)
    return path if file is None else f"{run / FOLDER / file.name}{path.removeprefix(str(file))}"


def keep_functions(run: Path, paths: Sequence[str]) -> list[str]:
    """Copy each function's file into the run, once. Returns a sentence for each that changed."""
    changed = []
    for file in dict.fromkeys(filter(None, map(file_of, paths))):
        copy = run / FOLDER / file.name
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists():
            shutil.copyfile(file, copy)
        elif copy.read_bytes() != file.read_bytes():
            changed.append(
                f"{file} is not what the run began with, which is {copy}; its steps so far were graded by that"
            )
    return changed


def copy_steps(run: RunDirectory) -> list[int]:
    """Return the steps of which the run has a copy, in order."""
    names = [path.parent.name for path in run.checkpoints.glob("global_step*_hf/config.json")]
    numbers = [name.removeprefix("global_step").removesuffix("_hf") for name in names]
    return sorted(int(number) for number in numbers if number.isdigit())


def best_step(evaluations: Collection[dict[str, Any]], steps: Collection[int]) -> int | None:
    """Return the step with the highest held-out accuracy, the latest of equals; None: unknown."""
    found = [
        (line["pass_at_1"], line["step"])
        for line in evaluations
        if line.get("pass_at_1") is not None
    ]
    return max(
        ((accuracy, step) for accuracy, step in found if step in steps), default=(None, None)
    )[1]


def superseded(
    steps: Collection[int], *, newest: int, max_num: int, best: int | None
) -> list[int]:
    """Choose the copies that go when step `newest` is there: all but the last `max_num` and best.

    Copies of later steps are none of this run's course: it continued from a checkpoint before them.
    They stay until they are written anew."""
    ours = sorted(step for step in steps if step <= newest)
    return [step for step in ours[:-max_num] if step != best]


def forget_superseded(run: RunDirectory, *, newest: int, max_num: int) -> None:
    """Delete them. `max_num` is checkpoint.max_num."""
    steps = copy_steps(run)
    for step in superseded(
        steps, newest=newest, max_num=max_num, best=best_step(run.read_evaluations(), steps)
    ):
        shutil.rmtree(run.checkpoints / f"global_step{step}_hf")
