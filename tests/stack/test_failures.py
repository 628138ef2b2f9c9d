"""Why a run ended, in one sentence, from the errors that Ray itself makes."""

import errno
import os
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="Ray is not installed")
from ray.core.generated.common_pb2 import ActorDiedErrorContext  # noqa: E402
from ray.exceptions import ActorDiedError, LocalRayletDiedError, OutOfMemoryError, RayTaskError  # noqa: E402

from r3_openrlhf.method.errors import R3Error, TrainingStopped  # noqa: E402
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from r3_openrlhf.stack import failures  # noqa: E402
from r3_openrlhf.stack.failures import memory_kills, r3_error  # noqa: E402

pytestmark = pytest.mark.stack


def task_error(cause):
    return RayTaskError("fit", "the traceback of the worker", cause)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "checkpoints" / "_actor"
    folder.mkdir(parents=True)
    (folder / "latest").write_text("global_step4")
    return RunDirectory(tmp_path)


def sentence(error, run, **options):
    found = r3_error(error, run, **({"killed_before": memory_kills()} | options))
    assert type(found) is R3Error and "\n" not in str(found)
    return str(found)


def test_our_sentence_crosses_rays_processes(run):
    stopped = TrainingStopped("the weight sync is broken")
    for error in (stopped, task_error(stopped), task_error(task_error(stopped)).as_instanceof_cause()):
        assert str(r3_error(error, run, killed_before=0)) == "the weight sync is broken"


def test_an_unexpected_error_names_the_log(run):
    assert sentence(task_error(ValueError("first line\nsecond line")), run) == (
        f"the run failed in the stack: ValueError: second line (the whole story is in {run.log})"
    )


def test_a_killed_actor(run, monkeypatch):
    about = ActorDiedErrorContext(class_name="R3RolloutActor", pid=41, actor_id=b"0" * 16, node_ip_address="127.0.0.1",
        error_message="The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR")  # fmt: skip
    error = ActorDiedError(about)
    saved = f"; step 4 is saved, and the same command goes on from there (the whole story is in {run.log})"
    assert sentence(error, run) == (
        "the rollout engine (process 41) was killed: a signal, or memory that ran short on its node: dmesg there says which"
        + saved
    )
    before = memory_kills()
    monkeypatch.setattr(failures, "memory_kills", lambda: before + 2)
    assert "killed: the kernel ended 2 processes for lack of memory meanwhile;" in sentence(
        error, run, killed_before=before
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OutOfMemoryError("Task was killed due to the node running low on memory."), "Ray ended it because memory ran short"),
        (LocalRayletDiedError(), "a process of Ray was killed"),
        (OSError(errno.ENOSPC, "No space left on device"), "there is no room left on the disk of"),
    ],
)  # fmt: skip
def test_other_ends(run, error, said):
    assert said in sentence(task_error(error), run) and "step 4 is saved" in sentence(task_error(error), run)


def test_before_the_first_checkpoint(tmp_path):
    said = sentence(OSError(errno.ENOSPC, "No space left on device"), RunDirectory(tmp_path))
    assert said.endswith("free some: no checkpoint was saved yet, and the same command starts anew")


CODE = """
import os, sys
from pathlib import Path
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.console import Console
from r3_openrlhf.stack.phases import Phase
run = RunDirectory(sys.argv[1])
try:
    with Console() as console:
        console.attach(run, first_phase=Phase.DATA)
        full = os.open("/dev/full", os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(full, descriptor)
        sys.stdout.write("x" * 100)  # waits in a buffer
        console.say("said")
        raise R3Error("the true sentence")
except R3Error as error:
    sys.stdout = sys.stderr
    print(error)
os._exit(1)
"""


def test_a_full_disk_does_not_replace_the_true_sentence(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    surroundings = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "the true sentence", done.stderr
    assert "said" in done.stderr
