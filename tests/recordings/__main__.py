"""Make the recordings anew: see the package's docstring."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from r3_openrlhf.config_loading import config_to_yaml, load_config
from r3_openrlhf.models.locate import resolve_model
from r3_openrlhf.openrlhf_adapter.recorded_rollouts import pack
from tests.recordings import MODEL, SETTINGS, counts, lines, path_of, settings_of, story


def make(name: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run, responses = Path(scratch) / "run", Path(scratch) / "responses"
        settings = ["experiment=cpu_smoke", *settings_of(name), f"run_dir={run}", f"rollout.record={responses}"]
        subprocess.run([Path(sys.executable).with_name("r3"), "train", *settings], check=True)
        config = load_config("cpu_smoke", SETTINGS[name])
        about = {"config": config_to_yaml(config), "story": story(run), "counts": counts(run)}
        if config.held_out.path is not None:
            about["evaluations"] = lines(run / "evaluations.jsonl")
        pack(responses, path_of(name), about)


if __name__ == "__main__":
    if not MODEL.is_dir():
        shutil.copytree(resolve_model("tiny"), MODEL)
    for wanted in sys.argv[1:] or SETTINGS:
        make(wanted)
