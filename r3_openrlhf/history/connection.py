"""Opening the SQLite file: journal, checks of what it is, and one sentence for each thing that can be wrong with it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history import filesystem, schema

MEMORY = ":memory:"
PAGE_BYTES = 4096
CACHE_KIB = 32_768  # SQLite's page cache: the only part of the store's memory that does not depend on the caller
# What damaged content makes of a computation on it; no file, however damaged, ends in a traceback.
CONTENT_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
JOURNAL_BYTES = 64_000_000  # a WAL that grew beyond this in one large commit is cut back afterwards
BUSY_S = 300.0  # how long a commit waits for a reader, and a reader for a commit


@contextmanager
def sentences(path: str, doing: str) -> Iterator[None]:
    """Turns SQLite's errors into a HistoryError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            problem = "the disk is full; nothing of this was stored and nothing earlier is lost: free space and resume"
        elif code == sqlite3.SQLITE_IOERR:
            problem = (
                f"the disk refused ({error}); nothing of this was stored and nothing earlier is lost: "
                "check space, quota and the file system, then resume"
            )
        elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            problem = f"the file is damaged or is no history store ({error}); restore it from a copy"
        elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            problem = f"it stayed locked for {BUSY_S:.0f} s; stop the tool that reads it"
        elif code == sqlite3.SQLITE_READONLY:
            problem = "the file or its directory cannot be written; check their permissions"
        elif code == sqlite3.SQLITE_CANTOPEN:
            problem = "the file cannot be opened; check the path and its permissions"
        else:
            problem = str(error)
        raise HistoryError(f"cannot {doing} {path}: {problem}") from error
    except UnicodeEncodeError as error:
        raise HistoryError(f"cannot {doing} {path}: the text {error.object!r} is not valid Unicode") from error
    except CONTENT_ERRORS as error:
        raise HistoryError(
            f"cannot {doing} {path}: it holds what cannot be there ({type(error).__name__}: {error}); `r3 history verify` "
            "says where"
        ) from error


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything read inside is from one state of the store."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # SQLite may have ended it with an error of its own
            connection.execute("COMMIT")


def open_for_writing(path: str, *, journal: str) -> sqlite3.Connection:
    """A connection to a store of the current schema, created or migrated where needed."""
    if path != MEMORY:
        journal = filesystem.choose_journal(Path(path)) if journal == "auto" else journal
    with sentences(path, "open"):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
        try:
            version = _check_identity(connection, path)
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            if path != MEMORY:
                connection.execute(f"PRAGMA journal_mode = {journal}")
            connection.execute("PRAGMA synchronous = FULL")  # a committed step survives a power failure
            _tune(connection)
            if version != schema.SCHEMA_VERSION:
                connection.execute("BEGIN IMMEDIATE")
                if version == 0:
                    schema.create(connection)
                else:
                    schema.migrate(connection, version=version, to=schema.SCHEMA_VERSION)
                connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
    return connection


class EmptyStore(HistoryError):
    """There is a file, and no store in it."""


def open_for_reading(path: str, *, untouched: bool = False) -> sqlite3.Connection:
    """A connection that cannot change the store, safe while a run writes to it.

    It is opened read-write where permissions allow, because only such a connection may finish what a killed writer
    left (roll back its journal); `query_only` then forbids every change of content. With `untouched` it never is, and no
    file appears beside the store: for whoever only looks.
    """
    file = Path(path)
    if not file.is_file():
        raise HistoryError(f"there is no history store at {path}")
    if file.stat().st_size == 0:
        raise EmptyStore(f"{path} is empty: no step was written to it, or the -wal beside it was lost")
    writable = not untouched and os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    options = "mode=rw" if writable else "mode=ro"
    if not writable and _is_closed_wal(file):
        options += "&immutable=1"  # else SQLite would have to create the shared memory of the WAL
    with sentences(path, "read"):
        connection = sqlite3.connect(
            f"file:{quote(str(file.resolve()))}?{options}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_S,
        )
        try:
            connection.execute("PRAGMA query_only = ON")
            _tune(connection)
            version = _check_identity(connection, path)
            if version == 0:
                raise EmptyStore(f"{path} is empty: no step was written to it, or the -wal beside it was lost")
            if version not in schema.READABLE:
                raise HistoryError(
                    f"{path} has schema {version}, this version reads {schema.SCHEMA_VERSION}; resuming its run migrates it"
                )
        except BaseException:
            connection.close()
            raise
    return connection


def _is_closed_wal(file: Path) -> bool:
    """A WAL-mode file (bytes 18 and 19 of the header are 2) without a -wal beside it: nobody has it open."""
    with file.open("rb") as stream:
        header = stream.read(20)
    return header[18:20] == b"\2\2" and not file.with_name(file.name + "-wal").exists()


def _tune(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
    # Debian compiles it on: freed pages would be overwritten with zeros, six times the cost of a roll-back.
    connection.execute("PRAGMA secure_delete = OFF")


def _check_identity(connection: sqlite3.Connection, path: str) -> int:
    """The file's schema version; 0 for a new file. Raises HistoryError for what is not a store of ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0 and application == 0:
        return 0
    if application != schema.APPLICATION_ID:
        raise HistoryError(f"{path} is an SQLite file of another program, not a history store")
    if version > schema.SCHEMA_VERSION:
        raise HistoryError(
            f"{path} has schema {version}, written by a newer r3_openrlhf; this one knows up to {schema.SCHEMA_VERSION}: "
            "upgrade it"
        )
    if path != MEMORY:
        _check_length(connection, path)
    return version


def _check_length(connection: sqlite3.Connection, path: str) -> None:
    """SQLite itself notices a file that lacks whole pages, but reads the rest of a cut page as zeros."""
    log = Path(path + "-wal")
    with snapshot(connection):
        pages, page_bytes = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
        size = Path(path).stat().st_size
        in_log = log.exists() and log.stat().st_size > 0  # pages that are not in the file yet
    if size < pages * page_bytes and not in_log:
        raise HistoryError(
            f"cannot open {path}: the file is damaged or is no history store (it ends {pages * page_bytes - size} bytes "
            "too early); restore it from a copy"
        )
