"""The SQLite file of search_index.py: its tables, opening it, a step in and out, snippets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import zstandard

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.view.run_reader import Row
from r3_openrlhf.view.step_rows import IndexedStep

SCHEMA_VERSION = 5
ROW_BITS = 20  # id of a rollout: step * 2**20 + its place in the step's file
TEXT_ROWS = 64  # texts that are compressed together: more are smaller, and take longer to read one of
SNIPPET_TOKENS = 40
BUSY_S = 60.0
PAGE_S = 30.0  # for what one page asks
CACHE_KIB = 32_768  # SQLite's page cache, of each of two connections
OPENING, CLOSING = "\x02", "\x03"  # around a match; no indexed text holds them (step_rows.py)
TOKENIZER = "tokenize='unicode61 remove_diacritics 2'"
Text = tuple[str, str, str, str]  # head, tail, answer, tags of one rollout
# Of a rollout, named as in its step's file.
COLUMNS = ("context", "group", "group_replay", "group_ranking", "verdict", "reason", "truncated", "ranked", "recalled_from", "num_tokens", "reward",
           "outcome_reward", "advantage", "entropy_peak", "entropy_global", "prefix_tokens", "prefix_state", "cut_tokens", "cut_value", "cut_state")  # fmt: skip

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
-- `counts`: of the step, for the curves, as JSON; `problem`: why its file cannot be read
CREATE TABLE steps (step INTEGER PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, counts TEXT NOT NULL, problem TEXT);
CREATE TABLE problems (id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, problem TEXT NOT NULL DEFAULT '', reference TEXT NOT NULL DEFAULT '');
CREATE TABLE rollouts (id INTEGER PRIMARY KEY, problem INTEGER NOT NULL, {", ".join(f'"{name}"' for name in COLUMNS)});
CREATE INDEX rollouts_problem ON rollouts (problem, id);
-- The texts of up to TEXT_ROWS rollouts, from the row `id` on, compressed together
CREATE TABLE texts (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
-- It keeps no texts. `tags` are words for what a rollout is, so that a search need not look at rows that a filter leaves out.
CREATE VIRTUAL TABLE words USING fts5(head, tail, answer, tags, content='', columnsize=0, {TOKENIZER});
CREATE VIRTUAL TABLE problem_words USING fts5(
    problem, reference, content='problems', content_rowid='id', {TOKENIZER});
"""


def open_index(path: Path, run: Path) -> sqlite3.Connection:
    """A connection to the file, made anew where it is of another version or damaged: it is a cache. sqlite3.Error."""
    for attempt in (1, 2):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
        try:
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
                return connection
            with transaction(connection):
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version == 0:  # else another viewer was faster
                    for statement in TABLES.split(";\n"):
                        connection.execute(statement)
                    connection.execute("INSERT INTO meta VALUES ('run', ?)", (str(run),))
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            if version in (0, SCHEMA_VERSION):
                return connection
        except sqlite3.DatabaseError as error:
            damaged = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            if not damaged or attempt == 2:
                connection.close()
                raise
        connection.close()
        for end in ("", "-journal"):
            path.with_name(path.name + end).unlink(missing_ok=True)
    raise R3Error(f"the index {path} is of another version of this program; remove it")


@contextmanager
def sentences(path: Path) -> Iterator[None]:
    """SQLite's errors and the file system's as one sentence."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        advice = {
            sqlite3.SQLITE_FULL: "the disk is full; free space, or set XDG_CACHE_HOME to another disk",
            sqlite3.SQLITE_INTERRUPT: f"the answer took more than {PAGE_S:.0f} s; ask for less",
            sqlite3.SQLITE_BUSY: f"another viewer has held it for {BUSY_S:.0f} s; close that one",
            sqlite3.SQLITE_CANTOPEN: "it cannot be opened; set XDG_CACHE_HOME to a directory that you may write to",
            sqlite3.SQLITE_READONLY: "it cannot be written; set XDG_CACHE_HOME to a directory that you may write to",
            sqlite3.SQLITE_CORRUPT: "it is damaged; remove it, it will be built anew",
        }.get(code, str(error))
        raise R3Error(f"the index {path}: {advice}") from error
    except OSError as error:
        raise R3Error(
            f"the index {path}: {error.strerror}; set XDG_CACHE_HOME to a directory that you may write to"
        ) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; other viewers wait for its end."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def forget(connection: sqlite3.Connection, step: int) -> None:
    """Everything of one step. An index of words without its texts wants them back (sqlite.org/fts5.html#the_delete_command)."""
    span = ids_of(step, step)
    for first, data in connection.execute("SELECT id, data FROM texts WHERE id BETWEEN ? AND ?", span).fetchall():
        connection.executemany(
            "INSERT INTO words (words, rowid, head, tail, answer, tags) VALUES ('delete', ?, ?, ?, ?, ?)",
            _word_rows(first, _unpacked(data)),
        )
    for table in ("texts", "rollouts"):
        connection.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", span)
    connection.execute("DELETE FROM steps WHERE step = ?", (step,))


def insert(connection: sqlite3.Connection, step: int, content: IndexedStep) -> None:
    """One step that is not there. A recalled row has no text here: it is content where it was sampled."""
    first, _ = ids_of(step, step)
    connection.executemany(
        "INSERT INTO problems (uid) VALUES (?) ON CONFLICT (uid) DO NOTHING",
        [(uid,) for uid in sorted({row["uid"] for row in content.rows})],
    )
    values = ", ".join(f":{name}" for name in COLUMNS)
    connection.executemany(
        f"INSERT INTO rollouts VALUES (:id, (SELECT id FROM problems WHERE uid = :uid), {values})",
        (row | {"id": first + row["at"]} for row in content.rows),
    )
    texts = [
        (*text, _tags(row)) if row["recalled_from"] is None and any(text) else None
        for row, text in zip(content.rows, content.texts, strict=True)
    ]
    connection.executemany(
        "INSERT INTO words (rowid, head, tail, answer, tags) VALUES (?, ?, ?, ?, ?)", _word_rows(first, texts)
    )
    compressor = zstandard.ZstdCompressor(level=9)
    for begin in range(0, len(texts), TEXT_ROWS):
        data = compressor.compress(msgspec.msgpack.encode(texts[begin : begin + TEXT_ROWS]))
        connection.execute("INSERT INTO texts VALUES (?, ?)", (first + begin, data))
    counts = msgspec.json.encode(content.counts).decode()
    connection.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", (step, *content.identity, counts, content.problem))


def _tags(row: Row) -> str:
    truths = (name if row[name] else f"un{name}" for name in ("truncated", "ranked"))
    return " ".join((row["verdict"], row["context"], *truths))


def _word_rows(first: int, texts: Iterable[Text | None]) -> Iterator[tuple[int | str, ...]]:
    """Rows of `words` for the texts of the rollouts from `first` on."""
    return ((first + place, *text) for place, text in enumerate(texts) if text is not None)


def _unpacked(data: bytes) -> list[Text | None]:
    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data), type=list[Text | None])


def texts_of(connection: sqlite3.Connection, ids: Iterable[int]) -> dict[int, Text]:
    """Ids of those rollouts that have one here."""
    found = {}
    blocks: dict[int, list[Text | None]] = {}
    for identifier in ids:
        place = (identifier & ((1 << ROW_BITS) - 1)) % TEXT_ROWS
        begin = identifier - place
        if begin not in blocks:
            (data,) = connection.execute("SELECT data FROM texts WHERE id = ?", (begin,)).fetchone()
            blocks[begin] = _unpacked(data)
        text = blocks[begin][place]
        if text is not None:
            found[identifier] = text
    return found


def ids_of(first: int, last: int) -> tuple[int, int]:
    """Ids of the rollouts of some steps; both inclusive."""
    return first << ROW_BITS, ((last + 1) << ROW_BITS) - 1


def marked_snippets(expression: str, texts: Mapping[int, Text]) -> dict[int, str]:
    """Around the words of an expression, each between OPENING and CLOSING. From an index of these few texts, in memory: the
    large one would look up the words again for each of them."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE shown USING fts5(head, tail, answer, {TOKENIZER})")
        connection.executemany(
            "INSERT INTO shown (rowid, head, tail, answer) VALUES (?, ?, ?, ?)",
            ((identifier, *text[:3]) for identifier, text in texts.items()),
        )
        return dict(
            connection.execute(
                "SELECT rowid, snippet(shown, -1, ?, ?, '…', ?) FROM shown WHERE shown MATCH ?",
                (OPENING, CLOSING, SNIPPET_TOKENS, expression),
            )
        )


def unmarked(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Text with marks around the matches -> text, and where the matches were."""
    before, *pieces = marked.split(OPENING)
    text, matches = before, []
    for piece in pieces:
        match, _, behind = piece.partition(CLOSING)
        matches.append((len(text), len(text) + len(match)))
        text += match + behind
    return text, tuple(matches)
