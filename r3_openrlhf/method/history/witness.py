"""A checkpoint's record of the store: a lost, cut or replaced store is noticed.

SQLite cannot tell that a store is an older copy or another run's. So each checkpoint keeps (step,
rows, digest) in its own record; a run that continues, and `r3 history verify`, compare them.
"""

import hashlib
import sqlite3
from pathlib import Path

import msgspec

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.connection import reading, snapshot


class StoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The recallable rows of a store when `step` was its newest step."""

    step: int
    rows: int
    digest: str  # blake2b-128 of these rows and their steps


def record_at(connection: sqlite3.Connection, step: int) -> StoreRecord:
    """Compute a step's record from the rows, also after later evictions, down to the rollback floor."""
    state = hashlib.blake2b(digest_size=16)
    for line in connection.execute(
        "SELECT step, epoch, num_rollouts, num_ungraded, num_rows, last_problem, last_rollout FROM steps "
        "WHERE step <= ? ORDER BY step",
        (step,),
    ):
        state.update(repr(line).encode())
    rows = connection.execute(
        "SELECT id, problem, context, verdict, step, policy_step, reward, content FROM rollouts "
        "WHERE step <= :step AND (evicted_at IS NULL OR evicted_at > :step) ORDER BY id",
        {"step": step},
    )
    count = 0
    for row in rows:
        state.update(repr(row).encode())
        count += 1
    return StoreRecord(step=step, rows=count, digest=state.hexdigest())


def record_of(store: Path, step: int) -> StoreRecord:
    """Describe the store for a checkpoint of `step`. HistoryError: it cannot be read."""
    with reading(store, "record") as connection, snapshot(connection):
        return record_at(connection, step)


def check_against(
    connection: sqlite3.Connection, written: StoreRecord | None, *, step: int
) -> str | None:
    """Say why the store is not the one with which the checkpoint of `step` was written; None: it is.
    written: what that checkpoint says; None where its save was cut off."""
    (last,) = connection.execute("SELECT max(step) FROM steps").fetchone()
    if last is None or last < step:
        return f"it ends with {'no step' if last is None else f'step {last}'}"
    if written is None:
        return None
    found = record_at(connection, step)
    if found.rows != written.rows:
        return f"it has {found.rows} recallable rows of then, not {written.rows}"
    return None if found == written else "its rows of then are others"


def check_checkpoint(store: Path, written: StoreRecord | None, *, step: int) -> None:
    """Raise HistoryError when the store at `store` is not the one that the checkpoint of `step`
    was written with (`check_against`)."""
    try:
        with reading(store, "compare") as connection, snapshot(connection):
            why = check_against(connection, written, step=step)
    except HistoryError as error:
        why = str(error)
    if why is not None:
        raise HistoryError(
            f"{store} is not the history of the checkpoint of step {step}: {why}; restore it from a copy, or continue without "
            "what it lost with checkpoint.force=true"
        )
