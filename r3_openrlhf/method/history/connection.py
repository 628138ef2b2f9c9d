"""Opening the SQLite file: checks of it, and a sentence for each thing that can be wrong.

The journal is SQLite's rollback journal: it needs byte-range locks and a real fsync, which network
file systems have too. The WAL's index is in memory that only one machine's processes share.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from r3_openrlhf.method.errors import HistoryError, quoted
from r3_openrlhf.method.history import schema

MEMORY = ":memory:"
PAGE_BYTES = 4096
CACHE_KIB = 32_768  # SQLite's page cache: independent of the caller
# What damaged content makes of a computation on it; no file, however damaged, ends in a traceback.
CONTENT_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
BUSY_S = 300.0  # how long a commit waits for a reader, and a reader for a commit

_PROBLEMS = {
    sqlite3.SQLITE_FULL: "the disk is full; nothing of this was stored and nothing earlier is lost: free space and resume",
    sqlite3.SQLITE_IOERR: (
        "the disk refused ({error}); nothing of this was stored and nothing earlier is lost: check space, quota and the file "
        "system, then resume"
    ),
    **dict.fromkeys(
        (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
        "the file is damaged or is no history store ({error}); restore it from a copy",
    ),
    **dict.fromkeys(
        (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        f"it stayed locked for {BUSY_S:.0f} s; stop the tool that reads it",
    ),
    sqlite3.SQLITE_READONLY: "the file or its directory cannot be written; check their permissions",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check the path and its permissions",
}


@contextmanager
def sentences(path: str, doing: str) -> Iterator[None]:
    """Turn SQLite's errors into a HistoryError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        problem = _PROBLEMS.get(
            getattr(error, "sqlite_errorcode", -1) & 0xFF, "{error}"
        ).format(error=error)
        raise HistoryError(f"cannot {doing} {path}: {problem}") from error
    except UnicodeEncodeError as error:
        raise HistoryError(
            f"cannot {doing} {path}: the text {quoted(error.object)} is not valid Unicode"
        ) from error
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


def open_for_writing(path: str) -> sqlite3.Connection:
    """Open a connection to a store, created where there is none."""
    with _opened(path, "open", path) as connection:
        is_new = _is_new(connection, path)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power failure
        _tune(connection)
        if is_new:
            connection.execute("BEGIN IMMEDIATE")
            schema.create(connection)
            connection.execute("COMMIT")
        else:
            schema.add_experts(connection)
    return connection


@contextmanager
def _opened(
    path: str, doing: str, address: str, *, uri: bool = False
) -> Iterator[sqlite3.Connection]:
    """Open a connection that the block prepares; close it where that fails."""
    with sentences(path, doing):
        connection = sqlite3.connect(
            address, uri=uri, isolation_level=None, check_same_thread=False, timeout=BUSY_S
        )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise


@contextmanager
def reading(path: str | Path, doing: str = "read") -> Iterator[sqlite3.Connection]:
    """`open_for_reading`, closed after the block, with SQLite's errors as sentences."""
    connection = open_for_reading(str(path))
    try:
        with sentences(str(path), doing):
            yield connection
    finally:
        connection.close()


def open_for_reading(path: str) -> sqlite3.Connection:
    """Open a connection that cannot change the store, safe while a run writes to it.

    It is opened read-write where permissions allow, because only such a connection may undo what a
    killed writer left unfinished; `query_only` then forbids every change of content.
    """
    file = Path(path)
    if not file.is_file():
        raise HistoryError(f"there is no history store at {path}")
    mode = "rw" if os.access(file, os.W_OK) and os.access(file.parent, os.W_OK) else "ro"
    with _opened(
        path, "read", f"file:{quote(str(file.resolve()))}?mode={mode}", uri=True
    ) as connection:
        _tune(connection)
        if _is_new(connection, path):
            raise HistoryError(f"{path} is empty: no step was written to it")
        schema.add_experts(connection, for_reading=True)
        connection.execute("PRAGMA query_only = ON")
    return connection


def _tune(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA temp_store = MEMORY")
    # Debian compiles it on: zeros over freed pages, six times the cost of a roll-back.
    connection.execute("PRAGMA secure_delete = OFF")


def _is_new(connection: sqlite3.Connection, path: str) -> bool:
    """Tell whether the file is empty. Raises HistoryError if it is not a complete store."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version = schema.version_of(connection)
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0 and application == 0:
        return True
    if application != schema.APPLICATION_ID:
        raise HistoryError(f"{path} is an SQLite file of another program, not a history store")
    if version not in (schema.EARLIER_VERSION, schema.SCHEMA_VERSION):
        raise HistoryError(
            f"{path} has schema {version}, and this r3_openrlhf reads the schemas {schema.EARLIER_VERSION} and "
            f"{schema.SCHEMA_VERSION}: use the version that wrote it, or another run_dir"
        )
    if strange := schema.differences(connection):
        raise HistoryError(
            f"cannot open {path}: the file is damaged or is no history store ({strange[0][:80]}); restore it from a copy"
        )
    if path != MEMORY:
        with snapshot(connection):
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            missing = pages * PAGE_BYTES - Path(path).stat().st_size
        if missing > 0:
            raise HistoryError(
                f"cannot open {path}: the file is damaged or is no history store (it ends {missing} bytes too early); restore it "
                "from a copy"
            )
    return False
