"""An example that did nothing, or something else than was asked, says so and does not end with 0."""

import subprocess
import sys

import pytest

from tests.docs.pages import REPOSITORY

EXAMPLES = REPOSITORY / "examples"


def ended(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize("steps", ["0", "-3"])
def test_a_loop_of_no_steps_is_refused(steps):
    """It printed nothing, and ended with 0."""
    done = ended(sys.executable, EXAMPLES / "own_loop.py", "--steps", steps)
    assert (
        done.returncode == 2
        and f"--steps is {steps}, so nothing would be trained" in done.stderr
    )


@pytest.mark.stack
@pytest.mark.parametrize("words", [["model"], ["model", "0"], ["model", "x"]])
def test_the_short_loop_asks_for_a_model_and_steps(words):
    done = ended(sys.executable, EXAMPLES / "short_loop.py", *words)
    assert done.returncode == 1 and "Give a model and a number of steps" in done.stderr


@pytest.mark.stack
def test_a_directory_without_a_reward_model_is_not_filled_with_a_random_one(tmp_path):
    (tmp_path / "model.safetensors").touch()
    done = ended(sys.executable, EXAMPLES / "reward_model.py", tmp_path)
    assert (
        done.returncode == 2
        and "has no config.json, so there is no reward model" in done.stderr
    )
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_dry_run_of_the_container_checks_its_keys(tmp_path, is_installed):
    """It printed the command with a key that does not exist."""
    if is_installed:
        path = tmp_path / "r3"
        path.write_text(f'#!/bin/bash\nexec {sys.executable} -m r3_openrlhf "$@"\n')
        path.chmod(0o755)
    script = tmp_path / "a" / "b" / "container.sh"  # away from the repository's own .venv
    script.parent.mkdir(parents=True)
    script.write_text((EXAMPLES / "scripts" / "container_0p5b_1gpu.sh").read_text())
    surroundings = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
    words = ["train.learning_rat=1", "--dry-run"]
    done = ended("bash", script, *words, env=surroundings)
    if is_installed:
        assert done.returncode == 1 and "train.learning_rat does not exist" in done.stderr
        assert done.stdout == ""
        return
    assert done.returncode == 0 and "Warning: the settings are not checked" in done.stderr
    assert done.stdout.endswith("experiment=r3_0p5b_1gpu train.learning_rat=1 \n")
