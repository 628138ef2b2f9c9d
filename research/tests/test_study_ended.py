"""A study that is ended from outside leaves no worker that trains on."""

import os
import select
import signal
import subprocess
import sys

import psutil
import pytest

from research.tests.test_loop import SMALL
from tests.processes import command_of, until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_worker_ends_with_it(model_dir, tmp_path, number):
    endless = [
        *SMALL,
        f"model.path={model_dir}",
        "train.max_generated_tokens=1000000000",
        "cluster.gpus_per_node=1",
    ]
    command = [
        "study",
        "--arms",
        "grpo",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--out",
        str(tmp_path / "runs"),
        *endless,
    ]
    started = [sys.executable, "-c", "from research.__main__ import main; main()", *command]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(started, stdout=log, stderr=log) as study,
    ):
        try:
            metrics = tmp_path / "runs" / "grpo-1" / "metrics.jsonl"
            until(lambda: metrics.is_file() or study.poll() is not None, seconds=1200)
            assert study.poll() is None, (tmp_path / "log").read_text()
            children = psutil.Process(study.pid).children()
            (worker,) = [
                child
                for child in children
                if any("spawn_main" in word for word in command_of(child))
            ]
            handle = os.pidfd_open(worker.pid)
            try:
                study.send_signal(number)
                assert study.wait(timeout=600) == -number
                ended, _, _ = select.select([handle], [], [], 600)
                if not ended:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                assert ended, "the worker trains on"
            finally:
                os.close(handle)
        finally:
            study.kill()
