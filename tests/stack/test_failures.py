"""Why a run ended, in one sentence, from the errors that Ray itself makes."""

import errno
import os
import subprocess
import sys

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, LocalRayletDiedError, OutOfMemoryError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from r3_openrlhf.method.errors import R3Error, TrainingStopped
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack import failures
from r3_openrlhf.stack.failures import memory_kills, r3_error

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
    for error in (
        stopped,
        task_error(stopped),
        task_error(task_error(stopped)).as_instanceof_cause(),
    ):
        assert str(r3_error(error, run, killed_before=0)) == "the weight sync is broken"


def test_an_unexpected_error_names_the_log(run):
    assert sentence(task_error(ValueError("first line\nsecond line")), run) == (
        f"the run failed in the stack: ValueError: second line (the whole story is in {run.log})"
    )


def test_a_killed_actor(run, monkeypatch):
    about = ActorDiedErrorContext(
        class_name="R3RolloutActor",
        pid=41,
        actor_id=b"0" * 16,
        node_ip_address="127.0.0.1",
        error_message="The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
    )
    error = ActorDiedError(about)
    saved = f"; step 4 is saved, and the same command continues from there (the whole story is in {run.log})"
    assert sentence(error, run) == (
        "the rollout engine (process 41) was killed: a signal, or memory that ran short on its node: dmesg there says which"
        + saved
    )
    before = memory_kills()
    monkeypatch.setattr(failures, "memory_kills", lambda: before + 2)
    assert "killed: the kernel ended 2 processes for lack of memory;" in sentence(
        error, run, killed_before=before
    )


KILLED = """
import os, signal, sys, tempfile
from pathlib import Path
from r3_openrlhf.machine.ray_start import of_this_machine, patient_raylet
os.environ.update(of_this_machine())
import ray
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.stack.failures import lost_actor, r3_error

class R3RolloutActor:
    def pid(self):
        return os.getpid()

with patient_raylet(), tempfile.TemporaryDirectory(prefix="r3t", dir="/tmp") as folder:
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=2**27, _temp_dir=folder, log_to_driver=False)
    gone, killed = [ray.remote(R3RolloutActor).remote() for _ in range(2)]
    pid = ray.get([one.pid.remote() for one in (gone, killed)])[1]
    del gone
    os.kill(pid, signal.SIGKILL)
    broken = RuntimeError("gloo/transport/tcp/pair.cc:553 Connection closed by peer")
    broken.__cause__ = lost_actor(ray)
    print(pid, r3_error(broken, RunDirectory(folder), killed_before=10**9))
    ray.shutdown()
"""


@pytest.mark.slow
def test_a_broken_connection_names_the_process_that_was_killed():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    pid, _, said = done.stdout.splitlines()[-1].partition(" ")
    assert said.startswith(
        f"the rollout engine (process {pid}) was killed: a signal, or memory that ran short"
    ), done


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OutOfMemoryError("Task was killed due to the node running low on memory."),
            "Ray ended it because memory ran short",
        ),
        (LocalRayletDiedError(), "a process of Ray was killed"),
        (
            RuntimeError(
                "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:11667"
            ),
            "of the policy was killed: a signal",
        ),
        (
            EngineDeadError(),
            "a process of the rollout engine or of the policy was killed: a signal",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "there is no room left on the disk of",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "/runs/x/log"),
            "the file system of /runs/x/log is read-only; mount it for writing: ",
        ),
        (RuntimeError("fopen: Read-only file system"), "is read-only; mount it for writing: "),
    ],
)
def test_other_ends(run, error, said):
    assert said in sentence(task_error(error), run) and "step 4 is saved" in sentence(
        task_error(error), run
    )


FILLED = """
mount -t tmpfs -o size=1m small "$0"
exec "$1" -c '
import sys, torch
from safetensors.torch import save_file
for write in (torch.save, save_file):
    try:
        write({"w": torch.zeros(1_000_000)}, sys.argv[1] + "/weights")
    except Exception as error:
        print(type(error).__name__, error)
' "$0"
"""


def test_a_disk_that_is_full_is_said_whoever_writes_on_it(run, tmp_path):
    """The words of torch.save and safetensors on a file system of 1 MB."""
    small = tmp_path / "small"
    small.mkdir()
    command = [
        "unshare",
        "--map-root-user",
        "--mount",
        "bash",
        "-euc",
        FILLED,
        str(small),
        sys.executable,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    said = done.stdout.splitlines()
    assert [line.partition(" ")[0] for line in said] == ["RuntimeError", "SafetensorError"]
    for line in said:
        assert "there is no room left on the disk of" in sentence(
            task_error(RuntimeError(line)), run
        )


def test_before_the_first_checkpoint(tmp_path):
    said = sentence(OSError(errno.ENOSPC, "No space left on device"), RunDirectory(tmp_path))
    assert said.endswith(
        "free some: no checkpoint was saved yet, and the same command starts from the beginning"
    )


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
