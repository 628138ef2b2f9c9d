"""`r3 status`: one line per run, from its directory and, where there is one, from Slurm's queue. Reads only."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from r3_openrlhf.cluster.submissions import submissions
from r3_openrlhf.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.stop_request import GO_ON


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """None: not known, or not there yet."""

    run: str
    job: str | None
    state: str
    step: int | None
    tokens: int | None
    reward: float | None
    held_out: float | None
    checkpoint: str | None  # "step 12, 4 min ago"
    nodes: str | None
    last: str | None  # why it ended, or what is wrong


def find_runs(folder: Path) -> list[Path]:
    """Run directories below `folder`, itself included: those with a configuration or a job script."""
    marks = {path.parent for path in folder.rglob("config.yaml")} | {
        path.parent.parent for path in folder.rglob("cluster/job.sh")
    }
    return sorted(marks)


def status_of(path: Path, *, now: float | None = None) -> RunStatus:
    """Raises R3Error where there is neither a run nor a job script."""
    run, now = RunDirectory(path), time.time() if now is None else now
    if not run.config.is_file() and not run.cluster.is_dir():
        raise R3Error(f"{path} is not a run directory: it has no config.yaml and no job script")
    told = _json(run.cluster / "state.json")
    job = _newest_job(path) or told.get("job")
    queue, nodes = _queue(job)
    metrics, evaluations = run.read_metrics(), run.read_evaluations()
    last = metrics[-1] if metrics else {}
    state, why = _state(run, told if told.get("job") == job else {}, queue)
    return RunStatus(
        run=str(path),
        job=job,
        state=state,
        step=last.get("step"),
        tokens=int(last["generated_tokens_total"]) if "generated_tokens_total" in last else None,
        reward=last.get("reward_mean"),
        held_out=evaluations[-1]["pass_at_1"] if evaluations else None,
        checkpoint=_checkpoint(run, now),
        nodes=nodes or ",".join(told.get("nodes", [])) or None,
        last=why,
    )


def _state(run: RunDirectory, told: dict, queue: str | None) -> tuple[str, str | None]:
    """What is going on, and the reason where there is one."""
    why = told.get("why")
    if run.finished.is_file():
        return "finished", None
    if queue is not None and queue.startswith("PENDING"):
        waits = queue.partition(" ")[2]
        return ("requeued" if told else "queued") + (f" ({waits})" if waits not in ("", "None") else ""), why
    if queue is not None:
        return (told.get("state") or "starting") if queue.startswith("RUNNING") else queue.lower(), why
    if told.get("state") == "ended":
        return {0: "ended", GO_ON: "preempted, saved"}.get(told["code"], "failed"), why
    if told:
        return "gone", "its job is not in the queue, and its end was not recorded: killed, or its first node was lost"
    return ("started" if run.config.is_file() else "not started"), None


def _queue(job: str | None) -> tuple[str | None, str | None]:
    """Slurm's state with its reason, and the nodes; None, None where the job is not there or there is no Slurm."""
    if job is None or shutil.which("squeue") is None:
        return None, None
    done = subprocess.run(
        ["squeue", "--noheader", "--jobs", job, "--format", "%T %r|%N"], capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return None, None  # squeue refuses the number of a job that it has forgotten
    state, _, nodes = lines[0].partition("|")
    return state.strip(), nodes.strip() or None


def _newest_job(path: Path) -> str | None:
    lines = submissions(path)
    return lines[-1]["job"] if lines else None


def _checkpoint(run: RunDirectory, now: float) -> str | None:
    latest = run.checkpoints / "_actor" / "latest"
    if not latest.is_file():
        return None
    minutes = (now - latest.stat().st_mtime) / 60
    return f"{latest.read_text().strip().replace('global_step', 'step ')}, {minutes:.0f} min ago"


def _json(path: Path) -> dict:
    return json.loads(path.read_text()) if path.is_file() else {}


def status_table(statuses: Sequence[RunStatus]):
    """A rich table with one row per run; "-" where something is not known."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("run", "job", "state", "step", "tokens", "reward", "held-out", "checkpoint", "nodes", "last"):
        table.add_column(column, overflow="fold")
    for each in statuses:
        table.add_row(
            each.run,
            each.job or "-",
            each.state,
            "-" if each.step is None else str(each.step),
            "-" if each.tokens is None else f"{each.tokens:,}",
            "-" if each.reward is None else f"{each.reward:.3f}",
            "-" if each.held_out is None else f"{each.held_out:.1%}",
            each.checkpoint or "-",
            each.nodes or "-",
            each.last or "",
        )
    return table
