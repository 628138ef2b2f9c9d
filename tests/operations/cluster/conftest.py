"""A real Slurm of this test session: munged, slurmctld and three slurmd on the loopback, as this user, without systemd.

All nodes are this machine: one network, and one /dev/shm that is theirs alone where this user may mount one. Most tests use
the two of the partition "main". Where Slurm is not installed the tests skip."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from r3_openrlhf.machine import ray_temporary, shared_memory
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.operations.cluster.slurm import TEMPLATE
from tests.processes import until

REPOSITORY = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
NODES = ("node1", "node2", "node3")
STEPS = f'{{{{ python }}}} {REPOSITORY}/tests/operations/cluster/steps.py "$run_dir"'
PROBE = f'{{{{ python }}}} {REPOSITORY}/tests/operations/cluster/ray_probe.py "$run_dir"'
SMALL_RAY = "--ray-args=--num-cpus=1 --object-store-memory=80000000"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
SBIN = "/usr/sbin:/usr/local/sbin"
# user, ports and folder are put in
CONFIGURATION = Path(__file__).with_name("slurm.conf.in").read_text()


def _may_mount() -> bool:
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and not subprocess.run([unshare, "--mount", "true"], capture_output=True).returncode
    )


class Slurm:
    """The running cluster. Its folder is short, for the sockets in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A stack that is killed beside these tests leaves files in the machine's
        self.has_own_shared_memory = os.geteuid() == 0 and _may_mount()
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("SLURM")
            },
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{BIN}:{os.environ['PATH']}:{SBIN}",
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(
                folder
            ),  # its jobs' own, for the tests look whether anything is left there
            "OMP_NUM_THREADS": "1",
        }

    def call(self, *command, check=True, **options) -> str:
        options |= {"env": self.environment, "restore_signals": False}  # see `sbatch`
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start(self) -> None:
        ports: set[int] = set()
        while len(ports) < 1 + len(NODES):
            ports.add(free_port())
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self.folder / name).mkdir()
        user = psutil.Process().username()
        (self.folder / "slurm.conf").write_text(self.configuration(user, list(ports)))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        place = {
            "key-file": "key",
            "socket": "sock",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        self.call(
            "munged",
            "--force",
            *(f"--{option}={self.folder}/munge.{end}" for option, end in place.items()),
        )
        self.call("slurmctld")
        self.start_nodes()
        until(lambda: self.idle() == len(NODES), what="the nodes to be idle")

    def configuration(self, user: str, ports: list[int]) -> str:
        return CONFIGURATION.format(user=user, ports=ports, folder=self.folder)

    def start_nodes(self) -> None:
        first, *others = NODES
        if self.has_own_shared_memory:
            self.call(
                "unshare",
                "--mount",
                "bash",
                "-euc",
                f"mount -t tmpfs tmpfs /dev/shm; exec slurmd -N {first}",
            )
        else:
            self.call("slurmd", "-N", first)
        for node in others:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Where the first one is."""
        enter = (
            ["nsenter", f"--mount=/proc/{self.daemon(NODES[0])}/ns/mnt"]
            if self.has_own_shared_memory
            else []
        )
        self.call(*enter, "slurmd", "-N", node)

    def daemon(self, node: str) -> int:
        """The process id of a node's slurmd."""
        path = self.folder / f"slurmd.{node}.pid"
        return int(until(lambda: path.is_file() and path.read_text(), what=path))

    def idle(self) -> int:
        return int(
            self.call("sinfo", "-h", "-p", "three", "-t", "idle", "-o", "%D", check=False) or 0
        )

    def stop(self) -> None:
        """By the pid files that the daemons wrote."""
        user = psutil.Process().username()
        self.call("scancel", "--signal=KILL", "--full", f"--user={user}", check=False)
        self.call("scancel", f"--user={user}", check=False)
        # a failed test may have left jobs, and the daemons that would end them are about to go
        left = self.processes()
        for process in left:
            kill(process)
        psutil.wait_procs(left, timeout=30)
        processes = []
        for name in ("slurmctld.pid", *(f"slurmd.{node}.pid" for node in NODES), "munge.pid"):
            try:
                processes.append(psutil.Process(int((self.folder / name).read_text())))
                processes[-1].terminate()
            except (OSError, ValueError, psutil.NoSuchProcess):
                continue  # it did not come up; the test says so
        _, alive = psutil.wait_procs(processes, timeout=20)
        for process in alive:
            process.kill()

    def submit(self, run_dir: Path, *arguments: str, template: Path | None = None) -> str:
        """`r3 submit slurm experiment=cpu_smoke`; returns the job's number."""
        if template is not None:
            arguments = (*arguments, f"--template={template}")
        command = [
            "r3",
            "submit",
            "slurm",
            "experiment=cpu_smoke",
            f"run_dir='{run_dir}'",
            *arguments,
        ]
        return self.call(*command)

    def job(self, number: str) -> dict[str, str]:
        fields = self.call("scontrol", "show", "job", "-o", number).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def state(self, number: str) -> str:
        return self.job(number)["JobState"]

    def ended(self, number: str) -> bool:
        """Neither waiting for its nodes, as every job does at first, nor at work."""
        return self.state(number) not in (
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
        )

    def wait(self, number: str, *states: str, seconds: float = 600.0) -> dict[str, str]:
        """Until the job is in one of the states. One that was requeued would wait a while for its old credential to
        expire; a new one, of another second, is taken at once."""
        hurried = set()

        def reached():
            job = self.job(number)
            if (
                job["JobState"] == "PENDING"
                and job["Reason"] == "BeginTime"
                and job["Restarts"] not in hurried
            ):
                hurried.add(job["Restarts"])
                self.call(
                    "scontrol", "update", f"jobid={number}", "StartTime=now+3", check=False
                )
            return job if job["JobState"] in states else None

        what = f"job {number} to be {' or '.join(states)}, not {self.state(number)}"
        return until(reached, seconds=seconds, what=what)

    def processes(self, number: str | None = None) -> list[psutil.Process]:
        """Living processes of a job of this cluster, or of all of them, by their environment. What is asked of one later may
        meet its end: their `info` was read when they were found, "" of what a dying one did not tell."""
        found = []
        psutil.process_iter.cache_clear()  # numbers come round
        for process in psutil.process_iter(["name", "cmdline", "environ", "nice"], ad_value=""):
            environment = process.info["environ"] or {}  # "": another user's, or gone
            ours = environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]
            if (
                ours
                and "SLURM_JOB_ID" in environment
                and number in (None, environment["SLURM_JOB_ID"])
            ):
                found.append(process)
        return found

    def assert_nothing_left(self, number: str) -> None:
        until(
            lambda: not self.processes(number), what=lambda: f"{self.processes(number)} to end"
        )
        assert ray_temporary.sweep(self.folder) == []
        began = datetime.fromisoformat(self.job(number)["SubmitTime"]).timestamp()
        left = functools.partial(self.abandoned, since=began)
        until(lambda: not left(), what=lambda: f"{left()} in /dev/shm to go")

    def abandoned(self, *, since: float) -> list[str]:
        """Files of the stack that nobody holds, made since then in the nodes' /dev/shm; none where it is the machine's, for
        they could be anybody's."""
        if not self.has_own_shared_memory:
            return []
        folders, names = self.shared_memory(), shared_memory.STACK_NAMES
        found = {path for folder in folders for name in names for path in folder.glob(name)}
        left = found - shared_memory.held(found)
        seen = {path.name: shared_memory.look(path) for path in left}
        return [
            name for name, stat in seen.items() if stat is not None and stat.st_ctime >= since
        ]

    def shared_memory(self) -> list[Path]:
        """The nodes' /dev/shm, seen from here."""
        return [Path(f"/proc/{self.daemon(NODES[0])}/root/dev/shm")]


@contextlib.contextmanager
def running(kind: type[Slurm], name: str):
    """A started cluster of this kind, and its end; skips where Slurm is not installed."""
    path = f"{os.environ['PATH']}:{SBIN}"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        pytest.skip(
            f"Slurm is not installed ({', '.join(missing)}); apt-get install slurm-wlm munge"
        )
    folder = Path(f"/tmp/{name}{os.getpid()}")  # sockets need a short path
    folder.mkdir(mode=0o755)
    cluster = kind(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm():
    with running(Slurm, "r3s") as cluster:
        yield cluster


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


def template_in(folder: Path, command: str) -> Path:
    """The shipped template with another program in place of `r3 train`."""
    shipped = TEMPLATE.read_text()
    line = '{{ train }} run_dir="$run_dir" ${seed[@]+"${seed[@]}"}'
    assert shipped.count(line) == 1
    path = folder / "template.j2"
    path.write_text(shipped.replace(line, command))
    return path


@pytest.fixture
def job_template(tmp_path):
    return lambda command: template_in(tmp_path, command)


def steps_of(run_dir: Path) -> list[int]:
    path = run_dir / "metrics.jsonl"
    return (
        [json.loads(line)["step"] for line in path.read_text().splitlines()]
        if path.is_file()
        else []
    )


def log_of(run_dir: Path, number: str) -> str:
    path = run_dir / "cluster" / f"slurm-{number}.log"
    return path.read_text() if path.is_file() else ""


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
        process.send_signal(signal.SIGKILL)
