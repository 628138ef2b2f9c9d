"""Make the recordings anew: see the package's docstring."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from r3_openrlhf.config.loading import config_to_yaml, load_config
from r3_openrlhf.runs.models.locate import resolve_model
from r3_openrlhf.stack.recorded_rollouts import RECORD
from tests.recordings import MODEL, SETTINGS, counts, lines, pack, path_of, settings_of, story


def make(name: str) -> None:
    """Runs until what the tests look at has come up: every run samples something else."""
    while True:
        with tempfile.TemporaryDirectory() as scratch:
            run, responses = Path(scratch) / "run", Path(scratch) / "responses"
            settings = ["experiment=cpu_smoke", *settings_of(name), f"run_dir={run}"]
            surroundings = os.environ | {RECORD: str(responses)}
            subprocess.run(
                [Path(sys.executable).with_name("r3"), "train", *settings],
                env=surroundings,
                check=True,
            )
            config = load_config("cpu_smoke", SETTINGS[name])
            config.run_dir = "elsewhere"
            about = {
                "config": config_to_yaml(config),
                "story": story(run),
                "counts": counts(run),
            }
            if config.held_out.path is not None:
                about["evaluations"] = lines(run / "evaluations.jsonl")
            if missing := what_is_missing(name, about):
                print(f"{name} once more: {missing}", file=sys.stderr)
                continue
            return pack(responses, path_of(name), about)


def what_is_missing(name: str, about: dict) -> str:
    """The first thing that the tests need and this run has not; empty when it has everything."""
    steps, rows = about["counts"], about["story"]
    if name == "r3":
        fired = all(
            sum(step[f"r3/{key}"] for step in steps)
            for key in ("reflection/groups", "groups/none_correct")
        )
        return (
            ""
            if fired and any(row[5] is not None for row in rows)
            else "a mechanism did not fire"
        )
    size = {step["step"]: sum(row[0] == step["step"] for row in rows) for step in steps}
    last = {step["epoch"]: size[step["step"]] for step in steps}
    short = len(last) == 2 and all(rows < max(size.values()) for rows in last.values())
    return "" if short and len(steps) > 3 else "an epoch did not end with a short batch"


if __name__ == "__main__":
    if not MODEL.is_dir():
        shutil.copytree(resolve_model("tiny"), MODEL)
    for wanted in sys.argv[1:] or SETTINGS:
        make(wanted)
