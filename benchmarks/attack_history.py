"""Losses and damage of a history store: is each noticed, and said in a sentence?

    python benchmarks/attack_history.py [--steps 30]

Builds a store with a checkpoint after every second step, and spoils copies of it. For each kind of damage: how many copies, how many
of them lost something, and of those how many `r3 history verify` and the check before a run goes on (the last one only for whole
files) let pass in silence. A traceback of `verify`, `stats`, `show` or `export` is counted too. The exit code is 1 when a loss was
silent or a command ended in a traceback.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1]))

from r3_openrlhf.cli import main as r3  # noqa: E402
from r3_openrlhf.errors import HistoryError  # noqa: E402
from r3_openrlhf.history import HistoryLimits, HistoryStore  # noqa: E402
from r3_openrlhf.history.column_rules import COLUMNS  # noqa: E402
from r3_openrlhf.history.witness import append_record, check_checkpoint  # noqa: E402
from r3_openrlhf.types import Context, Verdict  # noqa: E402
from tests.history.samples import dump, make_rollout  # noqa: E402
from tests.history.test_damage import WRONG  # noqa: E402

STORE, LOG, INDEX = "history.sqlite", "history.sqlite-wal", "history.sqlite-shm"
Spoil = Callable[[Path], None]


def build(run: Path, steps: int, *, journal: str) -> HistoryStore:
    (run / "checkpoints").mkdir(parents=True)
    store = HistoryStore.open(run / STORE, limits=HistoryLimits(max_per_problem_and_verdict=3), journal=journal)
    for step in range(1, steps + 1):
        rollouts = [
            make_rollout(uid, ids=[step, n], policy_step=step, entropy=(2.0, 1.0)) for uid in "pqr" for n in range(3)
        ]
        rollouts.append(
            make_rollout("p", ids=[step, 9], verdict=Verdict.CORRECT, context=Context.REFLECTION, prompt=[4])
        )
        store.commit_step(step, 1, rollouts, state={"step": step})
        if step % 2 == 0:
            append_record(run / "checkpoints" / "history.jsonl", store.record(step))
        if step == steps - 1:
            store.set_rollback_floor(steps // 2)
    return store


def lose(*names: str) -> Spoil:
    def spoil(run: Path) -> None:
        for name in names:
            (run / name).unlink(missing_ok=True)

    return spoil


def overwrite(name: str, offset: int, content: bytes) -> Spoil:
    def spoil(run: Path) -> None:
        (run / INDEX).unlink(missing_ok=True)
        with (run / name).open("r+b") as file:
            file.seek(offset)
            file.write(content)

    return spoil


def truncate(name: str, size: int) -> Spoil:
    def spoil(run: Path) -> None:
        (run / INDEX).unlink(missing_ok=True)
        with (run / name).open("r+b") as file:
            file.truncate(size)

    return spoil


def change(sql: str, table: str, parameters: tuple = ()) -> Spoil:
    """sql: with {last}, the condition that names the last row of the table by its key."""

    def spoil(run: Path) -> None:
        connection = sqlite3.connect(run / STORE)
        try:
            keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
            *_, last = connection.execute(f"SELECT {', '.join(keys)} FROM {table}")
            condition = " AND ".join(f"{key} IS ?" for key in keys)
            with connection:
                statement = sql.format(last=condition)
                connection.execute(statement, (*parameters, *last) if "{last}" in sql else ())
        except sqlite3.IntegrityError:  # SQLite itself refuses it
            pass
        finally:
            connection.close()

    return spoil


def kinds(run: Path) -> Iterator[tuple[str, list[Spoil]]]:
    log = (run / LOG).stat().st_size
    yield "the -wal is lost", [lose(LOG, INDEX)]
    yield "the store is deleted", [lose(STORE, LOG, INDEX), lose(STORE), lose(STORE, INDEX)]
    yield "the -wal is overwritten", [overwrite(LOG, at, b"\xff" * 16) for at in range(0, log, log // 30)]
    yield "the -wal is cut off", [truncate(LOG, at) for at in range(0, log, log // 30)]
    yield "the store is cut off", [truncate(STORE, size) for size in (0, 100, 4096, 12288)]
    tables = [table for table in COLUMNS if table != "counters_before"]  # which only a roll-back reads
    connection = sqlite3.connect(run / STORE)
    types = {table: connection.execute(f"PRAGMA table_info({table})").fetchall() for table in tables}
    connection.close()
    replaced = [(table, row[1], value) for table in tables for row in types[table] for value in WRONG[row[2]]]
    yield (
        "a value of another type",
        [change(f"UPDATE {table} SET {name} = ? WHERE {{last}}", table, (value,)) for table, name, value in replaced],
    )
    yield "a row is lost", [change(f"DELETE FROM {table} WHERE {{last}}", table) for table in tables]
    yield "a table is lost", [change(f"DROP TABLE {table}", table) for table in COLUMNS]


def content_of(run: Path) -> object:
    """What is recallable in a copy of the run; None when it cannot be read at all."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run"
        shutil.copytree(run, copy)
        try:
            return dump(copy / STORE)
        except (sqlite3.Error, OSError):
            return None


def tracebacks(run: Path) -> int:
    output = str(run / "export.jsonl")
    commands = [["stats"], ["show", "p"], ["export", "--format", "jsonl", "--output", output]]
    found = 0
    for name, *arguments in commands:
        error = CliRunner().invoke(r3, ["history", name, str(run), *arguments]).exception
        found += error is not None and not isinstance(error, SystemExit)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    silent = 0
    print(
        f"{'damage':26} {'copies':>6} {'lost something':>14} {'verify silent':>13} {'resume silent':>13} {'tracebacks':>10}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        store = build(run, options.steps, journal="wal")
        try:
            whole = content_of(run)
            for name, spoils in kinds(run):
                lost, verify_silent, resume_silent, broken = 0, 0, 0, 0
                for spoil in spoils:
                    copy = Path(scratch) / "copy"
                    shutil.copytree(run, copy)
                    spoil(copy)
                    is_lost = content_of(copy) != whole
                    lost += is_lost
                    result = CliRunner().invoke(r3, ["history", "verify", str(copy)])
                    broken += result.exception is not None and not isinstance(result.exception, SystemExit)
                    verify_silent += is_lost and result.exit_code == 0
                    try:
                        check_checkpoint(copy / STORE, copy / "checkpoints", step=options.steps - options.steps % 2)
                    except HistoryError:
                        pass
                    else:
                        resume_silent += is_lost and name.startswith("the")
                    broken += tracebacks(copy)
                    shutil.rmtree(copy)
                print(
                    f"{name:26} {len(spoils):6} {lost:14} {verify_silent:13} {resume_silent:13} {broken:10}",
                    flush=True,
                )
                silent += verify_silent + resume_silent + broken
        finally:
            store.close()
    sys.exit(1 if silent else 0)


if __name__ == "__main__":
    main()
