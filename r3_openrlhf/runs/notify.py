"""Tell a program or an address that a run has ended (`logging.notify`, or the variable R3_NOTIFY)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from r3_openrlhf.method.errors import R3Error, quoted, without_secrets
from r3_openrlhf.runs.directory import RunDirectory

VARIABLE = "R3_NOTIFY"  # for an address that is a secret: the settings are in config.yaml
TIMEOUT_S = 20.0


def notify(target: str | None, run: RunDirectory, *, state: str, why: str | None) -> str | None:
    """Send one JSON object about the end of a run.

    A target that begins with http:// or https:// gets a POST. Any other is a program with its arguments. It is started without a
    shell, and the object is its standard input, so that no text of a run can become a command.

    Args:
        target: None: R3_NOTIFY of the environment; where that is not set either, nothing is sent.
        state: finished, saved (the same command continues), stopped or failed.
        why: the sentence with which it ended; None: it finished.

    Returns:
        A warning if the target could not be told within TIMEOUT_S seconds, else None. The run's own result does not change.
    """
    target = target or os.environ.get(VARIABLE)
    if not target:
        return None
    body = json.dumps(_message(run, state=state, why=why), ensure_ascii=False).encode()
    try:
        if target.startswith(("http://", "https://")):
            request = urllib.request.Request(target, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return None
        done = subprocess.run(shlex.split(target), input=body, capture_output=True, timeout=TIMEOUT_S, check=False)
        error = f"it ended with code {done.returncode}" if done.returncode else None
    except (OSError, ValueError, subprocess.SubprocessError, urllib.error.URLError) as failure:
        error = type(failure).__name__ if isinstance(failure, subprocess.TimeoutExpired) else str(failure)
    # an address may be a secret as a whole
    name = urllib.parse.urlsplit(target).hostname if "://" in target else target
    return (
        None
        if error is None
        else f"logging.notify {quoted(name or '')} was not told that the run ended: {quoted(error)}"
    )


def _message(run: RunDirectory, *, state: str, why: str | None) -> dict[str, str | int | float | None]:
    try:
        metrics, evaluations = run.read_metrics()[-1:], run.read_evaluations()[-1:]
    except (R3Error, OSError):  # the message about a broken run must leave, too
        metrics, evaluations = [], []
    last = metrics[0] if metrics else {}
    return {
        "run_dir": str(run.path),
        "state": state,
        "why": None if why is None else without_secrets(why),
        "step": last.get("step"),
        "reward_mean": last.get("reward_mean"),
        "accuracy": last.get("accuracy"),
        "held_out": evaluations[0].get("pass_at_1") if evaluations else None,
    }
