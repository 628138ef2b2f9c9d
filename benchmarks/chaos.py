"""A real run on the tiny model under faults: it is resumed after each, and is still the run that no one disturbed.

    python benchmarks/chaos.py [--faults 30] [--skip 0] [--seed 0] [--minutes 60] [--only WORDS]

The responses are played back (tests/recordings), so everything else must follow from them. Whenever a run ends, by a fault or by
itself, its sequence of (step, uid, verdict, recalled) must be that of the recorded run up to the same step, and none of its
processes may be left. A fault that the run survives is followed by the next one in the same run. At the end no file may be left.

The faults come from a shuffled deck that has each kind once; --skip 10 --faults 10 is its second ten. Full and read-only disks need
root (a small tmpfs), jumps of the clock need `pip install libfaketime` (Debian's 0.9.10 breaks time.sleep); without them these kinds
are left out. Prints a line per fault and a JSON line at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
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
from tests.recordings import STORY, playback_of, recorded, story  # noqa: E402

R3 = str(Path(sys.executable).with_name("r3"))
# What a process of the run is called in its command line
PROCESSES = {"engine's actor": "ray::R3RolloutActor", "engine": "VLLM::EngineCore", "policy": "ray::R3PolicyActor", "command": "r3 train",
             "controller": "ray::R3Trainer", "raylet": "raylet/raylet", "key store": "gcs_server",
             "agent of Ray": "ray::DashboardAgent", "agent of environments": "ray::RuntimeEnvAgent"}  # fmt: skip
FAKETIME = Path(sysconfig.get_path("purelib"), "libfaketime", "vendor", "libfaketime", "src", "libfaketime.so.1")
STEPS = 8  # of the recorded run
FAULT_S = 5.0  # how long what is taken away stays away
PATIENCE_S = 300.0  # for a run to begin a phase or to end by itself, on a busy machine
LEAVING_S = 10.0  # for a second SIGTERM
# For the processes of a command that is gone. Where it was killed, Ray's agents first report their raylet's end to a key store that is
# gone as well (ray/_private/process_watcher.py:109).
ORPHANED_S = 90.0
KEYS = [STORY.index(key) for key in ("step", "uid", "verdict", "recalled_from")]
GOOD = {0, 85, 128 + signal.SIGINT, -signal.SIGKILL}


class Chaos:
    """One run directory at a time, and what may happen to it."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.temporary, self.clock = (folder / name for name in ("disk", "tmp", "clock"))
        self.disk.mkdir()
        self.temporary.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=300m", "chaos", self.disk]
        self.is_disk = subprocess.run(mount, check=False).returncode == 0
        self.run = RunDirectory(self.disk / "run")
        self.port = free_port()
        self.surroundings = {**os.environ, "TMPDIR": str(self.temporary)}
        self.server = self.serve()
        self.process: subprocess.Popen | None = None
        self.members: set[psutil.Process] = set()
        self.longest_s = 0.0  # that a process outlived its command
        self.seen = 0  # bytes of events.jsonl that are of earlier starts

    def serve(self) -> subprocess.Popen:
        """The reward service."""
        command = [R3, "serve-rewards", "--port", str(self.port), "--workers", "1"]
        return subprocess.Popen(
            command,
            env=self.surroundings,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(self, *, has_clock: bool) -> None:
        settings = [*playback_of("r3"), f"run_dir={self.run.path}", f"reward.urls=[http://127.0.0.1:{self.port}]"]
        surroundings = self.surroundings
        if has_clock:  # times of day alone: the clock that durations are measured with never jumps
            self.clock.write_text("+0")
            surroundings = surroundings | {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}  # fmt: skip
        self.process = subprocess.Popen([R3, "train", "experiment=cpu_smoke", *settings], stdout=subprocess.DEVNULL, env=surroundings,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
        self.members = set()
        self.seen = self.run.events.stat().st_size if self.run.events.is_file() else 0

    def family(self) -> Iterator[psutil.Process]:
        """The living processes of the run, also those whose parents are gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            itself = psutil.Process(self.process.pid)
            self.members |= {itself, *itself.children(recursive=True)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.temporary):
                    self.members.add(process)
        servers = {self.server.pid, *(child.pid for child in psutil.Process(self.server.pid).children(recursive=True))}
        for member in self.members:
            with contextlib.suppress(psutil.NoSuchProcess):
                if member.pid not in servers and member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
                    yield member

    def events(self) -> list[dict]:
        """The phases that began since the start."""
        with contextlib.suppress(OSError, ValueError):
            with self.run.events.open("rb") as events:
                events.seek(self.seen)
                return [json.loads(line) for line in events]
        return []

    def step(self) -> int:
        """The last step that began since the start; 0: none."""
        return max((event["step"] or 0 for event in self.events()), default=0)

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until it holds; False: the run ended before, or no phase began for PATIENCE_S."""
        last, since = len(self.events()), time.monotonic()
        while self.process.poll() is None and time.monotonic() - since < PATIENCE_S:
            if condition():
                return True
            if (now := len(self.events())) != last:
                last, since = now, time.monotonic()
            time.sleep(0.05)
        return False

    def until_step(self, number: int) -> bool:
        return self.until(lambda: self.step() >= number)

    def until_phase(self, name: str) -> bool:
        return self.until(lambda: any(event["phase"] == name for event in self.events()))

    def end(self, *, by_itself_s: float = PATIENCE_S) -> tuple[int, str]:
        """Its exit code and last sentence: by itself, then as a user ends it (a signal, another one after some seconds)."""
        waits = [
            (None, by_itself_s),
            (signal.SIGTERM, 3.0 if by_itself_s == 0 else PATIENCE_S),
            (signal.SIGTERM, LEAVING_S),
        ]
        for ask, wait_s in waits:
            if ask is not None:
                self.process.send_signal(ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, said = self.process.communicate(timeout=wait_s)
                lines = said.strip().splitlines() or [""]
                is_clean = "Traceback" not in said and "unexpected" not in said
                return self.process.returncode, lines[-1] if is_clean else f"TRACEBACK: {said}"
        for member in self.family():
            member.kill()
        self.process.communicate()
        return self.process.returncode, "HUNG: a second SIGTERM did not end it"

    def left(self) -> list[str]:
        """The processes that outlive their run by ORPHANED_S. They are ended."""
        began = time.monotonic()
        _, alive = psutil.wait_procs(list(self.family()), timeout=ORPHANED_S)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        alive = [process for process in alive if process in list(self.family())]
        found = []
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(" ".join(process.cmdline())[:100])
                process.kill()
        return found

    def is_same(self) -> bool:
        """Whether what the run wrote is what the recorded run wrote up to the same step."""
        rows = [[row[key] for key in KEYS] for row in story(self.run.path)]
        last = max((row[0] for row in rows), default=0)
        wanted = ([row[key] for key in KEYS] for row in recorded("r3")[1]["story"])
        return rows == [row for row in wanted if row[0] <= last]

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

    def full_disk(self) -> None:
        """No room for some seconds."""
        ballast = self.disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(2**20))
                file.flush()
        time.sleep(2 * FAULT_S)
        ballast.unlink()

    def read_only(self) -> None:
        """Bound to itself read-only: files that are open for writing would hold up a file system that becomes so."""
        subprocess.run(["mount", "--bind", self.run.path, self.run.path], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", self.run.path], check=True)
        time.sleep(2 * FAULT_S)
        subprocess.run(["umount", "--lazy", self.run.path], check=True)

    def no_rewards(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
        time.sleep(FAULT_S)
        self.server = self.serve()

    def locked_history(self) -> None:
        with contextlib.closing(sqlite3.connect(self.run.history, isolation_level=None, timeout=FAULT_S)) as store:
            with contextlib.suppress(sqlite3.OperationalError):
                store.execute("BEGIN IMMEDIATE")
                time.sleep(FAULT_S)
                store.execute("ROLLBACK")

    def jump(self, seconds: int) -> None:
        self.clock.write_text(f"{seconds:+d}")
        time.sleep(FAULT_S)

    def everybody(self, number: int) -> None:
        """As `scancel` does."""
        for member in list(self.family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def faults(self) -> dict[str, Callable[[], None]]:
        found = {f"{number.name} to the {name}": lambda name=name, number=number: self.signalled(name, number)
                 for name in PROCESSES for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)}  # fmt: skip
        found |= {f"{number.name} to every process": lambda number=number: self.everybody(number)
                  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)}  # fmt: skip
        found |= {f"{STUCK} {name}": lambda name=name: self.signalled(name, signal.SIGSTOP, for_good=True)
                  for name in ("engine", "policy", "controller")}  # fmt: skip
        found |= {f"{WHILE}{phase}": lambda: self.everybody(signal.SIGTERM) for phase in PHASES}
        found |= {"the reward service down and back": self.no_rewards, "the history locked": self.locked_history}
        if self.is_disk:
            found |= {"a full disk": self.full_disk, "a read-only directory": self.read_only}
        if FAKETIME.is_file():
            found |= {f"{CLOCK} {name}": lambda seconds=seconds: self.jump(seconds)
                      for name, seconds in (("a day ahead", 86400), ("an hour back", -3600))}  # fmt: skip
        return found


# of stack/phases.py
PHASES = ("starting the rollout engine", "loading the models", "sampling", "log-probs and rewards", "policy update",
          "weights to the engine", "saving a checkpoint", "saving the model")  # fmt: skip
WHILE = "SIGTERM to every process while "
STUCK, CLOCK = "SIGSTOP for ever and two SIGTERM to the", "a clock that jumps"


def left_behind(temporary: Path, before: set[Path]) -> list[str]:
    """Files for the time of a run, and shared memory that no process holds."""
    new = in_shared_memory() - before
    return sorted(map(str, [*temporary.iterdir(), *(new - shared_memory._held(new))]))


def in_shared_memory() -> set[Path]:
    return {path for name in shared_memory.STACK_NAMES for path in shared_memory.FOLDER.glob(name)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--skip", type=int, default=0, help="so many faults of the deck")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="no further fault after so many")
    parser.add_argument("--only", default="", help="faults whose name has these words")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    draw, began, before = random.Random(options.seed), time.monotonic(), in_shared_memory()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    chaos, same, left, num_faults, faulty = Chaos(folder), [], [], 0, []

    def ended(fault: str, *, by_itself_s: float = PATIENCE_S) -> None:
        code, said = chaos.end(by_itself_s=by_itself_s)
        remaining, is_same = chaos.left(), chaos.is_same()
        same.append(is_same)
        left.extend(remaining)
        is_end = code in GOOD or (code == 1 and said.startswith("Error: "))
        is_good = is_end and is_same and not remaining and not said.startswith(("HUNG", "TRACEBACK"))
        if not is_good:
            faulty.append(fault)
        print(f"    {'ended' if is_good else 'WRONG'}: code {code}, the same up to step {chaos.step()}: {is_same}, "
              f"left: {remaining}: {said[:400]}", flush=True)  # fmt: skip
        if code == 0:
            shutil.rmtree(chaos.run.path)

    try:
        faults = {name: act for name, act in chaos.faults().items() if options.only in name}
        deck = sorted(faults)
        draw.shuffle(deck)
        deck = (deck * (1 + (options.skip + options.faults) // len(deck)))[options.skip :][: options.faults]
        while num_faults < len(deck) and time.monotonic() - began < 60 * options.minutes and len(same) < 2 * len(deck):
            has_clock = CLOCK in deck[num_faults]
            fault, started = "nothing", time.monotonic()
            chaos.start(has_clock=has_clock)
            phase = deck[num_faults].partition(WHILE)[2]
            goes_on = chaos.until_phase(phase) if phase else chaos.until_step(1)
            while goes_on and num_faults < len(deck) and (CLOCK in deck[num_faults]) <= has_clock:
                if bool(phase) != (WHILE in deck[num_faults]):
                    break
                if not phase and not chaos.until_step(min(STEPS, chaos.step() + draw.randint(0, 1))):
                    break
                time.sleep(draw.uniform(0, 0.3 if phase else 1.0))  # anywhere in it
                if chaos.process.poll() is not None:
                    break
                fault, num_faults = deck[num_faults], num_faults + 1
                faults[fault]()
                seconds, started = time.monotonic() - started, time.monotonic()
                print(f"{num_faults + options.skip:3} step {chaos.step()}, {seconds:.0f} s: {fault}", flush=True)
                goes_on = not phase and STUCK not in fault and chaos.until_step(chaos.step() + 1)
            ended(fault, by_itself_s=0.0 if STUCK in fault else PATIENCE_S)
        for _ in range(3):  # to the end
            if chaos.run.path.exists():
                chaos.start(has_clock=False)
                ended("nothing", by_itself_s=600.0)
    finally:
        for member in list(chaos.family()) if chaos.process is not None else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        os.killpg(chaos.server.pid, signal.SIGKILL)
        chaos.server.wait()
        left += left_behind(chaos.temporary, before)
        if chaos.is_disk:
            subprocess.run(["umount", "--lazy", chaos.disk], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    summary = {"faults": num_faults, "faulty": faulty, "ends": len(same), "same": sum(same), "left_behind": left, "longest_s": round(chaos.longest_s, 1),
               "minutes": round((time.monotonic() - began) / 60, 1)}  # fmt: skip
    print(json.dumps(summary))
    return 0 if same and all(same) and not left and not faulty else 1


if __name__ == "__main__":
    sys.exit(main())
