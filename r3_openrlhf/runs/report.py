"""What a run did, as tables for people, from metrics.jsonl and rollouts.jsonl alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from r3_openrlhf.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory

PHASES = {
    "sampling": "timing/generation",
    "log-probs, rewards, advantages": "timing/make_experience",
    "policy update": "timing/ppo_train",
    "weights to the engine": "timing/broadcast",
}
MECHANISMS = (
    (
        "groups all correct / none correct / mixed",
        "r3/groups/all_correct",
        "r3/groups/none_correct",
        "r3/groups/mixed",
    ),
    ("collapsed groups before -> after replay", "r3/groups/collapsed_before", "r3/groups/collapsed_after"),
    ("rollouts recalled", "r3/replay/recalled"),
    ("reflection groups", "r3/reflection/groups"),
    ("ranked groups", "r3/ranking/groups"),
    ("rollouts that could not be graded", "r3/grading/ungraded"),
)
# (name, key, format); shown as the mean of the first and of the last quarter of the steps
LEVELS = (
    ("reward", "reward_mean", ".3f"),
    ("accuracy", "accuracy", ".3f"),
    ("entropy (nats per token)", "r3/entropy/estimate", ".3f"),
    ("tokens per response", "response_length_mean", ".1f"),
    ("truncated", "truncated_rate", ".1%"),
    ("log-prob gap, actor and engine", "r3/sync/abs_logprob_gap", ".4f"),
)
TEXT_START = 60  # characters of a response in a table


def summary_table(run: RunDirectory) -> Group:
    """Totals of what R³ did, levels at the beginning and at the end, seconds per phase, and where the files are.

    Raises R3Error when the run has no finished step.
    """
    metrics = run.read_metrics()
    if not metrics:
        raise R3Error(f"{run.path} has no finished step yet; its log is {run.log}")
    quarter = max(1, len(metrics) // 4)
    first, last = metrics[:quarter], metrics[-quarter:]

    table = Table(title=f"{run.path.name}: {len(metrics)} steps", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, *keys in MECHANISMS:
        totals = [_total(metrics, key) for key in keys]
        if None not in totals:
            table.add_row(name, (" -> " if "->" in name else " / ").join(f"{total:.0f}" for total in totals))
    if run.data_counts.is_file():
        counts = json.loads(run.data_counts.read_text())
        table.add_row(
            "problems (rows left out: too long / repeated / unusable)",
            f"{counts['num_problems']} ({counts['num_dropped_overlong']} / {counts['num_duplicates']} / {counts['num_unusable']})",
        )
    sampled = metrics[-1].get("generated_tokens_total")
    if sampled is not None:
        table.add_row("response tokens sampled", f"{sampled:,.0f}")
    table.add_section()
    span = "first step -> last" if quarter == 1 else f"first {quarter} steps -> last {quarter}"
    for name, key, form in LEVELS:
        before, after = _mean(first, key), _mean(last, key)
        if before is not None and after is not None:
            table.add_row(f"{name}, {span}", f"{before:{form}} -> {after:{form}}")
    evaluations = [line for line in run.read_evaluations() if line["pass_at_1"] is not None]
    if evaluations:
        before, after = evaluations[0], evaluations[-1]
        names = (f"held-out accuracy, {before['n_samples']} responses", f"held-out pass@{before['n_samples']}")
        for name, key in zip(names, ("pass_at_1", "pass_at_n"), strict=True):
            span = f"step {before['step']} -> {after['step']}"
            table.add_row(f"{name}, {span}", f"{before[key]:.3f} -> {after[key]:.3f}")
    table.add_section()
    for name, key in PHASES.items():
        seconds = _mean(metrics, key)
        if seconds is not None:
            table.add_row(f"seconds per step: {name}", f"{seconds:.2f}")
    added, whole = _mean(metrics, "r3/time/added_s"), _mean(metrics, "timing/step_total")
    if added is not None and whole:
        table.add_row("seconds per step: added by R³", f"{added:.3f} ({added / whole:.1%} of {whole:.2f})")
    return Group(table, _files(run))


def step_table(run: RunDirectory, *, step: int) -> Table:
    """One row per group of a step. Raises R3Error when the step is not there."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rollout in run.read_rollouts():
        if rollout["step"] == step:
            groups.setdefault((rollout["uid"], rollout["context"]), []).append(rollout)
    if not groups:
        raise R3Error(f"{run.path} has no rollouts of step {step}; its steps are {_steps(run)}")
    table = Table(title=f"step {step}: {len(groups)} groups", title_justify="left")
    for column in ("uid", "context", "rows", "correct", "wrong", "recalled", "ranked", "reward", "sum |advantage|"):
        table.add_column(column, justify="left" if column in ("uid", "context") else "right")
    for (uid, context), rows in groups.items():
        fresh = [row for row in rows if row["recalled_from"] is None]
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        table.add_row(
            uid,
            context,
            str(len(rows)),
            str(sum(row["verdict"] == "correct" for row in fresh)),
            str(sum(row["verdict"] == "wrong" for row in fresh)),
            str(len(rows) - len(fresh)),
            str(sum(bool(row.get("ranked")) for row in rows)),
            f"{sum(rewards) / len(rewards):.3f}" if rewards else "-",
            f"{sum(abs(row['advantage'] or 0.0) for row in rows):.3f}",
        )
    return table


def group_table(run: RunDirectory, *, uid: str, step: int | None) -> Table:
    """Every rollout of a problem, of one step or of all: verdict, reward, where it was recalled from, advantage, text.

    `uid` may be its beginning. Raises R3Error when there is no such problem or the beginning fits several.
    """
    found = [row for row in run.read_rollouts() if row["uid"].startswith(uid) and step in (None, row["step"])]
    uids = sorted({row["uid"] for row in found})
    if len(uids) != 1:
        where = f"{run.path}" if step is None else f"step {step} of {run.path}"
        raise R3Error(
            f"{where} has no rollouts of problem {uid}; `r3 show {run.path} --step N` lists a step's problems"
            if not uids
            else f"{uid} is the beginning of {len(uids)} problems in {where}: {', '.join(uids[:5])}; write more of it"
        )
    table = Table(title=f"problem {uids[0]}", title_justify="left")
    for column in ("step", "context", "verdict", "reward", "recalled from", "advantage", "tokens", "response"):
        left = column in ("context", "verdict", "response")
        table.add_column(column, justify="left" if left else "right", no_wrap=column != "response")
    for row in sorted(found, key=lambda row: row["step"]):
        ranked = " (ranked)" if row.get("ranked") else ""
        reason = f" ({row['reason']})" if row["verdict"] == "ungraded" else ""
        table.add_row(
            str(row["step"]),
            row["context"],
            row["verdict"] + reason,
            "-" if row["reward"] is None else f"{row['reward']:.3f}{ranked}",
            "" if row["recalled_from"] is None else f"step {row['recalled_from']}",
            "-" if row["advantage"] is None else f"{row['advantage']:+.3f}",
            f"{row['num_tokens']}{' (cut)' if row['truncated'] else ''}",
            Text(_start(row.get("text", ""))),  # what a model writes is no markup
        )
    return table


def _files(run: RunDirectory) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, path in (
        ("metrics", run.metrics),
        ("rollouts", run.rollouts),
        ("history", run.history),
        ("checkpoints", run.checkpoints),
        ("final model", run.final_model),
        ("log", run.log),
    ):
        if path.exists():
            table.add_row(name, Text(str(path), overflow="fold"))
    return table


def _values(metrics: Iterable[dict[str, Any]], key: str) -> list[float]:
    return [line[key] for line in metrics if line.get(key) is not None]


def _mean(metrics: list[dict[str, Any]], key: str) -> float | None:
    values = _values(metrics, key)
    return sum(values) / len(values) if values else None


def _total(metrics: list[dict[str, Any]], key: str) -> float | None:
    values = _values(metrics, key)
    return sum(values) if values else None


def _steps(run: RunDirectory) -> str:
    steps = [line["step"] for line in run.read_metrics()]
    return f"{min(steps)} to {max(steps)}" if steps else "none yet"


def _start(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_START else line[: TEXT_START - 3] + "..."
