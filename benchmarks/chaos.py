"""A real run on the tiny model under faults: each is followed by a resume, and the run is still the one that nobody disturbed.

    python benchmarks/chaos.py [--faults 30] [--seed 0] [--minutes 60] [--only WORDS]

The responses are played back (tests/recordings), so all else must follow from them: the sequence of (step, uid, verdict,
recalled) is compared with that of the undisturbed run. Afterwards no process, no directory of Ray and no file of a run may be left.
Full and read-only disks need root (a small tmpfs); others are drawn without. Prints one line per fault and a JSON line at the end.
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
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from r3_openrlhf.machine.ports import free_port  # noqa: E402
from r3_openrlhf.runs.directory import RunDirectory  # noqa: E402
from tests.recordings import playback_of, recorded  # noqa: E402

R3 = str(Path(sys.executable).with_name("r3"))
# What a process of the run is called in its command line
PROCESSES = {"engine": "ray::R3RolloutActor", "policy": "ray::R3PolicyActor", "controller": "ray::R3Trainer", "raylet": "raylet",
             "key store": "gcs_server", "command": "r3 train"}  # fmt: skip
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
PATIENCE_S = 30.0  # for what a fault leaves alone to end by itself, before a user would end it
KEYS = ("step", "uid", "verdict", "recalled_from")


class Chaos:
    """One run directory at a time, and what may happen to it."""

    def __init__(self, folder: Path, *, is_disk: bool) -> None:
        self.folder, self.is_disk = folder, is_disk
        self.run = RunDirectory(folder / "run")
        self.port = free_port()
        self.server = self.serve()
        self.process: subprocess.Popen | None = None

    def serve(self) -> subprocess.Popen:
        """The reward service."""
        command = [R3, "serve-rewards", "--port", str(self.port), "--workers", "1"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start(self) -> None:
        settings = [
            *playback_of("r3"),
            f"run_dir={self.run.path}",
            f"reward.urls=[http://127.0.0.1:{self.port}]",
        ]
        self.process = subprocess.Popen([R3, "train", "experiment=cpu_smoke", *settings], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip

    def family(self) -> list[psutil.Process]:
        try:
            itself = psutil.Process(self.process.pid)
            return [itself, *itself.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def until_step(self, number: int, draw: random.Random) -> None:
        """The step is under way, somewhere."""
        while self.process.poll() is None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                last = json.loads(self.run.events.read_text().splitlines()[-1])
                if (last["step"] or 0) >= number:
                    time.sleep(draw.uniform(0, 1.0))  # anywhere in it
                    return
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """Its exit code and last sentence: by itself for PATIENCE_S, then as a user ends it, at last by SIGKILL."""
        for ask in (None, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if ask is not None:
                for member in self.family() if ask == signal.SIGKILL else self.family()[:1]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.send_signal(ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, said = self.process.communicate(timeout=PATIENCE_S if ask else 2 * PATIENCE_S)
                return self.process.returncode, (said.strip().splitlines() or [""])[-1]
        raise AssertionError("SIGKILL ends every process")

    def signalled(self, name: str, number: int) -> None:
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if PROCESSES[name] in " ".join(member.cmdline()):
                    member.send_signal(number)
                    if number == signal.SIGSTOP:
                        time.sleep(5.0)
                        member.send_signal(signal.SIGCONT)
                    return

    def full_disk(self) -> None:
        """No room for some seconds."""
        ballast = self.folder / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(2**20))
                file.flush()
        time.sleep(10.0)
        ballast.unlink()

    def read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=False)
        time.sleep(10.0)
        subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True)

    def no_rewards(self) -> None:
        self.server.kill()
        self.server.wait()
        time.sleep(5.0)
        self.server = self.serve()

    def locked_history(self) -> None:
        with contextlib.closing(sqlite3.connect(self.run.history, isolation_level=None, timeout=5.0)) as store:
            with contextlib.suppress(sqlite3.OperationalError):
                store.execute("BEGIN IMMEDIATE")
                time.sleep(5.0)
                store.execute("ROLLBACK")

    def everybody(self, number: int) -> None:
        """As `scancel` does."""
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def faults(self) -> dict[str, Callable[[], None]]:
        found = {f"{number.name} to the {name}": lambda name=name, number=number: self.signalled(name, number)
                 for name in PROCESSES for number in SIGNALS}  # fmt: skip
        found |= {f"{number.name} to every process": lambda number=number: self.everybody(number)
                  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)}  # fmt: skip
        found |= {"the reward service down and back": self.no_rewards, "the history locked": self.locked_history}
        if self.is_disk:
            found |= {"a full disk": self.full_disk, "a read-only disk": self.read_only}
        return found

    def story(self) -> list[list]:
        rows = sorted(self.run.read_rollouts(), key=lambda row: (row["step"], row["recalled_from"] is not None))
        return [[row[key] for key in KEYS] for row in rows]


@dataclass
class Result:
    fault: str
    code: int
    said: str
    seconds: float


def undisturbed() -> list[list]:
    from tests.recordings import STORY

    return [[row[STORY.index(key)] for key in KEYS] for row in recorded("r3")[1]["story"]]


def left_behind(folder: Path, before: set[str]) -> list[str]:
    """Processes that know the run, and what is new among the directories for temporary files."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and str(folder) in " ".join(process.cmdline()):
                found.append(f"process {process.pid} {process.name()}")
    return found + sorted(temporary() - before)


def temporary() -> set[str]:
    names = ("/tmp/r3-*", "/tmp/vllm_dist_*", "/dev/shm/*")
    return {str(path) for name in names for path in Path("/").glob(name[1:])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="no further fault after so many")
    parser.add_argument("--only", default="", help="faults whose name has these words")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended, too
    draw, began = random.Random(options.seed), time.monotonic()
    before = temporary()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    is_disk = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "chaos", folder], check=False).returncode == 0
    chaos, results, same = Chaos(folder, is_disk=is_disk), [], []
    try:
        faults = {name: act for name, act in chaos.faults().items() if options.only in name}
        step = 0
        while len(results) < options.faults and time.monotonic() - began < 60 * options.minutes:
            step = step % 6 + draw.randint(1, 2)
            fault, started = draw.choice(sorted(faults)), time.monotonic()
            chaos.start()
            chaos.until_step(step, draw)
            faults[fault]()
            code, said = chaos.end()
            results.append(Result(fault, code, said, time.monotonic() - started))
            print(f"{len(results):3} step {step}: {fault}: code {code}: {said[:200]}", flush=True)
            if code == 0:
                same.append(chaos.story() == undisturbed())
                shutil.rmtree(chaos.run.path)
                step = 0
        for _ in range(3):  # to the end
            if chaos.run.path.exists() and not chaos.run.finished.exists():
                chaos.start()
                said = chaos.process.communicate()[1]
                print(
                    f"    resumed: code {chaos.process.returncode}: {said.strip().splitlines()[-1][:200]}", flush=True
                )
        if chaos.run.path.exists():
            same.append(chaos.story() == undisturbed())
    finally:
        for member in chaos.family() if chaos.process is not None else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        chaos.server.kill()
        chaos.server.wait()
        if is_disk:
            subprocess.run(["umount", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    left = left_behind(folder, before)
    summary = {"faults": len(results), "runs": len(same), "same": sum(same), "left_behind": left}
    print(json.dumps(summary))
    return 0 if same and all(same) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
