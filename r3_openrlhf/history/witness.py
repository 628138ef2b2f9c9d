"""What each checkpoint remembers of the store: a store that was lost, cut back or replaced since is noticed.

SQLite cannot tell that its newest transactions are gone when the -wal beside it is lost or damaged: what is left is a sound
store of an earlier step. So each checkpoint writes a line (step, rows, digest) beside the models, and a run that goes on,
and `r3 history verify`, compare the store with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history.connection import EmptyStore, open_for_reading, sentences, snapshot

FILE_NAME = "history.jsonl"  # in the directory of the checkpoints
_CHUNK = 4096  # rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecord:
    """The recallable rows of a store when `step` was its newest step."""

    step: int
    rows: int
    digest: str  # blake2b-128, hexadecimal, of what makes these rows and of the steps that brought them


def record_at(connection: sqlite3.Connection, step: int) -> StoreRecord:
    """From the rows themselves, also when later steps evicted some of them, down to the rollback floor."""
    state = hashlib.blake2b(digest_size=16)
    for line in connection.execute(
        "SELECT step, epoch, num_rollouts, num_ungraded, num_rows, last_problem, last_rollout FROM steps "
        "WHERE step <= ? ORDER BY step",
        (step,),
    ):
        state.update(repr(line).encode())
    rows = connection.execute(
        "SELECT id, problem, context, verdict, step, policy_step, reward, content FROM rollouts "
        "WHERE step <= ?1 AND (evicted_at IS NULL OR evicted_at > ?1) ORDER BY id",
        (step,),
    )
    count = 0
    while chunk := rows.fetchmany(_CHUNK):
        state.update(repr(chunk).encode())
        count += len(chunk)
    return StoreRecord(step=step, rows=count, digest=state.hexdigest())


def append_record(file: Path, record: StoreRecord) -> None:
    """On disk when this returns. Records of later steps, of checkpoints that a run did not go on from, are dropped."""
    kept = [earlier for earlier in read_records(file) if earlier.step < record.step]
    unfinished = file.with_name(f".{file.name}.new")
    with unfinished.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(asdict(line)) + "\n" for line in [*kept, record])
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)


def read_records(file: Path) -> list[StoreRecord]:
    """By step; none where there is no file. Raises HistoryError for one that is damaged."""
    if not file.is_file():
        return []
    records = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            values = json.loads(line)
            records.append(StoreRecord(step=values["step"], rows=values["rows"], digest=values["digest"]))
            if any(
                type(value) is not kind
                for value, kind in zip(asdict(records[-1]).values(), (int, int, str), strict=True)
            ):
                raise TypeError("a value has the wrong type")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HistoryError(
                f"{file}, line {number} is no record of the history store: {type(error).__name__}; restore it from a copy, "
                "or remove the file: the steps are compared then, not the rows"
            ) from error
    return sorted(records, key=lambda record: record.step)


def check_against(connection: sqlite3.Connection, records: list[StoreRecord], *, step: int) -> str | None:
    """Why the store is not the one with which the checkpoint of `step` was written; None: it is."""
    (last,) = connection.execute("SELECT max(step) FROM steps").fetchone()
    if last is None or last < step:
        return f"it ends with {'no step' if last is None else f'step {last}'}"
    written = next((record for record in records if record.step == step), None)
    if written is None:  # a checkpoint of before there were records
        return None
    found = record_at(connection, step)
    if found.rows != written.rows:
        return f"it has {found.rows} recallable rows of then, not {written.rows}"
    return None if found == written else "its rows of then are others"


def check_checkpoint(store: Path, checkpoints: Path, *, step: int) -> None:
    """Raises HistoryError when the store at `store` is not the one that the checkpoint of `step` was written with."""
    why: str | None = "it is not there"
    if store.is_file():
        try:
            connection = open_for_reading(str(store))
        except EmptyStore:
            raise_unless_written_with(store, "it is empty", step=step)
            raise
        try:
            with sentences(str(store), "compare"), snapshot(connection):
                why = check_against(connection, read_records(checkpoints / FILE_NAME), step=step)
        finally:
            connection.close()
    raise_unless_written_with(store, why, step=step)


def raise_unless_written_with(store: Path, why: str | None, *, step: int) -> None:
    """HistoryError with the reason `why`; nothing where there is none."""
    if why is not None:
        raise HistoryError(
            f"{store} is not the history of the checkpoint of step {step}: {why}; restore it from a copy together with its "
            "-wal, or go on without what it lost with checkpoint.accept_lost_history=true"
        )
