"""The agent of a node of a Slurm job: `srun ... python -m
r3_openrlhf.operations.cluster.node_agent`, one per node.

Task 0 is the head. It checks the nodes, has Ray started on all of them (none where the job has one
node: the run starts its own), runs the job's command, and watches everything to the end:

    a signal              goes to the command, which saves and ends with 85 (stop_request.GO_ON)
    the command ends      every node is tidied, and all agents end with the command's code
    a node or Ray ends    the command is ended, and all agents end with code 86 (LOST)
    a check fails         nothing starts, bad nodes go to NAME.exclude, code 87 (BAD_NODE)

The agents meet in RUN_DIR/cluster/JOB.START, which proves that all nodes see the same file system:
head.json has the head's address and the job's secret, RANK.json a node's state, `code` ends the
job. Slurm signals every process of a step, in any session. Agents and command listen; Ray and what
it starts do not (stop_request.ignore_signals_in_children), so the step to be saved can end."""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import psutil

from r3_openrlhf.config.words import Device
from r3_openrlhf.machine import ray_temporary, shared_memory
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.machine.processes.sandbox import adopt_orphans, die_with_parent
from r3_openrlhf.machine.ray_start import authentication
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.history.lease import Lease
from r3_openrlhf.operations.cluster import node_checks, ray_on_nodes
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.stop_request import GO_ON, SIGNALS, ignore_signals_in_children

ValueT = TypeVar("ValueT")

FAILED, LOST, BAD_NODE = 1, 86, 87
START_S = 600.0  # for all nodes to come together
VERDICT_S = 40.0  # Ray calls a node lost after 15 to 20 s, five health checks
TIDY_S = 10.0  # for what was killed to be gone
PACE_S = 0.2  # between two looks at what is waited for
STARTS_WITHOUT_PROGRESS = 3


class Ended(Exception):
    """The job is over on this node: exit code and the reason, for the log."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Agent:
    """One node's part in a job. Rank 0 is the head."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, environment = options, os.environ
        self.rank = int(environment.get("SLURM_PROCID", "0"))
        self.num_nodes = int(
            environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))
        )
        self.node = environment.get("SLURMD_NODENAME", os.uname().nodename)
        self.job = environment.get("SLURM_JOB_ID", str(os.getpid()))
        array, task = (
            environment.get("SLURM_ARRAY_JOB_ID"),
            environment.get("SLURM_ARRAY_TASK_ID"),
        )
        # as in `r3 submit`, squeue
        self.array_task = f"{array}_{task}" if array and task else None
        self.start = f"{self.job}.{environment.get('SLURM_RESTART_COUNT') or 0}"
        self.run = RunDirectory(options.run_dir)
        self.shared = self.run.cluster / self.start
        self.run.make()
        self.shared.mkdir(parents=True, exist_ok=True)
        given = ray_temporary.ray_temporary()
        self.temporary = (
            given if ray_temporary.bytes_of(given) <= ray_temporary.MAX_BYTES else Path("/tmp")
        )
        self.looks: list[dict[str, Any]] = []  # of the nodes, by rank
        self.watched: dict[str, subprocess.Popen[bytes]] = {}  # the job is lost when one ends
        self.lease: Lease | None = None  # the head's, on the run directory
        self.signal: int | None = None  # the first one that came

    def say(self, text: str) -> None:
        """Write one line to stderr: the time, this node's name, the text."""
        # one write, so that the lines of several agents do not mix
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {self.node}: {text}\n")
        sys.stderr.flush()

    def live(self) -> int:
        """Work until the job is over, and end all that was started here. Returns the job's code."""
        # orphans of what starts here become this process's children, and are found at tidying
        adopt_orphans()
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        if removed := [*ray_temporary.sweep(self.temporary), *shared_memory.sweep()]:
            self.say(f"removed what an ended job had left: {', '.join(removed)}")
        with ray_temporary.private_directory(self.temporary) as self.temp_dir:
            try:
                self._work()
            except Ended as ended:
                return self._leave(ended)
            except R3Error as error:
                return self._leave(Ended(FAILED, str(error)))
            finally:
                self._tidy()

    def _on_signal(self, number: int, _frame: object) -> None:
        if self.signal is None:
            self.say(f"signal {signal.Signals(number).name}")
            self.signal = number

    def _work(self) -> NoReturn:
        if self.rank == 0:
            self.lease = lock.acquire(self.run)
            self.run.error.unlink(missing_ok=True)
            self._count_this_start()
            self._state("starting")
        environment = {"RAY_TMPDIR": str(self.temporary)}
        self._meet()
        if self.num_nodes > 1:
            environment = self._start_ray()
        if self.rank:
            self._until(lambda: False, "the end of the job", seconds=float("inf"), pace_s=2.0)
        self._command(environment)

    def _until(
        self,
        condition: Callable[[], ValueT | None],
        what: str,
        *,
        seconds: float = START_S,
        pace_s: float = PACE_S,
    ) -> ValueT:
        """Wait for the condition, and return its value. Ended: too long, or the job is over."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if self.rank == 0 and self.signal is not None:
                raise Ended(GO_ON, "asked to end before the first step")
            if self.rank and (code := self._code_of_job()) is not None:
                raise Ended(code, "the first node says so")
            self._raise_lost()
            if time.monotonic() > deadline:
                here = (
                    f"{len(self.looks)} of {self.num_nodes} nodes are here"
                    if self.rank == 0
                    else "no sign of it"
                )
                raise Ended(
                    LOST,
                    f"waited {seconds:.0f} s for {what}; {here}. Do all nodes see {self.run.cluster}, and are TCP ports "
                    "open between them?",
                )
            time.sleep(pace_s)  # only the pace of asking
        return value

    def _raise_lost(self) -> None:
        for name, process in self.watched.items():
            if process.poll() is not None:
                last = self._last_words("watch") if name == "the watch" else ""
                why = (
                    last
                    if last.startswith(ray_on_nodes.LOST)
                    else f"{name} ended with {process.returncode}"
                )
                raise Ended(LOST, why)

    def _last_words(self, name: str) -> str:
        """Return the last line that a process with this `output` has printed."""
        printed = (self.temp_dir / name).read_text(errors="replace").strip()
        return printed.splitlines()[-1] if printed else ""

    def _text_of(self, name: str) -> str | None:
        """Read a file of the agents' folder; None: it is not there yet."""
        os.listdir(self.shared)  # a fresh look also where the file system remembers
        path = self.shared / name
        return path.read_text() if path.is_file() else None

    def _code_of_job(self) -> int | None:
        """Return the code that ends the job; None: it goes on."""
        text = self._text_of("code")
        return None if text is None else int(json.loads(text))

    def _shared(self, name: str) -> dict[str, Any] | None:
        """Return what the head, or a node, says in its file; None: it is not there yet."""
        text = self._text_of(name)
        if text is None:
            return None
        shared: dict[str, Any] = json.loads(text)
        return shared

    def _share(self, name: str, what: object) -> None:
        write_whole(self.shared / name, json.dumps(what), mode=0o600)

    def _spawn(
        self, command: list[str], *, output: str | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a command in its own session, without standard input. It dies with this agent, for
        no one would watch it. output: a file of temp_dir. `environment` joins this process's."""
        with (
            open(self.temp_dir / output, "w") if output else contextlib.nullcontext() as stdout
        ):
            return subprocess.Popen(
                command,
                env={**os.environ, **environment},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                preexec_fn=partial(die_with_parent, signal.SIGKILL),
            )

    def _meet(self) -> None:
        """Have every node's look, and end the job where one is unfit."""
        look = {
            **node_checks.look(gpus=self.options.gpus, device=self.options.device),
            "node": self.node,
        }
        if self.rank:
            self.head = self._until(
                lambda: self._shared("head.json"), f"the first node's file in {self.shared}"
            )
            self._share(f"{self.rank}.json", look)
            return
        self.head = {
            "host": ray_on_nodes.node_address(self.node),
            "port": free_port(),
            **authentication(),
        }
        self._share("head.json", self.head)
        self.looks = [look]
        while len(self.looks) < self.num_nodes:
            name = f"{len(self.looks)}.json"
            self.looks.append(self._until(partial(self._shared, name), "other nodes to start"))
        looks = {look["node"]: look for look in self.looks}
        for node, seen in sorted(looks.items()):
            self.say(node_checks.describe(node, seen))
        checks = {"start": self.start, "nodes": looks}
        write_whole(self.run.cluster / "node_checks.json", json.dumps(checks, indent=1))
        if faults := {
            node: ", ".join(seen["faults"]) for node, seen in looks.items() if seen["faults"]
        }:
            self._refuse(faults)

    def _refuse(self, faults: dict[str, str]) -> NoReturn:
        """End the job, with the bad nodes in a file for the script, which excludes them."""
        file = self.run.cluster / f"{self.job}.exclude"
        before = set(file.read_text().split(",")) if file.is_file() else set()
        write_whole(file, ",".join(sorted(before | set(faults))))
        raise Ended(
            BAD_NODE, "; ".join(f"{node}: {why}" for node, why in sorted(faults.items()))
        )

    def _start_ray(self) -> dict[str, str]:
        """Start this node's Ray; the head waits for all. Returns the environment of its clients."""
        host, port = self.head["host"], self.head["port"]
        environment = {
            name: value for name, value in self.head.items() if name.startswith("RAY_")
        }
        if self.rank:
            self._until(lambda: _answers(host, port), "the first node's Ray")
        command = ray_on_nodes.start_command(
            address=ray_on_nodes.node_address(self.node),
            port=None if self.rank else port,
            head=f"{host}:{port}",
            node=self.node,
            temp_dir=self.temp_dir,
            gpus=self.options.gpus,
            ray_args=self.options.ray_args,
        )
        self.say(" ".join(command))
        with ignore_signals_in_children():
            self.watched["`ray start`"] = self._spawn(command, **environment)
        if self.rank == 0:
            self._until(lambda: _answers(host, port), "Ray to answer")
            watch = [sys.executable, "-m", ray_on_nodes.__name__, f"{host}:{port}"]
            with ignore_signals_in_children():
                names = [look["node"] for look in self.looks]
                self.watched["the watch"] = self._spawn(
                    [*watch, *names], output="watch", **environment
                )
            self.say(
                self._until(lambda: self._last_words("watch"), "Ray to start on every node")
            )
        return {**environment, "RAY_ADDRESS": f"{host}:{port}"}

    def _command(self, environment: dict[str, str]) -> NoReturn:
        """Run the job's command, and watch it, the nodes and Ray."""
        self._state("running")
        assert self.lease is not None
        token = {"R3_NODES": str(self.num_nodes), lock.TOKEN: self.lease.token}
        command = self._spawn(self.options.command, **environment, **token)
        passed_on = False
        while (code := command.poll()) is None:
            self._raise_lost()
            if self.signal is not None and not passed_on:  # a second one changes nothing
                self._state("stopping")
                command.send_signal(self.signal)
                passed_on = True
            time.sleep(PACE_S)  # only the pace of asking
        if self.signal is not None and code == -self.signal:  # it did not listen yet
            code = GO_ON
        if self.num_nodes > 1 and code not in (0, GO_ON):
            self._wait_for_verdict()
        raise Ended(
            128 - code if code < 0 else code,
            f"{Path(self.options.command[0]).name} ended with {code}",
        )

    def _wait_for_verdict(self) -> None:
        """Give Ray the time to notice a lost node, whose broken connections the command has seen at once. Raises Ended."""
        deadline = time.monotonic() + VERDICT_S
        while time.monotonic() < deadline and self.signal is None:
            self._raise_lost()
            time.sleep(PACE_S)  # only the pace of asking

    def _leave(self, ended: Ended) -> int:
        """Say how the job ended. The head's code ends other agents; the job script reads it."""
        self.say(f"{ended.why}; code {ended.code}")
        if self.rank == 0:
            self._state("ended", code=ended.code, why=ended.why)
            self._share("code", ended.code)
            (self.shared / "head.json").unlink(missing_ok=True)
        return ended.code

    def _tidy(self) -> None:
        """End all processes started here, keep Ray's logs, and give the run directory back."""
        deadline = time.monotonic() + TIDY_S
        while (
            children := psutil.Process().children(recursive=True)
        ) and time.monotonic() < deadline:
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=TIDY_S)
        for logs in self.temp_dir.glob("session_20*/logs"):
            for link in [path for path in logs.rglob("*") if path.is_symlink()]:
                link.unlink()  # a run may have none
            shutil.copytree(
                logs, self.run.cluster / "ray_logs" / self.start / self.node, dirs_exist_ok=True
            )
        ray_temporary.sweep(self.temporary)  # of a command that was killed
        shared_memory.sweep()
        if self.lease is not None:
            self.lease.release()

    def _state(self, state: str, **more: object) -> None:
        """Replace state.json, which `r3 status` reads: what the job does now, its nodes, the time,
        and `more`. It belongs to the holder of the run directory."""
        if self.lease is None:
            return
        nodes = sorted({self.node, *(look["node"] for look in self.looks)})
        job = {"job": self.job, "task": self.array_task, "start": self.start}
        now = {"state": state, "nodes": nodes, "time": time.time()}
        write_whole(self.run.cluster / "state.json", json.dumps({**job, **now, **more}))

    def _count_this_start(self) -> None:
        """Count the starts of this job for as long as its newest checkpoint stays the same."""
        latest = self.run.checkpoints / "_actor" / "latest"
        checkpoint = latest.read_text().strip() if latest.is_file() else "none"
        log = self.run.cluster / f"{self.job}.starts"  # the newest checkpoint at each start
        before = log.read_text().split() if log.is_file() else []
        same = len(list(itertools.takewhile(checkpoint.__eq__, reversed(before))))
        if same >= STARTS_WITHOUT_PROGRESS:
            raise Ended(
                FAILED,
                f"this job was started {same} times and its newest checkpoint is still {checkpoint}: it is not started "
                "again. A smaller checkpoint.save_minutes or a longer --time lets it get further; the log above "
                "says how each start ended",
            )
        write_whole(log, "\n".join([*before, checkpoint, ""]))


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of an agent. argparse ends the process with code 2 for a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m r3_openrlhf.operations.cluster.node_agent")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--gpus", type=int, help="GPUs per node")
    parser.add_argument(
        "--device",
        choices=[*map(str, Device)],
        default=str(Device.AUTO),
        help="cuda: nodes without GPUs are bad",
    )
    parser.add_argument("--ray-args", default="", help="further arguments of `ray start`")
    parser.add_argument("command", nargs="+", help="what task 0 runs, after --")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(Agent(parse(sys.argv[1:])).live())
