"""Check the store's invariants. SQLite checks pages, types, ranges and references; here is what
only we can know: that counters agree with the rows, and that every array decodes."""

import sqlite3
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from r3_openrlhf.method.errors import HistoryError, R3Error
from r3_openrlhf.method.history import recall
from r3_openrlhf.method.history.codec import Codec
from r3_openrlhf.method.history.connection import CONTENT_ERRORS, reading, snapshot
from r3_openrlhf.method.history.drafts import CONTEXTS, VERDICTS
from r3_openrlhf.method.history.lease import last_holder
from r3_openrlhf.method.history.store import lock_of
from r3_openrlhf.method.history.usage import Usage
from r3_openrlhf.method.history.witness import check_against
from r3_openrlhf.runs import checkpoint_record

_RULES = tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))[
    "rule"
]
_MAX_FINDINGS = 20  # of one kind: one lost page can damage thousands of rows


def _in_words(column: str, names: Mapping[int, Any]) -> str:
    cases = " ".join(f"WHEN {code} THEN '{name.value}'" for code, name in names.items())
    return f"CASE {column} {cases} ELSE {column} END"


class Verification(NamedTuple):
    """Findings, and the checks that could not run, which are none."""

    findings: list[str]
    skipped: list[str]


def verify(path: Path) -> Verification:
    """Have SQLite check the file, compare counters with rows, and decode every array.

    Safe while a run writes: what is compared is from one state of the store. SQLite's check of the
    whole file would keep the run from committing for as long as it takes, so it is left out then.
    Raises HistoryError when the file cannot be read at all, or has other tables."""
    result = Verification([], [])
    with reading(path, "verify") as connection:
        holder, lives = last_holder(lock_of(path))
        if lives:
            result.skipped.append(
                f"the file's pages, types and ranges, because {holder} may be writing; run it again when the run is over"
            )
        for check in (_pages, _rules, _usage, _checkpoint, _arrays)[lives:]:
            try:  # what stops one check on damaged content is a finding, and the others still run
                result.findings.extend(check(connection, path))
            except (
                sqlite3.OperationalError,
                sqlite3.DataError,
                R3Error,
                *CONTENT_ERRORS,
            ) as error:
                name = check.__name__.removeprefix("_")
                result.findings.append(
                    f"the check of {name} could not be finished: {type(error).__name__}: {error}"
                )
    return result


def _pages(connection: sqlite3.Connection, _path: Path) -> list[str]:
    pages = connection.execute(f"PRAGMA integrity_check({_MAX_FINDINGS})")
    return [finding for (finding,) in pages if finding != "ok"]


def _rules(connection: sqlite3.Connection, _path: Path) -> list[str]:
    words = {
        "context": _in_words("context", CONTEXTS),
        "verdict": _in_words("verdict", VERDICTS),
    }
    return [
        rule["sentence"].format(*row)
        for rule in _RULES
        for row in connection.execute(rule["sql"].format(**words)).fetchmany(_MAX_FINDINGS)
    ]


def _usage(connection: sqlite3.Connection, _path: Path) -> list[str]:
    with snapshot(connection):
        stored, recounted = Usage.load(connection), Usage.recount(connection)
    return (
        []
        if stored == recounted
        else [f"the byte count is {stored}, the rows give {recounted}"]
    )


def _checkpoint(connection: sqlite3.Connection, path: Path) -> list[str]:
    """Compare with the newest checkpoint, if it is not below the floor."""
    folder = checkpoint_record.newest(path.parent / "checkpoints")
    record = checkpoint_record.read(folder) if folder is not None else None
    if record is None or record.history is None:
        return []
    with snapshot(connection):
        floor = connection.execute("SELECT value FROM meta WHERE key = 'floor'").fetchone() or (
            -1,
        )
        why = (
            None
            if record.step < floor[0]
            else check_against(connection, record.history, step=record.step)
        )
    return (
        []
        if why is None
        else [f"it is not the history of the checkpoint of step {record.step}: {why}"]
    )


def _arrays(connection: sqlite3.Connection, _path: Path) -> list[str]:
    """Decompress every row: a writing run waits for one at most. zstd checks each array's sum."""
    codec, findings = Codec(), []
    for (row,) in connection.execute("SELECT id FROM rollouts ORDER BY id").fetchall():
        try:
            if not recall.read(connection, codec, [row]):
                findings.append(f"row {row} lacks its prompt, its response or its log-probs")
        except (HistoryError, MemoryError, *CONTENT_ERRORS) as error:
            findings.append(f"row {row} cannot be read: {error}")
    return findings[:_MAX_FINDINGS]
