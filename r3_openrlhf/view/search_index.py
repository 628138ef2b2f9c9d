"""An index over the rollouts of a run, in the user's cache, that grows with the run: search, the life of a problem, counts.

One SQLite file per run directory, under $XDG_CACHE_HOME/r3_openrlhf/viewer; the run directory itself is only read. Which steps
are in it is remembered by the size and the time of each step's file, so an update reads new files alone, and a step that a
resumed run wrote again is taken out and read again. A step goes in whole or not at all; a killed update loses the step that
it was at. Several viewers may update and search at once. index_file.py has its tables.

What is searched: of each response that a step sampled its first HEAD_CHARS and its last TAIL_CHARS characters, and the
extracted answer; of each problem its text and its references (`problems`). The middle of a long response is not searched: the
whole text of 2 million responses would make the index larger than the run. A recalled row has no text here: it is found at the
step that sampled it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from r3_openrlhf.method.errors import R3Error
from r3_openrlhf.method.types import Context, Verdict, Word
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.view import step_rows
from r3_openrlhf.view.index_file import (
    CLOSING,
    COLUMNS,
    OPENING,
    PAGE_S,
    ROW_BITS,
    SNIPPET_TOKENS,
    forget,
    ids_of,
    insert,
    marked_snippets,
    open_index,
    sentences,
    texts_of,
    transaction,
    unmarked,
)
from r3_openrlhf.view.run_reader import Row
from r3_openrlhf.view.search_query import expression_of, terms_of
from r3_openrlhf.view.step_rows import HEAD_CHARS, TAIL_CHARS

MAX_COUNTED = 10_000  # of a search's hits; beyond it is "more than"
MAX_SORTED = 200_000  # hits of words that are put in another order than that of steps: the newest ones
MAX_STEP = 1 << 40


class SortKey(Word):
    """What a search is sorted by. SCORE is the outcome reward: what the verdict and the length pay, before any ranking."""

    STEP = "step"
    REWARD = "reward"
    SCORE = "score"
    LENGTH = "length"
    ADVANTAGE = "advantage"
    ENTROPY = "entropy"


_COLUMN_OF = {
    SortKey.STEP: "step",
    SortKey.REWARD: "reward",
    SortKey.SCORE: "outcome_reward",
    SortKey.LENGTH: "num_tokens",
    SortKey.ADVANTAGE: "advantage",
    SortKey.ENTROPY: "entropy_global",
}
_NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_ROWS = f"SELECT rollouts.id, uid, {_NAMES} FROM rollouts JOIN problems ON problems.id = rollouts.problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which rollouts. None: any. Bounds are inclusive."""

    first_step: int | None = None
    last_step: int | None = None
    uid: str | None = None
    verdict: Verdict | str | None = None
    context: Context | str | None = None
    truncated: bool | None = None
    ranked: bool | None = None
    recalled: bool | None = None  # with words in the query: False (a recalled row has no text here)
    min_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRollout:
    """One rollout as the index has it."""

    run: str  # the run directory
    row: Row  # index_file.COLUMNS of its step's file, `uid`, its `step`, and `at`: its place in the file, from 0
    snippet: str  # plain text
    matches: tuple[tuple[int, int], ...]  # (begin, end) of each found word in `snippet`, in characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page of a search."""

    rollouts: list[FoundRollout]
    total: int  # hits; at most MAX_COUNTED are counted
    more: bool  # are there more than `total`?
    sorted_newest: int | None = None  # only so many of the newest hits were put in order; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProblem:
    """A problem whose text or reference has the words."""

    uid: str
    problem: str
    reference: str
    snippet: str
    matches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """After each step of an update."""

    step: int
    done: int  # steps of this update
    total: int  # steps that this update will read
    rollouts: int  # of this step
    counts: dict[str, int]  # curves.counts_of the step
    problem: str | None = None  # why the step's file could not be read; it is left out until it changes


def cache_directory() -> Path:
    """Where indexes are: $XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base).absolute() / "r3_openrlhf" / "viewer"


class RunIndex:
    """The index of one run directory. Every method may be called from any thread; `update` from one at a time.

    Args:
        run: the run directory; it is only read.
        cache: where the index is; None: `cache_directory()`.

    Nothing is read before `update`. R3Error: no run directory, a cache that cannot be written.
    """

    def __init__(self, run: str | Path, *, cache: Path | None = None) -> None:
        self.run = RunDirectory.open(run)
        directory = cache_directory() if cache is None else cache
        digest = hashlib.sha256(os.fsencode(self.run.path.resolve())).hexdigest()[:16]
        self.path = directory / f"{digest}.sqlite"
        self._lock = threading.Lock()
        with sentences(self.path):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._reader = open_index(self.path, self.run.path)

    def close(self) -> None:
        """Nothing else may be called after it."""
        with self._lock:
            self._reader.close()

    # ── growing ──

    def update(self) -> Iterator[Progress]:
        """Read what is new, the newest step first, one step per item; steps whose file is gone or another one are forgotten.

        A generator: what is not asked for is not read, and closing it stops. R3Error: a cache that cannot be written, a disk that is full.
        """
        with sentences(self.path), closing(open_index(self.path, self.run.path)) as connection:
            self._read_problems(connection)
            files, known = step_rows.files_of(self.run), _steps_in(connection)
            for step in known.keys() - files.keys():
                with transaction(connection):
                    forget(connection, step)
            todo = sorted((step for step in files if known.get(step) != files[step][1]), reverse=True)
            for done, step in enumerate(todo, start=1):
                found = step_rows.read_step(files[step][0], step)
                if found is None:  # a run that continued deleted it meanwhile
                    continue
                with transaction(connection):
                    if _steps_in(connection).get(step) != found.identity:  # else another viewer was faster
                        forget(connection, step)
                        insert(connection, step, found)
                yield Progress(
                    step=step,
                    done=done,
                    total=len(todo),
                    rollouts=len(found.rows),
                    counts=found.counts,
                    problem=found.problem,
                )

    def is_current(self) -> bool:
        """True if `update` would have nothing to read, by the files' sizes and times."""
        files = {step: identity for step, (_, identity) in step_rows.files_of(self.run).items()}
        with self._reading() as connection:
            return _steps_in(connection) == files

    # ── asking ──

    def counts(self) -> dict[int, dict[str, int]]:
        """curves.counts_of each step that is in the index."""
        with self._reading() as connection:
            found = connection.execute("SELECT step, counts FROM steps").fetchall()
        return {step: msgspec.json.decode(counts) for step, counts in found}

    def faults(self) -> list[str]:
        """A sentence for each step whose file could not be read."""
        with self._reading() as connection:
            rows = connection.execute("SELECT problem FROM steps WHERE problem IS NOT NULL ORDER BY step").fetchall()
        return [row[0] for row in rows]

    def search(
        self,
        query: str = "",
        *,
        where: Filter = Filter(),  # noqa: B008 (it cannot be changed)
        sort: SortKey | str = SortKey.STEP,
        descending: bool = True,
        limit: int = 50,
        offset: int = 0,
    ) -> Found:
        """Rollouts that have the words of `query` (search_query.py says how it is read) and pass the filter.

        An empty query finds every rollout that passes, recalled ones included. Hits of words that are sorted by something else
        than the step: of the newest MAX_SORTED. A value that is not there comes last. R3Error: a query or a word of the
        filter that makes no sense, in one sentence.
        """
        try:
            key = SortKey.checked("sort", sort)
            tags, conditions, values = _conditions(where)
        except ValueError as error:
            raise R3Error(str(error)) from error
        terms = terms_of(query)
        expression = f"{{head tail answer}} : ({expression_of(terms)})" if terms else None
        if expression is None:
            identifier, hits = "rollouts.id", "rollouts"
        else:
            identifier, hits = "words.rowid", "words JOIN rollouts ON rollouts.id = words.rowid"
            conditions.append("words MATCH ?")
            values.append(f"({expression}) AND (tags : ({' AND '.join(tags)}))" if tags else expression)
        conditions.append(f"{identifier} BETWEEN ? AND ?")
        values += _id_range(where)
        hits = f"{hits} WHERE {' AND '.join(conditions)}"
        way = "DESC" if descending else "ASC"
        if key is SortKey.STEP:
            page = f"SELECT {identifier} FROM {hits} ORDER BY {identifier} {way}"
        else:
            newest = "" if expression is None else f"ORDER BY {identifier} DESC LIMIT {MAX_SORTED}"
            chosen = f"SELECT rollouts.id, rollouts.{_COLUMN_OF[key]} AS value FROM {hits} {newest}"
            page = f"SELECT id FROM ({chosen}) ORDER BY value {way} NULLS LAST, id DESC"
        with self._reading() as connection:
            bounds = (max(0, limit), max(0, offset))
            ids = [one for (one,) in connection.execute(f"{page} LIMIT ? OFFSET ?", (*values, *bounds))]
            counted = f"SELECT count(*) FROM (SELECT 1 FROM {hits} LIMIT {MAX_COUNTED + 1})"
            (total,) = connection.execute(counted, values).fetchone()
            found = self._rollouts(connection, ids, expression)
        more = total > MAX_COUNTED
        cut = MAX_SORTED if more and expression is not None and key is not SortKey.STEP else None
        return Found(rollouts=found, total=min(total, MAX_COUNTED), more=more, sorted_newest=cut)

    def problems(self, query: str, *, limit: int = 50, offset: int = 0) -> list[FoundProblem]:
        """Problems whose text or reference has the words, the best fit first. R3Error as `search`."""
        terms = terms_of(query)
        if not terms:
            return []
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT problems.uid, problems.problem, problems.reference, "
                "snippet(problem_words, -1, ?, ?, '…', ?) FROM problem_words JOIN problems ON problems.id = problem_words.rowid "
                "WHERE problem_words MATCH ? ORDER BY rank LIMIT ? OFFSET ?",
                (OPENING, CLOSING, SNIPPET_TOKENS, expression_of(terms), max(0, limit), max(0, offset)),
            ).fetchall()
        found = []
        for uid, problem, reference, marked in rows:
            snippet, matches = unmarked(marked)
            found.append(FoundProblem(uid=uid, problem=problem, reference=reference, snippet=snippet, matches=matches))
        return found

    def problem_life(self, uid: str) -> list[Row]:
        """Every rollout of a problem, plain and after reflection, fresh and recalled, in the order of steps: FoundRollout.row."""
        with self._reading() as connection:
            rows = connection.execute(f"{_ROWS} WHERE uid = ? ORDER BY rollouts.id", (uid,)).fetchall()
        return list(map(_row, rows))

    def _rollouts(self, connection: sqlite3.Connection, ids: list[int], expression: str | None) -> list[FoundRollout]:
        marks = ", ".join("?" * len(ids))
        rows = {row[0]: _row(row) for row in connection.execute(f"{_ROWS} WHERE rollouts.id IN ({marks})", ids)}
        texts = texts_of(connection, ids)
        if expression is None:
            marked = {one: " ".join(" … ".join(filter(None, text[:2])).split())[:200] for one, text in texts.items()}
        else:
            marked = marked_snippets(expression, texts)
        found = []
        for identifier in ids:
            snippet, matches = unmarked(marked.get(identifier, ""))
            found.append(FoundRollout(run=str(self.run.path), row=rows[identifier], snippet=snippet, matches=matches))
        return found

    # ── the file ──

    def _read_problems(self, connection: sqlite3.Connection) -> None:
        """Texts and references of data/problems.jsonl, when it is another file than last time."""
        if not self.run.data.is_file():
            return
        identity = str(step_rows.identity_of(self.run.data))
        if connection.execute("SELECT value FROM meta WHERE key = 'problems'").fetchone() == (identity,):
            return
        labels = step_rows.problems_of(self.run)
        with transaction(connection):
            connection.executemany(
                "INSERT INTO problems (uid, problem, reference) VALUES (?, ?, ?) "
                "ON CONFLICT (uid) DO UPDATE SET problem = excluded.problem, reference = excluded.reference",
                labels,
            )
            connection.execute("INSERT INTO problem_words (problem_words) VALUES ('rebuild')")
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('problems', ?)", (identity,))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file, also during an update."""
        with self._lock, sentences(self.path):
            end = time.monotonic() + PAGE_S
            self._reader.set_progress_handler(lambda: time.monotonic() > end, 100_000)
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.set_progress_handler(None, 0)
                if self._reader.in_transaction:
                    self._reader.execute("COMMIT")


def search_runs(
    indexes: Iterable[RunIndex],
    query: str = "",
    *,
    where: Filter = Filter(),  # noqa: B008
    sort: SortKey | str = SortKey.STEP,
    descending: bool = True,
    limit: int = 50,
    offset: int = 0,
) -> Found:
    """`RunIndex.search` over several runs, merged in the same order. Each is asked for offset + limit hits."""
    pages = [
        index.search(query, where=where, sort=sort, descending=descending, limit=offset + limit, offset=0)
        for index in indexes
    ]
    column = _COLUMN_OF[SortKey.checked("sort", sort)]

    def order(hit: FoundRollout) -> tuple[bool, float]:
        value = hit.row[column]
        return value is None, 0.0 if value is None else -value if descending else value

    hits = sorted((hit for page in pages for hit in page.rollouts), key=order)
    cuts = [page.sorted_newest for page in pages if page.sorted_newest is not None]
    return Found(
        rollouts=hits[offset : offset + limit],
        total=sum(page.total for page in pages),
        more=any(page.more for page in pages),
        sorted_newest=min(cuts, default=None),
    )


# ── SQL ──


def _steps_in(connection: sqlite3.Connection) -> dict[int, step_rows.Identity]:
    return {step: (size, time) for step, size, time in connection.execute("SELECT step, size, mtime_ns FROM steps")}


def _row(values: tuple[Any, ...]) -> Row:
    """What _ROWS gives."""
    identifier, uid, *others = values
    place = {"step": identifier >> ROW_BITS, "at": identifier & ((1 << ROW_BITS) - 1), "uid": uid}
    return place | dict(zip(COLUMNS, others, strict=True))


def _id_range(where: Filter) -> tuple[int, int]:
    """Ids of the wanted steps, both inclusive."""
    first = 0 if where.first_step is None else min(max(where.first_step, 0), MAX_STEP)
    last = MAX_STEP if where.last_step is None else min(max(where.last_step, -1), MAX_STEP)
    return ids_of(first, last)


def _conditions(where: Filter) -> tuple[list[str], list[str], list[Any]]:
    """(words of the column `tags`, SQL conditions, their values); the steps are not among them. ValueError: an unknown word."""
    tags: list[str] = []
    found: dict[str, Any] = {}
    for name, kind in (("verdict", Verdict), ("context", Context)):
        if getattr(where, name) is not None:
            word = kind.checked(name, getattr(where, name)).value
            tags.append(word)
            found[f"rollouts.{name} = ?"] = word
    for name in ("truncated", "ranked"):
        wanted = getattr(where, name)
        if wanted is not None:
            tags.append(name if wanted else f"un{name}")
            found[f"rollouts.{name} = ?"] = wanted
    others = {
        "(rollouts.recalled_from IS NOT NULL) = ?": where.recalled,
        "rollouts.num_tokens >= ?": where.min_tokens,
        "rollouts.num_tokens <= ?": where.max_tokens,
        "rollouts.problem = (SELECT id FROM problems WHERE uid = ?)": where.uid,
    }
    found |= {condition: value for condition, value in others.items() if value is not None}
    return tags, list(found), list(found.values())


__all__ = [
    "HEAD_CHARS",
    "TAIL_CHARS",
    "Filter",
    "Found",
    "FoundProblem",
    "FoundRollout",
    "Progress",
    "RunIndex",
    "SortKey",
    "cache_directory",
    "search_runs",
]
