"""A run directory of cpu_smoke, as a start makes it."""

import pytest

from r3_openrlhf.config.loading import load_config
from r3_openrlhf.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create(load_config("cpu_smoke", [f"run_dir={run.path}"]))
    return run
