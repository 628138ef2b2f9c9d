"""DeepSpeed's own way of reading a checkpoint, in a process with a run's environment: its state loads, and code does not run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from r3_openrlhf.stack.safe_pickles import ENVIRONMENT

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
pytestmark = pytest.mark.stack
CODE = """
import os, sys, torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from r3_openrlhf.stack.safe_pickles import allow_deepspeed

class Hostile:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1] + "/ran",)

allow_deepspeed()
state = {"stage": ZeroStageEnum(2), "scaler": LossScaler(1.0), "where": fragment_address(numel=3, start=1), "w": torch.ones(2)}
torch.save(state, sys.argv[1] + "/good.pt")
torch.save({"w": Hostile()}, sys.argv[1] + "/bad.pt")
engine = TorchCheckpointEngine()
found = engine.load(sys.argv[1] + "/good.pt")
assert found["stage"] == 2 and found["where"].numel == 3 and found["scaler"].cur_scale == 1.0
engine.load(sys.argv[1] + "/bad.pt")
"""


@pytest.mark.parametrize("with_environment", [True, False], ids=["a run", "without"])
def test_a_checkpoint_runs_no_code(tmp_path, with_environment):
    surroundings = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        **(ENVIRONMENT if with_environment else {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env=surroundings,
        capture_output=True,
        text=True,
    )
    if with_environment:
        assert done.returncode == 1 and "mkdir" in done.stderr.splitlines()[-1] + done.stderr, (
            done.stderr
        )
        assert not (tmp_path / "ran").exists()
    else:  # the attack is real
        assert (tmp_path / "ran").exists(), done.stderr


def test_a_dry_run_leaves_no_directory_of_compiled_code_in_tmp(tmp_path):
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"
    }
    command = [
        Path(sys.executable).with_name("r3"),
        "train",
        "experiment=cpu_smoke",
        "--dry-run",
    ]
    # pytest's path has no room for Ray's sockets
    environment |= {
        "TMPDIR": str(tmp_path),
        "RAY_TMPDIR": "/tmp",
    }
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []
