"""The submissions of a run: submitted.jsonl in its folder cluster/, one line each.

A line is {"job": Slurm's id, "12" or "12_3" for a task of an array}. The directory above the runs of
an array has {"job": "12", "seeds": [1, 3]}."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.files import Count, no_link, read_lines
from r3_openrlhf.runs.state import SlurmId

FILE = "submitted.jsonl"


class Submission(TypedDict):
    """A line of submitted.jsonl."""

    job: NotRequired[SlurmId]
    seeds: NotRequired[list[Count]]


def note(run_dir: str | Path, submission: dict[str, Any]) -> None:
    """Write down a Submission; of an array of seeds also in each run."""
    folder = RunDirectory(run_dir).cluster
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / FILE, "a", opener=no_link) as file:
        file.write(json.dumps(submission) + "\n")
    for seed in submission.get("seeds", ()):
        note(Path(run_dir, f"seed{seed}"), {"job": f"{submission['job']}_{seed}"})


def runs_of(path: str | Path) -> list[Path]:
    """Return the runs of an array of seeds, for the directory above them; any other path itself."""
    seeds = sorted({seed for line in submissions(path) for seed in line.get("seeds", ())})
    if RunDirectory(path).config.is_file():
        return [Path(path)]
    return [Path(path, f"seed{seed}") for seed in seeds] or [Path(path)]


def submissions(run_dir: str | Path) -> list[dict[str, Any]]:
    """Return the submissions of this directory, oldest first."""
    path = RunDirectory(run_dir).cluster / FILE
    return list(read_lines(path, Submission)) if path.is_file() else []


def queue_entry(job: str | None) -> tuple[str | None, str | None]:
    """Slurm's state with its reason, and the nodes; None, None without the job or Slurm."""
    if job is None or shutil.which("squeue") is None:
        return None, None
    command = ["squeue", "--noheader", "--array", "--jobs", job, "--format", "%i|%T %r|%N"]
    done = subprocess.run(command, capture_output=True, text=True)
    # squeue refuses a forgotten job's number, and may answer for a task with its array
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        number, state, nodes = line.strip().split("|")
        if number == job:
            return state.strip(), nodes.strip() or None
    return None, None
