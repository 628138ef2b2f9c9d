"""Runs one step of an installation: its own output goes to a log, the terminal gets one line that keeps moving.

    python tools/install_step.py --step 2/5 --log .venv/install.log "PyTorch for CPUs" -- COMMAND...

The packages that this project needs are not there yet, so this file needs nothing but Python. On a terminal the line is
rewritten every second; elsewhere there is a line when the step starts, one for every INTERVAL_S of waiting and one at its
end. A step that fails shows the end of its output, and says where the rest is. A step that fails because the connection
to the package index broke off is tried again, twice.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

# between two plain lines: nobody waits for more than ten seconds without a word
INTERVAL_S = 8.0
REFRESH_S = 1.0
TAIL = 15  # lines of a failed step
MAX_SHOWN = 60  # characters of what the command said last
WIDTH = 79  # a longer line would wrap, and a wrapped line cannot be rewritten
# pip says this of every package that it finds on a read-only layer; it is about neither the user nor us
NOISE = re.compile(r"^WARNING: (Location|Skipping) .* is ignored|^\[notice\]")
# What pip and uv say when the connection or the index is at fault, not the package or the machine.
INDEX_AT_FAULT = re.compile(
    r"ReadTimeoutError|Connection (broken|reset|aborted)|IncompleteRead|HTTP error (429|5\d\d)|Failed to (fetch|download)"
)
PAUSES_S = (15.0, 60.0)  # before the second and the third try
REMEDY = f"`{Path(sys.executable).with_name('r3')} doctor` says what this machine lacks; the same command tries again"


class Line:
    """The line of a step. `clock` gives seconds; `terminal` decides whether it can be rewritten."""

    def __init__(self, title: str, *, stream, terminal: bool, clock=time.monotonic) -> None:
        self.title = title
        self.stream = stream
        self.terminal = terminal
        self.clock = clock
        self.started = self.said = clock()
        self._write(title)

    def tick(self, doing: str) -> None:
        if self.clock() - self.said >= (REFRESH_S if self.terminal else INTERVAL_S):
            self.said = self.clock()
            self._write(f"{self.title}: {self._elapsed()}{', ' if doing else ''}{doing}")

    def end(self, outcome: str) -> None:
        self._write(f"{self.title}: {outcome}, {self._elapsed()}", last=True)

    def _elapsed(self) -> str:
        seconds = int(self.clock() - self.started)
        return f"{seconds} s" if seconds < 100 else f"{seconds // 60} min {seconds % 60:02d} s"

    def _write(self, text: str, last: bool = False) -> None:
        if self.terminal and len(text) > WIDTH:
            text = text[: WIDTH - 3] + "..."
        self.stream.write(
            f"\r\x1b[K{text}{chr(10) if last else ''}" if self.terminal else f"{text}\n"
        )
        self.stream.flush()


def run_step(
    command: list[str], *, title: str, log: Path, stream, pauses: tuple[float, ...] = PAUSES_S
) -> int:
    """Run it, and again after each of `pauses` (seconds) when it was the index that failed. Returns its exit status;
    `log` gets everything that it says."""
    for pause in (*pauses, None):
        status, said = _run_once(command, title=title, log=log, stream=stream)
        if status == 0:
            return 0
        fault = next(
            (text.strip() for text in reversed(said) if INDEX_AT_FAULT.search(text)), None
        )
        if pause is None or fault is None:
            break
        stream.write(f"    The package index failed ({fault[:160]}). Trying again.\n")
        waiting = Line(
            f"{title}: waiting {pause:.0f} s", stream=stream, terminal=stream.isatty()
        )
        for _ in range(round(pause / REFRESH_S)):
            time.sleep(REFRESH_S)
            waiting.tick("")
        waiting.end("waited")
    stream.writelines(f"    {text}\n" for text in said[-TAIL:])
    stream.write(
        f"Error: {title} failed with exit status {status}; everything it said is in {log}. {REMEDY}.\n"
    )
    return status


def _run_once(command: list[str], *, title: str, log: Path, stream) -> tuple[int, list[str]]:
    """Its exit status, and the lines of its output that say something."""
    line = Line(title, stream=stream, terminal=stream.isatty())
    with log.open("a", encoding="utf-8") as output:
        output.write(f"\n== {title}: {' '.join(command)}\n")
        output.flush()
        start = output.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    said: list[str] = []
    status = None
    while status is None:
        try:
            status = process.wait(timeout=REFRESH_S / 2)
        except subprocess.TimeoutExpired:
            line.tick(said[-1].strip()[:MAX_SHOWN] if said else "")
        with log.open(encoding="utf-8", errors="replace") as output:
            output.seek(start)
            said = [
                text
                for text in output.read().splitlines()
                if text.strip() and not NOISE.match(text)
            ]
    line.end("done" if status == 0 else "failed")
    return status, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", required=True, metavar="K/N")
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("title")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    number, total = options.step.split("/")
    title = f"installing group {number} of {total}, {options.title}"
    try:
        return run_step(options.command, title=title, log=options.log, stream=sys.stderr)
    except KeyboardInterrupt:
        print(f"\nStopped at {title}. The same command installs again.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
