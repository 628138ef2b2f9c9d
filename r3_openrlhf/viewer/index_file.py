"""The SQLite file behind search_index.py: its tables, opening it, a step in and out, texts and snippets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import zstandard

from r3_openrlhf.errors import R3Error
from r3_openrlhf.types import Context, Verdict
from r3_openrlhf.viewer import step_rows
from r3_openrlhf.viewer.step_rows import IndexedStep

SCHEMA_VERSION = 3
ROW_BITS = 20  # id of a rollout: step * 2**20 + its place in the step's file
TEXT_ROWS = 64  # texts that are compressed together: more are smaller, and take longer to read one of
SNIPPET_TOKENS = 40
BUSY_S = 60.0
CACHE_KIB = 32_768  # SQLite's page cache, of each of two connections
VERDICTS, CONTEXTS = list(Verdict), list(Context)
OPENING, CLOSING = "\x02", "\x03"  # around a match; no indexed text holds them (step_rows.py)
TOKENIZER = "tokenize='unicode61 remove_diacritics 2'"
Text = tuple[str, str, str, str]  # head, tail, answer, tags of one rollout

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE steps (step INTEGER PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, rollouts INTEGER NOT NULL, problem TEXT);
CREATE TABLE problems (id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, problem TEXT NOT NULL DEFAULT '', reference TEXT NOT NULL DEFAULT '');
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, problem INTEGER NOT NULL, context INTEGER NOT NULL, verdict INTEGER NOT NULL, grp INTEGER, reason TEXT,
    truncated INTEGER NOT NULL, ranked INTEGER NOT NULL, recalled_from INTEGER, num_tokens INTEGER NOT NULL,
    reward REAL, outcome_reward REAL, advantage REAL, entropy_peak REAL, entropy_global REAL);
CREATE INDEX rollouts_problem ON rollouts (problem, id);
CREATE TABLE groups (
    step INTEGER NOT NULL, place INTEGER NOT NULL, grp INTEGER, problem INTEGER NOT NULL, context INTEGER NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in step_rows.GROUP_COUNTS)},
    oldest_lag INTEGER, mean_tokens REAL, mean_reward REAL, abs_advantage REAL NOT NULL,
    PRIMARY KEY (step, place)) WITHOUT ROWID;
-- What was counted of a step for the curves, as JSON (indexing.py)
CREATE TABLE counts (step INTEGER PRIMARY KEY, data TEXT NOT NULL);
-- The texts of up to TEXT_ROWS rollouts, from the row `id` on, compressed together
CREATE TABLE texts (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
-- It keeps no texts: those are compressed in `texts`
CREATE VIRTUAL TABLE words USING fts5(head, tail, answer, tags, content='', {TOKENIZER});
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
    span = _span(step)
    for identifier, data in connection.execute("SELECT id, data FROM texts WHERE id BETWEEN ? AND ?", span).fetchall():
        connection.executemany(
            "INSERT INTO words (words, rowid, head, tail, answer, tags) VALUES ('delete', ?, ?, ?, ?, ?)",
            ((identifier + place, *text) for place, text in enumerate(_unpacked(data)) if text is not None),
        )
    for table in ("texts", "rollouts"):
        connection.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", span)
    for table in ("groups", "steps", "counts"):
        connection.execute(f"DELETE FROM {table} WHERE step = ?", (step,))


def texts_of(connection: sqlite3.Connection, ids: Iterable[int]) -> dict[int, Text]:
    """Of those rollouts that have one here."""
    blocks: dict[int, list[Text | None]] = {}
    found = {}
    for identifier in ids:
        place = identifier & ((1 << ROW_BITS) - 1)
        begin = identifier - place % TEXT_ROWS
        if begin not in blocks:
            row = connection.execute("SELECT data FROM texts WHERE id = ?", (begin,)).fetchone()
            blocks[begin] = [] if row is None else _unpacked(row[0])
        block = blocks[begin]
        text = block[identifier - begin] if identifier - begin < len(block) else None
        if text is not None:
            found[identifier] = text
    return found


def marked_snippets(expression: str, texts: Mapping[int, Text]) -> dict[int, str]:
    """Around the words of an expression, each between OPENING and CLOSING. From an index of these few texts, in memory."""
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


def _unpacked(data: bytes) -> list[Text | None]:
    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data), type=list[Text | None])


def _span(step: int) -> tuple[int, int]:
    return step << ROW_BITS, ((step + 1) << ROW_BITS) - 1


def insert(connection: sqlite3.Connection, step: int, found: IndexedStep) -> None:
    """One step that is not there."""
    first = step << ROW_BITS
    uids = sorted({rollout.uid for rollout in found.rollouts})
    connection.executemany(
        "INSERT INTO problems (uid) VALUES (?) ON CONFLICT (uid) DO NOTHING", [(uid,) for uid in uids]
    )
    numbers: dict[str, int] = {}
    for uid in uids:
        (numbers[uid],) = connection.execute("SELECT id FROM problems WHERE uid = ?", (uid,)).fetchone()
    connection.executemany(
        f"INSERT INTO rollouts VALUES ({', '.join('?' * 15)})",
        (
            (
                first + place, numbers[one.uid], CONTEXTS.index(Context(one.context)), VERDICTS.index(Verdict(one.verdict)),
                one.group, one.reason, one.truncated, one.ranked, one.recalled_from, one.num_tokens, one.reward,
                one.outcome_reward, one.advantage, one.entropy_peak, one.entropy_global,
            )
            for place, one in enumerate(found.rollouts)
        ),
    )  # fmt: skip
    texts = [
        (one.head, one.tail, one.answer, f"{one.tags} p{numbers[one.uid]}") if one.has_text else None
        for one in found.rollouts
    ]
    compressor = zstandard.ZstdCompressor(level=9)
    connection.executemany(
        "INSERT INTO texts VALUES (?, ?)",
        (
            (first + begin, compressor.compress(msgspec.msgpack.encode(texts[begin : begin + TEXT_ROWS])))
            for begin in range(0, len(texts), TEXT_ROWS)
        ),
    )
    connection.executemany(
        "INSERT INTO words (rowid, head, tail, answer, tags) VALUES (?, ?, ?, ?, ?)",
        ((first + place, *text) for place, text in enumerate(texts) if text is not None),
    )
    connection.executemany(
        f"INSERT INTO groups VALUES ({', '.join('?' * (9 + len(step_rows.GROUP_COUNTS)))})",
        (
            (step, place, group.group, numbers[group.uid], CONTEXTS.index(Context(group.context)), *group.counts,
             group.oldest_lag, group.mean_tokens, group.mean_reward, group.abs_advantage)
            for place, group in enumerate(found.groups)
        ),
    )  # fmt: skip
    connection.execute(
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?)", (step, *found.identity, len(found.rollouts), found.problem)
    )


def unmarked(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Text with marks around the matches -> text, and where the matches were."""
    text, matches, begin = [], [], 0
    length = 0
    for part in marked.replace(OPENING, f"\0{OPENING}\0").replace(CLOSING, f"\0{CLOSING}\0").split("\0"):
        if part == OPENING:
            begin = length
        elif part == CLOSING:
            matches.append((begin, length))
        else:
            text.append(part)
            length += len(part)
    return "".join(text), tuple(matches)
