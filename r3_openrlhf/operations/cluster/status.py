"""`r3 status`: a line per run, from its directory and Slurm's queue, if any. Reads only."""

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3_openrlhf.method.errors import R3Error, on_one_line
from r3_openrlhf.operations.cluster.submissions import (
    FILE,
    queue_entry,
    runs_of,
    submissions,
)
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.runs.display import duration, to_go_s
from r3_openrlhf.runs.state import (
    State,
    job_record,
    last_error,
    newest_checkpoint,
    planned_steps,
    saved_when_preempted,
    state_of,
)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The state of a run. None: not known, or not there yet."""

    run: str
    job: str | None
    state: str
    step: int | None
    num_steps: int | None  # of the whole run
    to_go_s: float | None  # at the pace of its last steps, while it runs
    tokens: int | None
    reward: float | None
    held_out: float | None
    checkpoint: str | None  # "step 12, 4 min ago"
    nodes: str | None
    last: str | None  # why it ended, or what is wrong


def find_runs(folder: Path) -> list[Path]:
    """Run directories below `folder`, itself included: those with a configuration, a job script or
    a submission. An array of seeds is its runs."""
    marks = {path.parent for path in folder.rglob("config.yaml")}
    for name in ("job.sh", FILE):
        marks |= {path.parent.parent for path in folder.rglob(f"cluster/{name}")}
    return sorted({run for mark in marks for run in runs_of(mark)})


def status_of(path: Path, *, now: float | None = None) -> RunStatus:
    """Read the status of a run. Raises R3Error where there is neither a run nor a job script."""
    run = RunDirectory(path)
    now = time.time() if now is None else now
    if not run.config.is_file() and not run.cluster.is_dir():
        raise R3Error(f"{path} is not a run directory: it has no config.yaml and no job script")
    record = job_record(run)
    job, waiting = _current_job(path, record)
    if job not in (record.get("job"), record.get("task")):
        record = {}
    queue, nodes = queue_entry(job)
    found = state_of(run)
    state, why = str(found.state), found.why
    if queue is not None and found.state != State.FINISHED:
        state, why = _in_queue(run, record, queue)
    if waiting is not None and found.state != State.FINISHED:
        why = f"job {waiting} waits for it"
    metrics, evaluations = run.read_metrics(), run.read_evaluations()
    last = metrics[-1] if metrics else {}
    num_steps = planned_steps(run)
    tokens = last.get("generated_tokens_total")
    return RunStatus(
        run=str(path),
        job=job,
        state=state,
        step=last.get("step"),
        num_steps=num_steps,
        to_go_s=to_go_s(metrics, num_steps=num_steps) if state == "running" else None,
        tokens=None if tokens is None else int(tokens),
        reward=last.get("fresh/reward"),
        held_out=evaluations[-1].get("pass_at_1") if evaluations else None,
        checkpoint=_checkpoint(run, now),
        nodes=nodes or ",".join(record.get("nodes", [])) or None,
        last=why,
    )


def _current_job(path: Path, record: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the job to describe, and the newest one if it only waits for an earlier one to end."""
    newest = (submissions(path) or [{}])[-1]
    job = newest.get("job") or record.get("job")
    at_work = record.get("task") or record.get("job")
    if job == at_work:
        return job, None
    queue, _ = queue_entry(at_work)
    if not queue or queue.partition(" ")[0] == "PENDING":
        return job, None
    return at_work, job


def _checkpoint(run: RunDirectory, now: float) -> str | None:
    """Describe the newest checkpoint, "step 12, 4 min ago"; None without one."""
    step = newest_checkpoint(run)
    if not step:
        return None
    minutes = (now - (run.checkpoints / "_actor" / "latest").stat().st_mtime) / 60
    return f"{step}, {minutes:.0f} min ago"


def _in_queue(run: RunDirectory, record: dict[str, Any], queue: str) -> tuple[str, str | None]:
    """Describe a job that Slurm's queue has, with the reason where there is one."""
    saved = saved_when_preempted(run, record)
    why = saved or last_error(run) or record.get("why")
    if queue.startswith("PENDING"):
        state = _state_of_waiting(queue, has_run=bool(record))
        return state, f"{why}, requeued" if saved else why
    if queue.startswith("RUNNING"):
        return record.get("state") or "starting", why
    return queue.lower(), why


def _state_of_waiting(queue: str, *, has_run: bool) -> str:
    """Describe a pending job, with Slurm's reason if it gives one."""
    state = "requeued" if has_run else "queued"
    reason = queue.partition(" ")[2]
    return state if reason in ("", "None") else f"{state} ({reason})"


def status_page(statuses: Sequence[RunStatus], *, width: int) -> str:
    """Format a line of numbers per run; below it tokens, checkpoint, job, and why it ended."""
    row = "{:<10}  {:>9}  {:>6}  {:>8}  {:>7}".format
    heads = row("state", "step", "reward", "held-out", "to go")
    longest = max(len(on_one_line(each.run)) for each in statuses)
    names = min(max(len("run"), longest), max(10, width - len(heads) - 2))
    lines = [f"{'run':<{names}}  {heads}"]
    for each in statuses:
        name = on_one_line(each.run)
        reward = "-" if each.reward is None else f"{each.reward:.3f}"
        held_out = "-" if each.held_out is None else f"{each.held_out:.1%}"
        to_go = "-" if each.to_go_s is None else duration(each.to_go_s)
        if len(name) > names:  # a path is to be copied: it is never broken
            lines.append(name)
            name = ""
        numbers = row(each.state, _progress(each), reward, held_out, to_go)
        lines.append(f"{name:<{names}}  {numbers}")
        for text in (_facts(each), on_one_line(each.last or "")):
            lines += textwrap.wrap(
                text, width=width, initial_indent="  ", subsequent_indent="  "
            )
    return "\n".join(lines)


def _progress(status: RunStatus) -> str:
    """Format the step, "3 of 8" if the number of steps is known."""
    if status.step is None:
        return "-"
    return f"{status.step} of {status.num_steps}" if status.num_steps else str(status.step)


def _facts(status: RunStatus) -> str:
    """Format tokens, checkpoint and job, as far as they are known."""
    facts: list[str] = []
    if status.tokens is not None:
        facts.append(f"{status.tokens:,} tokens")
    if status.checkpoint is not None:
        facts.append(f"checkpoint of {status.checkpoint}")
    if status.job is not None:
        nodes = "" if status.nodes is None else f" on {status.nodes}"
        facts.append(f"job {status.job}{nodes}")
    return "; ".join(facts)
