"""`r3 history`: look into a run's history store, check it. Only `compact` changes it."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from r3_openrlhf.config.shell_completion import complete_runs
from r3_openrlhf.method.errors import HistoryError, R3Error
from r3_openrlhf.method.history.connection import CONTENT_ERRORS
from r3_openrlhf.method.history.numbers import attempts, statistics
from r3_openrlhf.method.history.store import HistoryStore
from r3_openrlhf.operations.store.verification import verify

STORE_NAME = "history.sqlite"


@click.group()
def history() -> None:
    """Inspect and check the history store of a run.

    RUN is a run directory, or the store itself. All but `compact` are safe while it runs.

    \b
    Example:
      r3 history stats runs/quickstart
      r3 history show runs/quickstart problem-17
    """


def _command(name: str) -> Callable[..., Any]:
    """A command on one store: RUN, --json, and errors as one sentence."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(run: str, as_json: bool, **options: Any) -> None:
            try:
                function(_store_of(run), as_json, **options)
            except R3Error as error:
                raise click.ClickException(str(error)) from error
            except CONTENT_ERRORS as error:  # read, but no table can be made
                raise click.ClickException(
                    f"{run} holds what cannot be there ({type(error).__name__}: {error}); `r3 history verify {run}` says where"
                ) from error

        run = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout instead of a table.")(
            run
        )
        return history.command(name)(click.argument("run", shell_complete=complete_runs)(run))

    return decorate


def _store_of(run: str) -> Path:
    path = Path(run)
    if path.is_dir():
        path = path / STORE_NAME
    if not path.exists():
        raise HistoryError(f"there is no history store at {path}")
    return path


@_command("stats")
def stats(store: Path, as_json: bool) -> None:
    """Steps, rollouts, problems, bytes of a run's history."""
    numbers = statistics(store)
    _print(numbers, as_json, _stats_lines)


@_command("show")
@click.argument("uid")
def show(store: Path, as_json: bool, uid: str) -> None:
    """A problem's attempts over time: verdict, reward, length, entropy.

    Rows with a step under `evicted` cannot be recalled any more; they wait until no checkpoint
    needs them."""
    _print(attempts(store, uid), as_json, _show_lines)


@_command("verify")
@click.pass_context
def verify_(context: click.Context, store: Path, as_json: bool) -> None:
    """Check pages, references, counters and stored arrays; exit code 1 if one is wrong."""
    result = verify(store, progress=_counter("checked"))
    _print({"ok": result.ok, **asdict(result)}, as_json, _verify_lines)
    if not result.ok:
        context.exit(1)


@_command("compact")
def compact(store: Path, as_json: bool) -> None:
    """Give free pages back to the file system. Refused while a run is writing."""
    before = store.stat().st_size
    with HistoryStore.open(store) as opened:
        opened.compact()
    after = store.stat().st_size
    numbers = {"bytes_before": before, "bytes_after": after}
    _print(numbers, as_json, lambda r: [f"{store}: {_size(before)} before, {_size(after)} now"])


def _print(result: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], list[str]]) -> None:
    click.echo(json.dumps(result, allow_nan=False) if as_json else "\n".join(lines(result)))


def _counter(what: str) -> Callable[..., None]:
    """Progress on stderr, on one line that the next output overwrites; for a person only."""

    def show_progress(done: int, total: int | None = None) -> None:
        if sys.stderr.isatty():
            click.echo(f"{what} {done}{f' of {total}' if total else ''} rollouts\r", nl=False, err=True)

    return show_progress


def _stats_lines(numbers: dict[str, Any]) -> list[str]:
    steps, rows, problems, sizes = (numbers[name] for name in ("steps", "rows", "problems", "bytes"))
    per_token = numbers["tokens"]["bytes_per_token"]
    lines = [
        f"store      {numbers['store']} (schema {numbers['schema']})",
        f"writer     {numbers['writer']['holder'] + ', ' + numbers['writer']['state'] if numbers['writer'] else 'none'}",
        f"steps      {steps['count']} ({steps['first']} to {steps['last']}), epoch {steps['epoch']}, "
        f"rollback floor {steps['rollback_floor']}",
        f"problems   {problems['graded']}: never correct {problems['never_correct']}, both {problems['both']}, "
        f"always correct {problems['always_correct']}",
        f"rows       {rows['recallable']} recallable, {rows['kept_for_rollback']} evicted but kept for a roll-back, "
        f"{rows['duplicates_merged']} duplicates merged, {rows['never_kept']} never kept",
        f"bytes      {_size(sizes['file'])} ({_size(sizes['free_inside'])} free inside), "
        f"{_size(sizes['counted_towards_cap'])} counted towards the cap"
        + (f", {per_token:.2f} per token" if per_token else ""),
        "sampled so far:",
    ]
    for context, verdicts in numbers["rollouts"].items():
        for verdict, tally in verdicts.items():
            mean = "" if tally["mean_reward"] is None else f"  mean reward {tally['mean_reward']:.4f}"
            lines.append(f"  {context:<10} {verdict:<8} {tally['count']:>9}{mean}")
    return lines


# head of a column -> the key of an attempt
_COLUMNS = {
    **{"step": "step", "weights": "policy_step", "context": "context", "verdict": "verdict", "reward": "reward"},
    **{"tokens": "num_tokens", "finish": "finish_reason", "peak": "entropy_peak", "global": "entropy_global"},
    **{"copies": "copies", "evicted": "evicted_at"},
}


def _show_lines(result: dict[str, Any]) -> list[str]:
    lines = [f"problem {result['uid']}"]
    lines += [
        f"  {tally['context']} {tally['verdict']}: {tally['count']} sampled, reward sum {tally['reward_sum']:.4f}"
        for tally in result["committed"]
    ]
    table = [list(_COLUMNS)]
    for row in result["attempts"]:
        finish = {"finish_reason": "truncated"} if row["truncated"] else {}
        table.append([_cell({**row, **finish}[key]) for key in _COLUMNS.values()])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return lines + ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _verify_lines(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{result['path']}: {'sound' if result['ok'] else 'NOT SOUND'}; {result['steps']} steps, {result['problems']} "
        f"problems, {result['counters']} counters, {result['rows']} rows"
    ]
    return lines + [f"  wrong: {line}" for line in result["findings"]] + [f"  skipped: {s}" for s in result["skipped"]]


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
