"""Programs that want more than their answer (attacks.toml), each run beside what it must not reach."""

import os
import platform
import socket
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from r3_openrlhf.rewards.code.data import decode
from r3_openrlhf.rewards.code.run import Call, Limits, Outcome, Runner

EXPECTED = "expected-" + str(98_321)  # in this process alone
SECRET = "environment-" + str(77_123)
LIMITS = Limits(seconds_per_test=0.7, memory_mb=256, output_bytes=2**22, threads=32)


@dataclass(frozen=True)
class Attack:
    """One entry of attacks.toml."""

    program: str
    how: str
    statuses: tuple[str, ...] = ("finished",)
    outside: bool = False
    function: bool = False
    machine: str = ""

    @property
    def text(self) -> str:
        return self.program if self.function else _PRELUDE + self.program


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    is_held: bool
    stdout_of_the_next: str


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_PRELUDE = _TABLE.pop("prelude")
ATTACKS = {
    name: entry
    for name, entry in msgspec.convert(_TABLE, dict[str, Attack]).items()
    if entry.machine in ("", platform.machine())
}


def attack(runner: Runner, name: str) -> Result:
    """Run it beside a secret file and a listening port, in an environment with R3_SECRET; then a test after it."""
    known = ATTACKS[name]
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        secret = Path(directory, "secret")
        secret.write_text(EXPECTED)
        stdin = f"{secret} {server.getsockname()[1]} {os.getpid()}"
        call = Call(function="f") if known.function else Call(stdin=stdin)
        (outcome,) = runner.run_program(known.text, [call], limits=LIMITS)
        is_untouched = secret.read_text() == EXPECTED and os.listdir(directory) == ["secret"]
        server.settimeout(0)
        try:
            server.accept()
            is_untouched = False
        except BlockingIOError:
            pass
    after = "import os\nprint(os.listdir('.'), os.getpid() > 0)"
    (following,) = runner.run_program(after, [Call(stdin="")], limits=LIMITS)
    is_held = (
        outcome.status in known.statuses and "THROUGH" not in outcome.stdout and is_untouched
    )
    is_held = (
        is_held
        and EXPECTED not in f"{outcome}"
        and len(outcome.detail) <= 300
        and outcome.detail.isprintable()
    )
    if known.function and outcome.status == "finished":
        is_held = (
            is_held
            and type(decode(outcome.value)) in (int, list, bool)
            and "right" not in outcome.value
        )
    return Result(outcome, is_held and following.stdout == "[] True\n", following.stdout)


def outside(name: str, directory: Path) -> str:
    """What it prints as a bare process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        (directory / "secret").write_text(EXPECTED)
        stdin = f"{directory / 'secret'} {server.getsockname()[1]} {os.getpid()}"
        command = [sys.executable, "-c", ATTACKS[name].text]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, cwd=directory, timeout=600
        )
    return done.stdout
