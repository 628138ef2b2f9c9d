"""What runs on every node of a Slurm job, one process per node: `srun ... python -m r3_openrlhf.operations.cluster.node_agent`.

Task 0 is the head. It checks the nodes, starts Ray on all of them (none where the job has one node: the run starts its
own), runs the job's command, and watches everything to the end:

    a signal              is passed to the command, which saves and ends with code 85 (stop_request.GO_ON)
    the command ends      every node is tidied, and all agents end with the command's code
    a node or Ray ends    the command is ended, and all agents end with code 86 (LOST)
    a check fails         nothing is started, the bad nodes are written to NAME.exclude, and the code is 87 (BAD_NODE)

The agents of the other nodes hold one TCP connection to the head; the kernels notice when the other end is gone. They find the head by a
file in the run directory, which thereby proves that all nodes see the same file system; it also holds the job's secret.
Slurm signals every process of a step, in any session. The agents and the command listen; Ray and what it starts
do not (stop_request.ignore_signals_in_children), so that the step which is to be saved can end.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import hmac
import itertools
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from r3_openrlhf.config.words import Device
from r3_openrlhf.machine import ray_temporary, shared_memory
from r3_openrlhf.machine.ports import free_port
from r3_openrlhf.machine.ray_start import authentication
from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.history.lease import Lease
from r3_openrlhf.operations.cluster import ClusterError, all_reduce, node_checks, ray_on_nodes
from r3_openrlhf.runs import lock
from r3_openrlhf.runs.directory import RunDirectory, write_whole
from r3_openrlhf.runs.stop_request import GO_ON, SIGNALS, ignore_signals_in_children

FAILED, LOST, BAD_NODE = 1, 86, 87
SILENCE_S = 30  # a connection whose other end does not answer for so long is broken: the node is lost
START_S = 600.0  # for all nodes to come together
SUM_S = 120.0  # for the sum over all nodes; importing torch from a shared file system takes a good part of it
TIDY_S = 10.0  # between SIGTERM and SIGKILL for what was started
STARTS_WITHOUT_PROGRESS = 3
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


class Ended(Exception):
    """The job is over on this node: exit code and the reason, for the log."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Agent:
    """What head and workers share: the environment of the task, child processes, tidying."""

    def __init__(self, options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> None:
        self.options = options
        self.num_nodes = int(environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1")))
        self.node = environment.get("SLURMD_NODENAME", os.uname().nodename)
        self.job = environment.get("SLURM_JOB_ID", str(os.getpid()))
        array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        self.array_task = f"{array}_{task}" if array and task else None  # as `r3 submit` and squeue name it
        self.start = f"{self.job}.{environment.get('SLURM_RESTART_COUNT') or 0}"
        self.folder = Path(options.run_dir) / "cluster"
        self.folder.mkdir(parents=True, exist_ok=True)
        given = ray_temporary.ray_temporary()
        self.temporary = given if ray_temporary.bytes_of(given) <= ray_temporary.MAX_BYTES else Path("/tmp")
        self.temp_dir: Path | None = None  # made by `run`: Ray's files of this node
        self.asked = asyncio.Event()
        self.signal = signal.SIGUSR1

    def say(self, text: str) -> None:
        """One line on stderr: the time, this node's name, the text."""
        # one write, so that the lines of several agents do not mix
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {self.node}: {text}\n")
        sys.stderr.flush()

    async def run(self) -> int:
        """The whole life of an agent. Returns its exit code; by then all that it started has ended, and is tidied."""
        # orphans of what is started here become children of this process, and are found when it tidies
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        removed = [*ray_temporary.sweep(self.temporary), *shared_memory.sweep()]
        if removed:
            self.say(f"removed what an ended job had left: {', '.join(removed)}")
        with ray_temporary.private_directory(self.temporary) as self.temp_dir:
            try:
                await self.work()
                raise AssertionError("work() ends with Ended")
            except Ended as ended:
                self.say(f"{ended.why}; code {ended.code}")
                await self.leave(ended)
                return ended.code
            except R3Error as error:
                self.say(str(error))
                await self.leave(Ended(FAILED, str(error)))
                return FAILED
            finally:
                self.tidy()

    async def work(self) -> None:
        """What this kind of agent does. It never returns: Ended says that the job is over on this node."""
        raise NotImplementedError

    async def leave(self, ended: Ended) -> None:
        """Tell whom it concerns."""

    def _on_signal(self, number: int) -> None:
        if not self.asked.is_set():
            self.say(f"signal {signal.Signals(number).name}")
        self.signal = signal.Signals(number)
        self.asked.set()

    async def spawn(self, command: list[str], **environment: str) -> asyncio.subprocess.Process:
        """Start a command in a session of its own, without standard input. `environment` joins this process's. It is killed
        when this agent dies: no one would watch it."""
        return await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **environment}, start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            preexec_fn=_die_with_the_agent,
        )  # fmt: skip

    async def start_ray(
        self, *, port: int | None, head: str | None, environment: dict[str, str]
    ) -> asyncio.subprocess.Process:
        """Start `ray start`, which lasts as long as this node's Ray.

        port: of Ray's head, which this node is. head: HOST:PORT of the head that this node joins. One of them is None.
        """
        assert self.temp_dir is not None  # run() makes it
        address = ray_on_nodes.node_address(self.node)
        command = ray_on_nodes.start_command(
            address=address, port=port, head=head, node=self.node, temp_dir=self.temp_dir,
            gpus=self.options.gpus, ray_args=self.options.ray_args,
        )  # fmt: skip
        self.say(" ".join(command))
        with ignore_signals_in_children():
            return await self.spawn(command, **environment)

    async def add_up(self, *, address: str, rank: int, world: int) -> str:
        """This node's part in a sum over `world` nodes (all_reduce.py); what is wrong, "" if nothing is."""
        try:
            code, out, error = await _answer_of(
                all_reduce.__name__, address, rank, world, SUM_S, timeout=SUM_S + TIDY_S
            )
        except TimeoutError:
            return f"the all-reduce took more than {SUM_S:.0f} s"
        if code:
            return error or f"the all-reduce ended with {code}"
        self.say(f"all-reduce over {world} nodes: {out} s")
        return ""

    def tidy(self) -> None:
        """End every process that was started here, and keep Ray's logs."""
        children = psutil.Process().children(recursive=True)
        for child in children:
            _signal(child, signal.SIGTERM if hears(child, signal.SIGTERM) else signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=TIDY_S)
        alive += [child for child in psutil.Process().children(recursive=True) if child not in alive]
        for child in alive:
            _signal(child, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=TIDY_S)
        if self.temp_dir is not None:
            for logs in self.temp_dir.glob("session_20*/logs"):
                kept = self.folder / "ray_logs" / self.start / self.node
                shutil.copytree(logs, kept, dirs_exist_ok=True, symlinks=True)
        ray_temporary.sweep(self.temporary)  # of a command that was killed
        shared_memory.sweep()


class Head(Agent):
    """Task 0: checks the nodes, starts Ray, runs the job's command, and ends all agents with one code."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.workers: dict[str, asyncio.StreamWriter] = {}
        self.looks: dict[str, dict] = {}
        self.arrived = asyncio.Event()
        self.command: asyncio.subprocess.Process | None = None
        self.watched: set[asyncio.Task] = set()
        self.sums: dict[str, asyncio.Future[str]] = {}  # node -> what was wrong with its part of a sum
        self.rendezvous = self.folder / f"{self.start}.head"
        self.lease: Lease | None = None  # on the run directory

    async def work(self) -> None:
        """Check, gather, start; then watch the command, the nodes and Ray. Ended: one did, or a check failed. RunBusy: somebody
        else trains in the run directory."""
        run = RunDirectory(self.options.run_dir)
        taking = asyncio.to_thread(lock.acquire, run)
        self.lease = await self._within(taking, "the last one who trained here to be gone")
        run.error.unlink(missing_ok=True)
        self._count_this_start()
        self.state("starting")
        environment: dict[str, str] = {"RAY_TMPDIR": str(self.temporary)}
        self.looks[self.node] = node_checks.look()
        if self.num_nodes > 1:
            environment = authentication()
            await self._within(self._gather(environment["RAY_AUTH_TOKEN"]), "other nodes to start")
        self._judge()
        if self.num_nodes > 1:
            await self._within(self._check_sums(), "a sum over all nodes")
            environment["RAY_ADDRESS"] = await self._within(self._start_ray(environment), "Ray to start on every node")
        self.state("running")
        environment |= {"R3_NODES": str(self.num_nodes), lock.TOKEN: self.lease.token}
        self.command = await self.spawn(self.options.command, **environment)
        command = self._watch("command", self.command.wait())
        asked = asyncio.create_task(self.asked.wait())
        while True:
            done, _ = await asyncio.wait({*self.watched, asked}, return_when=asyncio.FIRST_COMPLETED)
            if command in done:
                code = command.result()
                if self.asked.is_set() and code == -self.signal:  # before it listened to signals: nothing was lost
                    code = GO_ON
                raise Ended(_exit_code(code), f"{Path(self.options.command[0]).name} ended with {code}")
            self._raise_lost(done)
            if asked in done:
                self.state("stopping")
                self.command.send_signal(self.signal)
                asked = asyncio.create_task(asyncio.Event().wait())  # a second signal changes nothing

    async def leave(self, ended: Ended) -> None:
        """Write down how the job ended, tell the other nodes, and give them 3 * TIDY_S seconds to become tidy."""
        self.state("ended", code=ended.code, why=ended.why)
        # srun ends with the highest code of its tasks, which may be that of a task that was killed
        write_whole(self.folder / f"{self.job}.code", str(ended.code))
        self.rendezvous.unlink(missing_ok=True)
        for writer in self.workers.values():
            send(writer, do="stop", code=ended.code, why=ended.why)
        # they close their ends when they are tidy
        if nodes := [task for task in self.watched if task.get_name().startswith("node ")]:
            await asyncio.wait(nodes, timeout=3 * TIDY_S)

    def state(self, state: str, **more) -> None:
        """Replace state.json, which `r3 status` reads: what the job does now, its nodes, the time, and `more`. It belongs to
        the holder of the run directory."""
        if self.lease is None:
            return
        job = {"job": self.job, "task": self.array_task, "start": self.start}
        now = {"state": state, "nodes": sorted({self.node, *self.workers}), "time": time.time()}
        write_whole(self.folder / "state.json", json.dumps({**job, **now, **more}))

    def tidy(self) -> None:
        """As every agent; then another one may train in the run directory."""
        super().tidy()
        if self.lease is not None:
            self.lease.release()

    def _count_this_start(self) -> None:
        """Starts of this job are counted as long as its newest checkpoint stays the same."""
        latest = self.folder.parent / "checkpoints" / "_actor" / "latest"
        checkpoint = latest.read_text().strip() if latest.is_file() else "none"
        log = self.folder / f"{self.job}.starts"  # the newest checkpoint at each start
        before = log.read_text().split() if log.is_file() else []
        same = len(list(itertools.takewhile(checkpoint.__eq__, reversed(before))))
        if same >= STARTS_WITHOUT_PROGRESS:
            raise Ended(
                FAILED,
                f"this job was started {same} times and its newest checkpoint is still {checkpoint}: it is not started "
                "again. A smaller checkpoint.save_minutes or a longer --time lets it get further; the log above "
                "says how each start ended",
            )
        log.write_text("\n".join([*before, checkpoint, ""]))

    def _watch(self, name: str, awaitable) -> asyncio.Task:
        task = asyncio.ensure_future(awaitable)
        task.set_name(name)
        self.watched.add(task)
        return task

    def _raise_lost(self, done: set[asyncio.Task]) -> None:
        for task in done & self.watched:
            if task.get_name() != "command":
                raise Ended(LOST, f"{task.get_name()}: {task.result()}")

    async def _within(self, work, what: str):
        """The result of `work`; a lost node or a signal ends the wait."""
        task, asked = asyncio.ensure_future(work), asyncio.create_task(self.asked.wait())
        ends = {task, asked, *self.watched}
        done, _ = await asyncio.wait(ends, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        task.cancel()
        self._raise_lost(done)
        if asked in done:
            raise Ended(GO_ON, "asked to end before the first step")
        here = sorted({self.node, *self.workers})
        raise Ended(
            LOST,
            f"waited {START_S:.0f} s for {what}; {len(here)} of {self.num_nodes} nodes are here ({', '.join(here)}). "
            f"Do all nodes see {self.folder}, and are TCP ports open between them?",
        )

    async def _gather(self, token: str) -> None:
        """Wait for the agents of the other nodes."""

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hello = await receive(reader)
            if hello is None or not hmac.compare_digest(str(hello.get("token")), token):
                writer.close()
                return
            keep_watch(writer)
            self.workers[hello["node"]] = writer
            hello["look"]["clock_gap_s"] = hello["now"] - time.time()
            self.looks[hello["node"]] = hello["look"]
            self._watch(f"node {hello['node']}", self._listen(reader, hello["node"]))
            self.arrived.set()

        self.server = await asyncio.start_server(welcome, "0.0.0.0", 0)
        host, port = ray_on_nodes.node_address(self.node), self.server.sockets[0].getsockname()[1]
        write_whole(self.rendezvous, json.dumps({"host": host, "port": port, "token": token}), mode=0o600)
        while len(self.workers) < self.num_nodes - 1:
            await self.arrived.wait()
            self.arrived.clear()

    async def _listen(self, reader: asyncio.StreamReader, node: str) -> str:
        """Until the node is lost; why."""
        while (message := await receive(reader)) is not None:
            if "ended" in message:
                return message["ended"]
            self.sums[node].set_result(message["sum"])
        return "the connection to its agent broke"

    async def _check_sums(self) -> None:
        """An all-reduce over all nodes. If it fails, one with each node: a pair that fails names its node; if every pair
        fails, it is the first node."""
        if not any((await self._sum(sorted(self.workers))).values()):
            return
        faults = {}
        for node in sorted(self.workers):
            wrong = await self._sum([node])
            if any(wrong.values()):
                faults[node] = f"with {self.node}, {wrong[node] or wrong[self.node]}"
        if len(faults) == len(self.workers) > 1:
            faults = {self.node: faults.popitem()[1]}
        # pairs that all work although all together do not: no one to exclude
        self._refuse(
            faults, otherwise="the all-reduce over all nodes failed, and works between the first node and each other"
        )

    async def _sum(self, others: list[str]) -> dict[str, str]:
        """Node -> what was wrong with its part."""
        address = f"{ray_on_nodes.node_address(self.node)}:{ray_on_nodes.free_port()}"
        world = 1 + len(others)
        for rank, node in enumerate(others, start=1):
            self.sums[node] = asyncio.get_running_loop().create_future()
            send(self.workers[node], do="sum", address=address, rank=rank, world=world)
        mine = await self.add_up(address=address, rank=0, world=world)
        return {self.node: mine, **{node: await self.sums[node] for node in others}}

    def _refuse(self, faults: dict[str, str], otherwise: str = "") -> None:
        """End the job, with the bad nodes in a file for the script, which excludes them."""
        if faults:
            file = self.folder / f"{self.job}.exclude"
            before = set(file.read_text().split(",")) if file.is_file() else set()
            write_whole(file, ",".join(sorted(before | set(faults))))
        why = "; ".join(f"{node}: {why}" for node, why in sorted(faults.items())) or otherwise
        raise Ended(BAD_NODE if faults else LOST, why)

    def _judge(self) -> None:
        faults = node_checks.faults(self.looks, gpus=self.options.gpus, device=self.options.device)
        for node, look in sorted(self.looks.items()):
            self.say(f"{node}: {node_checks.describe(look)}")
        if self.options.device == Device.CUDA:
            for sentence in node_checks.warnings(self.looks, gpus=self.options.gpus):
                self.say(f"Warning: {sentence}")
        write_whole(self.folder / "node_checks.json", json.dumps({"start": self.start, "nodes": self.looks}, indent=1))
        if faults:
            self._refuse(faults)

    async def _start_ray(self, authentication: dict[str, str]) -> str:
        os.environ.update(authentication)
        port = free_port()
        address = f"{ray_on_nodes.node_address(self.node)}:{port}"
        ray = await self.start_ray(port=port, head=None, environment=authentication)
        self._watch(f"Ray on {self.node}", _end_of(ray, "`ray start` ended"))
        await _answers(address)
        for writer in self.workers.values():
            send(writer, do="join", address=address, environment=authentication)
        wanted = sorted({self.node, *self.workers})
        while (joined := await self._joined(address)) != wanted:
            self.say(f"Ray has {len(joined)} of {len(wanted)} nodes")
            await asyncio.sleep(1)  # only the pace of asking
        self.say(f"Ray has {len(joined)} of {len(wanted)} nodes at {address}: {', '.join(joined)}")
        return address

    async def _joined(self, address: str) -> list[str]:
        """`ray_on_nodes.joined_nodes`, in a process of its own."""
        code, out, error = await _answer_of(ray_on_nodes.__name__, address)
        if code:
            raise Ended(LOST, f"Ray at {address} does not answer: {error or code}")
        return json.loads(out.splitlines()[-1])


class Worker(Agent):
    """Every other task: does what the head says, and tells it when the Ray of this node ends."""

    writer: asyncio.StreamWriter | None = None

    async def work(self) -> None:
        """Find the head and follow its messages (sum, join, stop). Ended: at `stop`, without a head, without Ray."""
        look = node_checks.look()
        try:
            place = await asyncio.wait_for(self._find_head(), START_S)
        except TimeoutError:
            why = f"waited {START_S:.0f} s for the first node's file in {self.folder}; is it shared?"
            raise Ended(LOST, why) from None
        reader, self.writer = await asyncio.open_connection(place["host"], place["port"])
        keep_watch(self.writer)
        send(self.writer, token=place["token"], node=self.node, look=look, now=time.time())
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        heard: asyncio.Future[dict | None] = asyncio.create_task(receive(reader))
        ray_ended = adding = never
        while True:
            ends: set[asyncio.Future[Any]] = {heard, ray_ended, adding}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if adding.done():
                send(self.writer, sum=adding.result())
                adding = never
            if ray_ended.done():
                send(self.writer, ended=ray_ended.result())
                raise Ended(LOST, ray_ended.result())
            if not heard.done():
                continue
            match heard.result():
                case None:
                    raise Ended(LOST, "the connection to the head broke")
                case {"do": "stop", "code": code, "why": why}:
                    raise Ended(code, f"the head says: {why}")
                case {"do": "sum", "address": address, "rank": rank, "world": world}:
                    adding = asyncio.create_task(self.add_up(address=address, rank=rank, world=world))
                case {"do": "join", "address": address, "environment": environment}:
                    ray = await self.start_ray(port=None, head=address, environment=environment)
                    ray_ended = asyncio.create_task(_end_of(ray, "`ray start` ended"))
            heard = asyncio.create_task(receive(reader))

    async def _find_head(self) -> dict:
        place = self.folder / f"{self.start}.head"
        while True:
            os.listdir(self.folder)  # a fresh look also where the file system remembers
            if place.is_file():
                return json.loads(place.read_text())
            await asyncio.sleep(0.2)  # only the pace of asking


def send(writer: asyncio.StreamWriter, **message) -> None:
    """Put one message, a line of JSON, into the connection; it may leave after this returns."""
    writer.write(json.dumps(message).encode() + b"\n")


async def receive(reader: asyncio.StreamReader) -> dict | None:
    """One message; None: the connection is closed or broken."""
    try:
        line = await reader.readline()
    except OSError:
        return None
    return json.loads(line) if line.endswith(b"\n") else None


def keep_watch(writer: asyncio.StreamWriter) -> None:
    """Break the connection SILENCE_S after its other end has stopped answering: kernels ask each other (man 7 tcp)."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, option, SILENCE_S // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_S)  # for what was sent


async def _answer_of(module: str, *arguments: object, timeout: float | None = None) -> tuple[int, str, str]:
    """Run a module in a process of its own: exit code, what it printed, the last line of its stderr. Raises TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *map(str, arguments), start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, error = await asyncio.wait_for(process.communicate(), timeout)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    said = error.decode(errors="replace").strip().splitlines()
    return process.returncode or 0, out.decode().strip(), said[-1] if said else ""


async def _end_of(process: asyncio.subprocess.Process, words: str) -> str:
    return f"{words} with {await process.wait()}"


async def _answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.2)  # only the pace of asking
            continue
        writer.close()
        return


def _die_with_the_agent() -> None:
    # between fork and exec: nothing but a system call
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def hears(process: psutil.Process, number: int) -> bool:
    """True if the process does not block this signal, or is gone."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    blocked = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:"))
    return not blocked >> (number - 1) & 1


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line of an agent. A wrong one ends the process with argparse's words and code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m r3_openrlhf.operations.cluster.node_agent", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--gpus", type=int, help="GPUs per node")
    parser.add_argument(
        "--device", choices=[*map(str, Device)], default=str(Device.AUTO), help="cuda: nodes without GPUs are bad"
    )
    parser.add_argument("--ray-args", default="", help="further arguments of `ray start`")
    parser.add_argument("command", nargs="+", help="what task 0 runs, after --")
    return parser.parse_args(arguments)


def main() -> None:
    """Be the head (SLURM_PROCID 0 or not set) or a worker. Exits with the job's code; 1 after a ClusterError."""
    agent = Head if int(os.environ.get("SLURM_PROCID", "0")) == 0 else Worker

    async def run() -> int:
        return await agent(parse(sys.argv[1:])).run()

    try:
        sys.exit(asyncio.run(run()))
    except ClusterError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
