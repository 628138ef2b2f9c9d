"""Train from Python, in a notebook or a script: what `r3 train` does, in a process of its own.

    from r3_openrlhf import train

    run = train("quickstart", {"replay.k": 4, "run_dir": "runs/k4"})
    run.metrics["fresh/reward"].plot()

Ray, DeepSpeed and the engine never enter the caller's process, so a cell may train again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from r3_openrlhf.comparison.frames import Run
from r3_openrlhf.config.loading import load_config
from r3_openrlhf.method.errors import R3Error

LINES_OF_ERROR = 20


def train(
    experiment: str, settings: Mapping[str, Any] | Iterable[str] = (), *, quiet: bool = False
) -> Run:
    """Train a model, or resume the run in `run_dir`, and return the run.

    Args:
        experiment: a name of configs/experiment, or the path of a YAML file.
        settings: key -> value, or "key=value" as on the command line.
        quiet: show errors alone; otherwise a line for each phase and step goes to stderr.

    Raises:
        R3Error: what `r3 train` would have said, before it starts or while it trains.
        KeyboardInterrupt: the caller was interrupted; the run has saved a step, and the same call goes on."""
    words = _words(settings)
    run_dir = load_config(experiment, words).run_dir
    command = [sys.executable, "-m", "r3_openrlhf", "train", f"experiment={experiment}", *words]
    if quiet:
        command.append("--quiet")
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        last = _passed_on(process, shown=not quiet)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    if process.wait() != 0:
        raise R3Error(_sentence(last, process.returncode, run_dir))
    return Run(run_dir)


def _words(settings: Mapping[str, Any] | Iterable[str]) -> list[str]:
    """Return settings as words of a command line."""
    if not isinstance(settings, Mapping):
        return list(settings)
    words = []
    for key, value in settings.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words.append(f"{key}={text}")
    return words


def _passed_on(process: subprocess.Popen[str], *, shown: bool) -> list[str]:
    """Show what the process says while it runs. Returns its last lines."""
    assert process.stderr is not None
    last: list[str] = []
    for line in process.stderr:
        if shown:
            sys.stderr.write(line)
        last = [*last, line.rstrip()][-LINES_OF_ERROR:]
    return last


def _sentence(last: list[str], code: int, run_dir: str) -> str:
    """Return the error among the last lines, or what is known without one."""
    for line in reversed(last):
        if line.startswith("Error: "):
            return line.removeprefix("Error: ")
    said = last[-1] if last else "it said nothing"
    return f"the run in {run_dir} ended with code {code}: {said}"
