"""The tables of the store, which schema.sql writes.

A row is written once. What changes later (evicted, or replaced by a newer sample of the same
response) is the single column `evicted_at`, so that undoing everything after step s means: delete
rows of later steps, clear later `evicted_at`, put back the counters that `counters_before` kept.
Rows are removed for good only when the rollback floor has passed their `evicted_at`.

SQLite checks types and ranges at each write, and in `PRAGMA integrity_check`; references only in
`PRAGMA foreign_key_check`, because a step's rows are written before the step.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

APPLICATION_ID = 0x52334853  # "R3HS", in the file's header
SCHEMA_VERSION = 10
EARLIER_VERSION = 9  # without the table `experts`, which a writer adds
_TABLES = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
_EXPERTS = _TABLES[_TABLES.index("CREATE TABLE experts (") :].split(";\n")[0]


def differences(connection: sqlite3.Connection) -> list[str]:
    """Name each table and index that is not a store's of its version, and what a store must not have:
    views, triggers and virtual tables run an author's code."""
    query = "SELECT type || ' ' || name, sql FROM sqlite_schema"
    with closing(sqlite3.connect(":memory:")) as fresh:
        create(fresh)
        expected, present = dict(fresh.execute(query)), dict(connection.execute(query))
    if version_of(connection) == EARLIER_VERSION:
        del expected["table experts"]
    changed = sorted({name for name, _ in expected.items() ^ present.items()}, reverse=True)
    return [
        f"the {name} is {'of another kind' if name in present else 'missing'}"
        for name in changed
    ]


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version that the file's header names; 0 in an empty file."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def add_experts(connection: sqlite3.Connection, *, for_reading: bool = False) -> None:
    """Add the table to a store of EARLIER_VERSION. for_reading: an empty one that no file has."""
    if version_of(connection) != EARLIER_VERSION:
        return
    if for_reading:
        connection.execute(_EXPERTS.replace("TABLE", "TEMP TABLE", 1))
        return
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_EXPERTS)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def create(connection: sqlite3.Connection) -> None:
    """Write the tables into an empty file, inside the transaction that is open."""
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
