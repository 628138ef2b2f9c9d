"""A checkpoint's record of the store: a lost, cut or replaced store is noticed.

SQLite cannot tell that a store is an older copy or another run's. So each checkpoint writes (step,
rows, digest) with the models; a run that continues, and `r3 history verify`, compare them.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import msgspec

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.connection import EmptyStore, reading, snapshot

FILE_NAME = "history.jsonl"  # in the directory of the checkpoints
_CHUNK = 4096  # rows


class StoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The recallable rows of a store when `step` was its newest step."""

    step: int
    rows: int
    digest: str  # blake2b-128 of these rows and their steps


def record_at(connection: sqlite3.Connection, step: int) -> StoreRecord:
    """From the rows, also when later steps evicted some, down to the rollback floor."""
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


def record_of(store: Path, step: int) -> StoreRecord:
    """Describe the store for a checkpoint of `step`. HistoryError: it cannot be read."""
    with reading(store, "record") as connection, snapshot(connection):
        return record_at(connection, step)


def append_record(file: Path, record: StoreRecord) -> None:
    """Write, durably. Records of later steps, which a run did not continue from, are dropped."""
    kept = [earlier for earlier in read_records(file) if earlier.step < record.step]
    unfinished = file.with_name(f".{file.name}.new")
    with unfinished.open("wb") as stream:
        stream.writelines(msgspec.json.encode(line) + b"\n" for line in [*kept, record])
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)


def read_records(file: Path) -> list[StoreRecord]:
    """By step; none where there is no file. Raises HistoryError for one that is damaged."""
    records = []
    for number, line in enumerate(file.read_bytes().splitlines() if file.is_file() else [], start=1):
        try:
            records.append(msgspec.json.decode(line, type=StoreRecord))
        except (ValueError, RecursionError) as error:
            raise HistoryError(
                f"{file}, line {number} is no record of the history store: {error}; restore it from a copy, or remove the "
                "file: the steps are compared then, not the rows"
            ) from error
    return sorted(records, key=lambda record: record.step)


def check_against(connection: sqlite3.Connection, records: list[StoreRecord], *, step: int) -> str | None:
    """Why the store is not the one with which the checkpoint of `step` was written; None: it is."""
    (last,) = connection.execute("SELECT max(step) FROM steps").fetchone()
    if last is None or last < step:
        return f"it ends with {'no step' if last is None else f'step {last}'}"
    written = next((record for record in records if record.step == step), None)
    if written is None:  # the file was removed
        return None
    found = record_at(connection, step)
    if found.rows != written.rows:
        return f"it has {found.rows} recallable rows of then, not {written.rows}"
    return None if found == written else "its rows of then are others"


def check_checkpoint(store: Path, checkpoints: Path, *, step: int, record: StoreRecord | None = None) -> None:
    """Raises HistoryError when the store at `store` is not the one that the checkpoint of `step`
    was written with. record: what that checkpoint itself says; it counts for more than the file."""
    why: str | None = "it is not there"
    if store.is_file():
        try:
            with reading(store, "compare") as connection, snapshot(connection):
                records = [record] if record is not None else read_records(checkpoints / FILE_NAME)
                why = check_against(connection, records, step=step)
        except EmptyStore:
            why = "it is empty"
    if why is not None:
        raise HistoryError(
            f"{store} is not the history of the checkpoint of step {step}: {why}; restore it from a copy, or continue without "
            "what it lost with checkpoint.force=true"
        )
