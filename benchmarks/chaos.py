"""A real run on the tiny model under faults: it is resumed after each, and is still the run that no one disturbed.

    python benchmarks/chaos.py [--faults 30] [--seed 0] [--only WORDS]

The responses are played back (tests/recordings), so everything else must follow from them. Each start has one fault. Whenever a run
ends, by a fault or by itself, its sequence of (step, uid, verdict, recalled) must be that of the recorded run up to the same step,
every metric that holds no time or memory must be bit for bit that of a run that was not disturbed, made first, and none of its
processes may be left. At the end no file may be left.

The faults come from a shuffled deck that has each kind once. Prints a line per fault and a JSON line at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from r3_openrlhf.machine import shared_memory  # noqa: E402
from r3_openrlhf.machine.ports import free_port  # noqa: E402
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from r3_openrlhf.stack.phases import Phase  # noqa: E402
from tests.recordings import STORY, playback_of, recorded, settings_of, story  # noqa: E402

R3 = str(Path(sys.executable).with_name("r3"))
PROCESSES = {
    "engine's actor": "ray::R3RolloutActor",
    "engine": "VLLM::EngineCore",
    "policy": "ray::R3PolicyActor",
    "command": "r3 train",
    "controller": "ray::R3Trainer",
    "raylet": "raylet/raylet",
    "key store": "gcs_server",
    "agent of Ray": "ray::DashboardAgent",
    "agent of environments": "ray::RuntimeEnvAgent",
}
STEPS = 8  # of the recorded run
FAULT_S = 5.0  # how long what is taken away stays away
PATIENCE_S = 300.0  # for a run to begin a phase or to end by itself, on a busy machine
LEAVING_S = 10.0  # for a second SIGTERM
ORPHANED_S = 90.0  # Ray's agents report their raylet's end to a key store that is gone as well (ray/_private/process_watcher.py:109)
KEYS = [STORY.index(key) for key in ("step", "uid", "verdict", "recalled_from")]
# metrics that differ from run to run
TIMES = re.compile(r"^(timing|time|r3/time|r3/memory)/|_s$|per_second")
GOOD = {0, 85, 128 + signal.SIGINT, -signal.SIGKILL}


class Chaos:
    """One run directory at a time, and what may happen to it. PROCESSES has the words of their command lines."""

    def __init__(self, folder: Path) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.run = RunDirectory(folder / "run")
        self.port = free_port()
        self.surroundings = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "R3_REWARD_TOKEN": "of-this-chaos-alone",
        }
        self.server = self.serve()
        self.process: subprocess.Popen | None = None
        self.members: set[psutil.Process] = set()
        self.seen = 0  # bytes of events.jsonl that are of earlier starts
        self.undisturbed: dict[int, dict] = {}  # step -> its metrics

    def serve(self) -> subprocess.Popen:
        """Start the reward service."""
        command = [R3, "serve-rewards", "--port", str(self.port), "--workers", "1"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(
            command, env=self.surroundings, start_new_session=True, **silent
        )

    def start(self) -> None:
        settings = [
            *settings_of("r3"),
            "train.deterministic=true",
            f"run_dir={self.run.path}",
            f"reward.urls=[http://127.0.0.1:{self.port}]",
        ]
        self.process = subprocess.Popen(
            [R3, "train", "experiment=cpu_smoke", *settings],
            stdout=subprocess.DEVNULL,
            env=self.surroundings | playback_of("r3"),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.members = set()
        self.seen = self.run.events.stat().st_size if self.run.events.is_file() else 0

    def family(self) -> Iterator[psutil.Process]:
        """List the living processes of the run, also those whose parents are gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            itself = psutil.Process(self.process.pid)
            self.members |= {itself, *itself.children(recursive=True)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.temporary):
                    self.members.add(process)
        servers = {
            self.server.pid,
            *(child.pid for child in psutil.Process(self.server.pid).children(recursive=True)),
        }
        for member in self.members:
            with contextlib.suppress(psutil.NoSuchProcess):
                if (
                    member.pid not in servers
                    and member.is_running()
                    and member.status() != psutil.STATUS_ZOMBIE
                ):
                    yield member

    def events(self) -> list[dict]:
        """Read the phases that began since the start."""
        with contextlib.suppress(OSError, ValueError):
            with self.run.events.open("rb") as events:
                events.seek(self.seen)
                return [json.loads(line) for line in events]
        return []

    def step(self) -> int:
        """Return the last step that began since the start; 0: none."""
        return max((event["step"] or 0 for event in self.events()), default=0)

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until it holds; False: the run ended before, or PATIENCE_S passed."""
        since = time.monotonic()
        while self.process.poll() is None and time.monotonic() - since < PATIENCE_S:
            if condition():
                return True
            time.sleep(0.05)
        return False

    def end(self, *, by_itself_s: float = PATIENCE_S) -> tuple[int, str]:
        """Its exit code and last sentence: by itself, then as a user ends it (a signal, another one after some seconds)."""
        patience_s = 3.0 if by_itself_s == 0 else PATIENCE_S
        for number, wait_s in (
            (0, by_itself_s),
            (signal.SIGTERM, patience_s),
            (signal.SIGTERM, LEAVING_S),
        ):
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, text = self.process.communicate(timeout=wait_s)
                is_clean = "Traceback" not in text and "unexpected" not in text
                return self.process.returncode, (text.strip().splitlines() or [""])[
                    -1
                ] if is_clean else f"TRACEBACK: {text}"
        for member in self.family():
            member.kill()
        self.process.communicate()
        return self.process.returncode, "HUNG: a second SIGTERM did not end it"

    def left(self) -> list[str]:
        """End the processes that outlive their run by ORPHANED_S. Returns their commands."""
        _, alive = psutil.wait_procs(list(self.family()), timeout=ORPHANED_S)
        commands = []
        for process in set(alive) & set(self.family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                commands.append(" ".join(process.cmdline())[:100])
                process.kill()
        return commands

    def metrics(self) -> dict[int, dict]:
        """Read the metrics of each step that do not hold times."""
        lines = self.run.read_metrics()
        return {
            line["step"]: {key: value for key, value in line.items() if not TIMES.search(key)}
            for line in lines
        }

    def differences(self) -> list[str]:
        """Compare what the run wrote with the recorded story and the undisturbed run, up to the same step."""
        rows = [[row[key] for key in KEYS] for row in story(self.run.path)]
        last = max((row[0] for row in rows), default=0)
        wanted = ([row[key] for key in KEYS] for row in recorded("r3")[1]["story"])
        differ = [] if rows == [row for row in wanted if row[0] <= last] else ["story"]
        for step, line in self.metrics().items() if self.undisturbed else ():
            other = self.undisturbed[step]
            differ += [
                f"{key} of step {step}"
                for key in line | other
                if repr(line.get(key)) != repr(other.get(key))
            ]
        return differ

    def signalled(self, name: str, number: int, *, for_good: bool = False) -> None:
        for member in list(self.family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                if PROCESSES[name] in " ".join(member.cmdline()):
                    member.send_signal(number)
                    if number == signal.SIGSTOP and not for_good:
                        time.sleep(FAULT_S)
                        member.send_signal(signal.SIGCONT)
                    return
        raise RuntimeError(f"no {PROCESSES[name]} is there")

    def no_rewards(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
        time.sleep(FAULT_S)
        self.server = self.serve()

    def everybody(self, number: int) -> None:  # as `scancel` does
        for member in list(self.family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def faults(self) -> dict[str, Callable[[], None]]:
        faults = {
            f"{number.name} to the {name}": lambda name=name, number=number: self.signalled(
                name, number
            )
            for name in PROCESSES
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
        }
        faults |= {
            f"{number.name} to every process": lambda number=number: self.everybody(number)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
        }
        faults |= {
            f"{STUCK} {name}": lambda name=name: self.signalled(
                name, signal.SIGSTOP, for_good=True
            )
            for name in ("engine", "policy", "controller")
        }
        faults |= {
            f"{WHILE}{phase}": lambda: self.everybody(signal.SIGTERM) for phase in PHASES
        }
        return faults | {"the reward service down and back": self.no_rewards}


PHASES = (
    Phase.ENGINE,
    Phase.LOADING,
    Phase.SAMPLING,
    Phase.REWARDS,
    Phase.UPDATE,
    Phase.SYNC,
    Phase.CHECKPOINT,
    Phase.SAVING,
)
WHILE = "SIGTERM to every process while "
STUCK = "SIGSTOP for ever and two SIGTERM to the"


def in_shared_memory() -> set[Path]:
    return {
        path for name in shared_memory.STACK_NAMES for path in shared_memory.FOLDER.glob(name)
    }


def end_and_judge(chaos: Chaos, *, by_itself_s: float = PATIENCE_S) -> bool:
    """End the run. Returns whether it ended well: a known code, the recorded story, no process left."""
    code, message = chaos.end(by_itself_s=by_itself_s)
    remaining, differ = chaos.left(), chaos.differences()
    is_end = code in GOOD or (code == 1 and message.startswith("Error: "))
    is_good = (
        is_end
        and not differ
        and not remaining
        and not message.startswith(("HUNG", "TRACEBACK"))
    )
    print(
        f"    {'ended' if is_good else 'WRONG'}: code {code}, up to step {chaos.step()} differ: {differ[:5]}, "
        f"left: {remaining}: {message[:400]}",
        flush=True,
    )
    if code == 0:
        chaos.undisturbed = chaos.undisturbed or chaos.metrics()
        shutil.rmtree(chaos.run.path)
    return is_good


def disturb(chaos: Chaos, fault: str, act: Callable[[], None], draw: random.Random) -> bool:
    """Start or resume the run, let one fault happen anywhere in a step or a phase, and judge its end."""
    chaos.start()
    phase = fault.partition(WHILE)[2]
    if phase:
        chaos.until(lambda: any(event["phase"] == phase for event in chaos.events()))
    else:
        chaos.until(lambda: chaos.step() >= 1)
        step = min(STEPS, chaos.step() + draw.randint(0, 3))
        chaos.until(lambda: chaos.step() >= step)
    time.sleep(draw.uniform(0, 0.3 if phase else 1.0))
    if chaos.process.poll() is None:
        act()
    return end_and_judge(chaos, by_itself_s=0.0 if STUCK in fault else PATIENCE_S)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="faults whose name has these words")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    draw, before = random.Random(options.seed), in_shared_memory()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    chaos, faulty, left = Chaos(folder), [], []
    try:
        faults = {name: act for name, act in chaos.faults().items() if options.only in name}
        deck = sorted(faults)
        draw.shuffle(deck)
        chaos.start()
        if not end_and_judge(chaos, by_itself_s=600.0) or not chaos.undisturbed:
            raise RuntimeError("the run does not end well when nobody disturbs it")
        for number, fault in enumerate(
            itertools.islice(itertools.cycle(deck), options.faults), 1
        ):
            print(f"{number:3}: {fault}", flush=True)
            faulty += [] if disturb(chaos, fault, faults[fault], draw) else [fault]
        if chaos.run.path.exists():  # to the end
            chaos.start()
            faulty += [] if end_and_judge(chaos, by_itself_s=600.0) else ["nothing"]
    finally:
        for member in list(chaos.family()) if chaos.process is not None else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        os.killpg(chaos.server.pid, signal.SIGKILL)
        chaos.server.wait()
        new = in_shared_memory() - before
        left = sorted(map(str, [*chaos.temporary.iterdir(), *(new - shared_memory.held(new))]))
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"faults": options.faults, "faulty": faulty, "left_behind": left}))
    return 1 if faulty or left else 0


if __name__ == "__main__":
    sys.exit(main())
