"""An index over the rollouts of a run, in the user's cache, that grows with the run: search, the life of a problem, groups.

One SQLite file per run directory, under $XDG_CACHE_HOME/r3_openrlhf/viewer; the run directory itself is only read. Which steps
are in it is remembered by the size and the time of each step's file, so an update reads new files alone, and a step that a
resumed run wrote again is taken out and read again. A step goes in whole or not at all; a killed update loses the step that
it was at. Several viewers may update and search at once.

What is searched: of each response that a step sampled its first HEAD_CHARS and its last TAIL_CHARS characters, and the
extracted answer; of each problem its text and its references (`problems`). The middle of a long response is not searched: the whole text of 2
million responses would make the index larger than the run. A recalled row has no text here: it is found at the step that
sampled it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3_openrlhf.errors import R3Error
from r3_openrlhf.history.filesystem import choose_journal
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.types import Context, Verdict, Word
from r3_openrlhf.viewer import step_rows
from r3_openrlhf.viewer.search_query import expression_of, terms_of
from r3_openrlhf.viewer.step_rows import HEAD_CHARS, TAIL_CHARS, IndexedStep

SCHEMA_VERSION = 1
ROW_BITS = 20  # id of a rollout: step * 2**20 + its place in the step's file
MAX_COUNTED = 10_000  # of a search's hits; beyond it is "more than"
MAX_SORTED = 200_000  # hits of words that are put in another order than that of steps: the newest ones
SNIPPET_TOKENS = 40
BUSY_S = 60.0
CACHE_KIB = 32_768  # SQLite's page cache, of each of two connections
VERDICTS, CONTEXTS = list(Verdict), list(Context)
_OPENING, _CLOSING = "\x02", "\x03"  # around a match; no indexed text holds them (step_rows.py)

_TABLES = f"""
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
CREATE TABLE texts (id INTEGER PRIMARY KEY, head TEXT NOT NULL, tail TEXT NOT NULL, answer TEXT NOT NULL, tags TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(
    head, tail, answer, tags, content='texts', content_rowid='id', tokenize="unicode61 remove_diacritics 2");
CREATE VIRTUAL TABLE problem_words USING fts5(
    problem, reference, content='problems', content_rowid='id', tokenize="unicode61 remove_diacritics 2");
"""


class SortKey(Word):
    """What a search is sorted by. SCORE is the outcome reward: what the verdict and the length pay, before any ranking."""

    STEP = "step"
    REWARD = "reward"
    SCORE = "score"
    LENGTH = "length"
    ADVANTAGE = "advantage"
    ENTROPY = "entropy"


_SORTED_BY = {
    SortKey.STEP: "rollouts.id",
    SortKey.REWARD: "rollouts.reward",
    SortKey.SCORE: "rollouts.outcome_reward",
    SortKey.LENGTH: "rollouts.num_tokens",
    SortKey.ADVANTAGE: "rollouts.advantage",
    SortKey.ENTROPY: "rollouts.entropy_global",
}


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
    """One rollout as the index has it. Numbers are those of its step's file (runs/rollout_files.py)."""

    run: str  # the run directory
    step: int
    row: int  # its place in the step's file, from 0
    uid: str
    context: str
    group: int | None
    verdict: str
    reason: str | None
    truncated: bool
    ranked: bool
    recalled_from: int | None
    num_tokens: int
    reward: float | None
    outcome_reward: float | None
    advantage: float | None
    entropy_peak: float | None
    entropy_global: float | None
    snippet: str = ""  # plain text
    matches: tuple[tuple[int, int], ...] = ()  # (begin, end) of each found word in `snippet`, in characters


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
class GroupSummary:
    """The rows of one problem in one context of one step. Counts are of fresh rows but `recalled`."""

    step: int
    group: int | None  # None: none of its rows is in a group (fewer than two graded rollouts)
    uid: str
    context: str
    rows: int  # recalled ones included
    correct: int
    wrong: int
    ungraded: int
    truncated: int
    recalled: int
    ranked: int
    left_out: int  # fresh rows that were not trained on
    oldest_lag: int | None  # steps between this one and the one that sampled its oldest recalled row
    mean_tokens: float | None
    mean_reward: float | None  # of its graded rows, recalled ones included
    abs_advantage: float  # sum of |A|: its share of the gradient is this over the step's sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """After each step of an update."""

    run: str
    step: int
    done: int  # steps of this update
    total: int  # steps that this update will read
    rollouts: int  # of this step
    problem: str | None = None  # why the step's file could not be read; it is left out until it changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is in the index."""

    path: Path
    steps: int
    rollouts: int
    newest_step: int | None
    bytes: int  # on disk
    problems: list[str]  # one sentence per file that could not be read


def cache_directory() -> Path:
    """Where indexes lie: $XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base).absolute() / "r3_openrlhf" / "viewer"


class RunIndex:
    """The index of one run directory. Every method may be called from any thread; `update` from one at a time.

    Args:
        run: the run directory; it is only read.
        cache: where the index lies; None: `cache_directory()`.

    Nothing is read before `update`. R3Error: no run directory, a cache that cannot be written.
    """

    def __init__(self, run: str | Path, *, cache: Path | None = None) -> None:
        self.run = RunDirectory.open(run)
        real = self.run.path.resolve()
        directory = cache_directory() if cache is None else cache
        digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        self.path = directory / f"{digest}.sqlite"
        self._lock = threading.Lock()
        with self._sentences():
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._reader = self._open()

    def close(self) -> None:
        """Nothing else may be called after it."""
        with self._lock:
            self._reader.close()

    # ── growing ──

    def update(self) -> Iterator[Progress]:
        """Read what is new, the newest step first, one step per item; steps whose file is gone or another one are forgotten.

        A generator: what is not asked for is not read, and closing it stops. R3Error: a cache that cannot be written, a
        disk that is full.
        """
        with self._sentences(), closing(self._open()) as connection:
            self._read_problems(connection)
            sources = step_rows.sources_of(self.run)
            known = {
                step: (size, time) for step, size, time in connection.execute("SELECT step, size, mtime_ns FROM steps")
            }
            gone = [step for step in known if step not in sources]
            for step in gone:
                with _transaction(connection):
                    _forget(connection, step)
            todo = [step for step in sorted(sources, reverse=True) if known.get(step) != sources[step].identity]
            for done, step in enumerate(todo, start=1):
                source = sources[step]
                found = source.read()
                if found is None:  # a run that went on deleted it meanwhile
                    continue
                with _transaction(connection):
                    row = connection.execute("SELECT size, mtime_ns FROM steps WHERE step = ?", (step,)).fetchone()
                    if row != found.identity:  # else another viewer was faster
                        _forget(connection, step)
                        _insert(connection, step, found)
                yield Progress(
                    run=str(self.run.path),
                    step=step,
                    done=done,
                    total=len(todo),
                    rollouts=len(found.rollouts),
                    problem=found.problem,
                )

    def is_current(self) -> bool:
        """Would `update` have nothing to read? Looks at the files' sizes and times alone."""
        sources = {step: source.identity for step, source in step_rows.sources_of(self.run).items()}
        with self._reading() as connection:
            known = {
                step: (size, time) for step, size, time in connection.execute("SELECT step, size, mtime_ns FROM steps")
            }
        return known == sources

    def status(self) -> Status:
        """What is in the index now."""
        with self._reading() as connection:
            steps, rollouts, newest = connection.execute(
                "SELECT count(*), coalesce(sum(rollouts), 0), max(step) FROM steps"
            ).fetchone()
            problems = [row[0] for row in connection.execute("SELECT problem FROM steps WHERE problem IS NOT NULL")]
        sizes = (self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm"))
        return Status(
            path=self.path,
            steps=steps,
            rollouts=rollouts,
            newest_step=newest,
            bytes=sum(file.stat().st_size for file in sizes if file.exists()),
            problems=problems,
        )

    # ── asking ──

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
        way = "DESC" if descending else "ASC"
        order = (
            f"{_SORTED_BY[key]} {way}"
            if key is SortKey.STEP
            else (f"{_SORTED_BY[key]} {way} NULLS LAST, rollouts.id DESC")
        )
        page = (max(0, limit), max(0, offset))
        with self._reading() as connection:
            if where.uid is not None:
                row = connection.execute("SELECT id FROM problems WHERE uid = ?", (where.uid,)).fetchone()
                if row is None:
                    return Found(rollouts=[], total=0, more=False)
                tags.append(f"p{row[0]}")
                conditions.append("rollouts.problem = ?")
                values.append(row[0])
            rule = " AND ".join(conditions) or "1"
            cut = None
            if not terms:
                chosen = f"SELECT rollouts.id FROM rollouts WHERE {rule}"
                ids = connection.execute(f"{chosen} ORDER BY {order} LIMIT ? OFFSET ?", (*values, *page)).fetchall()
                total = self._count(connection, chosen, values)
                expression = None
            else:
                expression = f"{{head tail answer}} : ({expression_of(terms)})"
                if tags:
                    expression = f"({expression}) AND (tags : ({' AND '.join(tags)}))"
                span = ("words MATCH ? AND words.rowid BETWEEN ? AND ?", (expression, *_id_range(where)))
                joined = f"SELECT words.rowid AS id FROM words JOIN rollouts ON rollouts.id = words.rowid WHERE {span[0]} AND {rule}"
                plain = f"SELECT words.rowid AS id FROM words WHERE {span[0]}"
                by_tags = not _beyond_tags(where)  # everything that is asked for stands in the index of words
                hits, hit_values = (plain, span[1]) if by_tags else (joined, (*span[1], *values))
                if key is SortKey.STEP:
                    ids = connection.execute(
                        f"{hits} ORDER BY words.rowid {way} LIMIT ? OFFSET ?", (*hit_values, *page)
                    ).fetchall()
                else:
                    newest = f"{hits} ORDER BY words.rowid DESC LIMIT {MAX_SORTED}"
                    ids = connection.execute(
                        f"WITH newest AS MATERIALIZED ({newest}) SELECT rollouts.id FROM newest JOIN rollouts USING (id) "
                        f"ORDER BY {order} LIMIT ? OFFSET ?",
                        (*hit_values, *page),
                    ).fetchall()
                total = self._count(connection, hits, hit_values)
                if key is not SortKey.STEP and total > MAX_COUNTED:
                    cut = MAX_SORTED
            found = self._rollouts(connection, [row[0] for row in ids], expression)
        return Found(rollouts=found, total=min(total, MAX_COUNTED), more=total > MAX_COUNTED, sorted_newest=cut)

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
                (_OPENING, _CLOSING, SNIPPET_TOKENS, expression_of(terms), max(0, limit), max(0, offset)),
            ).fetchall()
        found = []
        for uid, problem, reference, marked in rows:
            snippet, matches = _unmarked(marked)
            found.append(FoundProblem(uid=uid, problem=problem, reference=reference, snippet=snippet, matches=matches))
        return found

    def problem(self, uid: str) -> tuple[str, str] | None:
        """(text, references) of a problem; None when the run never had it. Empty texts where its training file is gone."""
        with self._reading() as connection:
            return connection.execute("SELECT problem, reference FROM problems WHERE uid = ?", (uid,)).fetchone()

    def problem_life(self, uid: str) -> list[FoundRollout]:
        """Every rollout of a problem, plain and after reflection, fresh and recalled, in the order of steps. No snippets."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM rollouts JOIN problems ON problems.id = rollouts.problem "
                "WHERE rollouts.problem = (SELECT id FROM problems WHERE uid = ?) ORDER BY rollouts.id",
                (uid,),
            ).fetchall()
        return [self._rollout(row) for row in rows]

    def groups(self, step: int) -> list[GroupSummary] | None:
        """The groups of a step in its order; None where the step is not in the index (yet)."""
        with self._reading() as connection:
            if connection.execute("SELECT 1 FROM steps WHERE step = ?", (step,)).fetchone() is None:
                return None
            rows = connection.execute(f"{_GROUPS} WHERE step = ? ORDER BY place", (step,)).fetchall()
        return [_group(row) for row in rows]

    def groups_of(self, uid: str) -> list[GroupSummary]:
        """The groups of a problem in the order of steps."""
        with self._reading() as connection:
            rows = connection.execute(f"{_GROUPS} WHERE uid = ? ORDER BY step, place", (uid,)).fetchall()
        return [_group(row) for row in rows]

    def _count(self, connection: sqlite3.Connection, chosen: str, values: Iterable[Any]) -> int:
        """Up to one more than MAX_COUNTED."""
        return connection.execute(
            f"SELECT count(*) FROM ({chosen} LIMIT {MAX_COUNTED + 1})", tuple(values)
        ).fetchone()[0]

    def _rollouts(self, connection: sqlite3.Connection, ids: list[int], expression: str | None) -> list[FoundRollout]:
        found = []
        for identifier in ids:
            row = connection.execute(
                f"SELECT {_COLUMNS} FROM rollouts JOIN problems ON problems.id = rollouts.problem WHERE rollouts.id = ?",
                (identifier,),
            ).fetchone()
            if expression is None:
                head = connection.execute("SELECT head, tail FROM texts WHERE id = ?", (identifier,)).fetchone()
                marked = " ".join(" … ".join(part for part in head or () if part).split())[:200]
            else:
                (marked,) = connection.execute(
                    "SELECT snippet(words, -1, ?, ?, '…', ?) FROM words WHERE words MATCH ? AND rowid = ?",
                    (_OPENING, _CLOSING, SNIPPET_TOKENS, expression, identifier),
                ).fetchone()
            found.append(self._rollout(row, marked))
        return found

    def _rollout(self, row: tuple[Any, ...], marked: str = "") -> FoundRollout:
        identifier, uid, context, group, verdict, reason, truncated, ranked, *rest = row
        recalled_from, num_tokens, reward, outcome_reward, advantage, peak, global_ = rest
        snippet, matches = _unmarked(marked)
        return FoundRollout(
            run=str(self.run.path),
            step=identifier >> ROW_BITS,
            row=identifier & ((1 << ROW_BITS) - 1),
            uid=uid,
            context=CONTEXTS[context].value,
            group=group,
            verdict=VERDICTS[verdict].value,
            reason=reason,
            truncated=bool(truncated),
            ranked=bool(ranked),
            recalled_from=recalled_from,
            num_tokens=num_tokens,
            reward=reward,
            outcome_reward=outcome_reward,
            advantage=advantage,
            entropy_peak=peak,
            entropy_global=global_,
            snippet=snippet,
            matches=matches,
        )

    # ── the file ──

    def _read_problems(self, connection: sqlite3.Connection) -> None:
        """Texts and references of data/problems.jsonl, when it is another file than last time."""
        if not self.run.data.is_file():
            return
        status = self.run.data.stat()
        identity = f"{status.st_size}/{status.st_mtime_ns}"
        if connection.execute("SELECT value FROM meta WHERE key = 'problems'").fetchone() == (identity,):
            return
        labels = list(step_rows.problems_of(self.run))
        with _transaction(connection):
            connection.executemany(
                "INSERT INTO problems (uid, problem, reference) VALUES (?, ?, ?) "
                "ON CONFLICT (uid) DO UPDATE SET problem = excluded.problem, reference = excluded.reference",
                labels,
            )
            connection.execute("INSERT INTO problem_words (problem_words) VALUES ('rebuild')")
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('problems', ?)", (identity,))

    def _open(self) -> sqlite3.Connection:
        """A connection to the file, made anew where it is of another version or damaged: it is a cache."""
        for attempt in (1, 2):
            connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
            try:
                connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                if connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
                    return connection
                connection.execute(f"PRAGMA journal_mode = {choose_journal(self.path)}")
                with _transaction(connection):
                    version = connection.execute("PRAGMA user_version").fetchone()[0]
                    if version == 0:  # else another viewer was faster
                        for statement in _TABLES.split(";\n"):
                            connection.execute(statement)
                        connection.execute("INSERT INTO meta VALUES ('run', ?)", (str(self.run.path),))
                        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                if version in (0, SCHEMA_VERSION):
                    return connection
            except sqlite3.DatabaseError as error:
                damaged = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
                if not damaged or attempt == 2:
                    connection.close()
                    raise
            connection.close()
            self._remove()
        raise R3Error(f"the index {self.path} is of another version of this program; remove it")

    def _remove(self) -> None:
        for end in ("", "-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file, whatever an update does meanwhile."""
        with self._lock, self._sentences():
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("COMMIT")

    @contextmanager
    def _sentences(self) -> Iterator[None]:
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
            raise R3Error(f"the index {self.path}: {advice}") from error
        except OSError as error:
            raise R3Error(
                f"the index {self.path}: {error.strerror}; set XDG_CACHE_HOME to a directory that you may write to"
            ) from error


# ── several runs ──


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
    key = SortKey.checked("sort", sort)
    hits = [hit for page in pages for hit in page.rollouts]
    hits.sort(key=lambda hit: _sort_value(hit, key, descending))
    cuts = [page.sorted_newest for page in pages if page.sorted_newest is not None]
    return Found(
        rollouts=hits[offset : offset + limit],
        total=sum(page.total for page in pages),
        more=any(page.more for page in pages),
        sorted_newest=min(cuts, default=None),
    )


def problem_lives(indexes: Iterable[RunIndex], uid: str) -> list[FoundRollout]:
    """`RunIndex.problem_life` over several runs, run by run."""
    return [attempt for index in indexes for attempt in index.problem_life(uid)]


def _sort_value(hit: FoundRollout, key: SortKey, descending: bool) -> tuple[bool, float]:
    values: Mapping[SortKey, float | None] = {
        SortKey.STEP: hit.step,
        SortKey.REWARD: hit.reward,
        SortKey.SCORE: hit.outcome_reward,
        SortKey.LENGTH: hit.num_tokens,
        SortKey.ADVANTAGE: hit.advantage,
        SortKey.ENTROPY: hit.entropy_global,
    }
    value = values[key]
    return value is None, 0.0 if value is None else -value if descending else value


# ── SQL ──

_COLUMNS = (
    "rollouts.id, problems.uid, rollouts.context, rollouts.grp, rollouts.verdict, rollouts.reason, rollouts.truncated, "
    "rollouts.ranked, rollouts.recalled_from, rollouts.num_tokens, rollouts.reward, rollouts.outcome_reward, "
    "rollouts.advantage, rollouts.entropy_peak, rollouts.entropy_global"
)
_GROUPS = (
    f"SELECT step, grp, uid, context, {', '.join(step_rows.GROUP_COUNTS)}, oldest_lag, mean_tokens, mean_reward, abs_advantage "
    "FROM groups JOIN problems ON problems.id = groups.problem"
)


def _group(row: tuple[Any, ...]) -> GroupSummary:
    step, group, uid, context, *numbers = row
    names = (*step_rows.GROUP_COUNTS, "oldest_lag", "mean_tokens", "mean_reward", "abs_advantage")
    return GroupSummary(
        step=step, group=group, uid=uid, context=CONTEXTS[context].value, **dict(zip(names, numbers, strict=True))
    )


def _id_range(where: Filter) -> tuple[int, int]:
    """Ids of the wanted steps, both inclusive."""
    largest = (1 << 62) >> ROW_BITS
    first = 0 if where.first_step is None else min(max(where.first_step, 0), largest)
    last = largest if where.last_step is None else min(max(where.last_step, -1), largest)
    return first << ROW_BITS, ((last + 1) << ROW_BITS) - 1


def _conditions(where: Filter) -> tuple[list[str], list[str], list[Any]]:
    """(words of the column `tags`, SQL conditions, their values); the problem is not among them."""
    tags: list[str] = []
    conditions: list[str] = []
    values: list[Any] = []
    if where.first_step is not None or where.last_step is not None:
        conditions.append("rollouts.id BETWEEN ? AND ?")
        values += _id_range(where)
    if where.verdict is not None:
        verdict = Verdict.checked("verdict", where.verdict)
        tags.append(verdict.value)
        conditions.append("rollouts.verdict = ?")
        values.append(VERDICTS.index(verdict))
    if where.context is not None:
        context = Context.checked("context", where.context)
        tags.append(context.value)
        conditions.append("rollouts.context = ?")
        values.append(CONTEXTS.index(context))
    for name, column in (("truncated", "truncated"), ("ranked", "ranked")):
        wanted = getattr(where, name)
        if wanted is not None:
            tags.append(name if wanted else f"un{name}")
            conditions.append(f"rollouts.{column} = ?")
            values.append(int(wanted))
    if where.recalled is not None:
        conditions.append(f"rollouts.recalled_from IS {'NOT ' if where.recalled else ''}NULL")
    for bound, sign in ((where.min_tokens, ">="), (where.max_tokens, "<=")):
        if bound is not None:
            conditions.append(f"rollouts.num_tokens {sign} ?")
            values.append(bound)
    return tags, conditions, values


def _beyond_tags(where: Filter) -> bool:
    return where.min_tokens is not None or where.max_tokens is not None or where.recalled is True


def _unmarked(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Text with marks around the matches -> text, and where the matches were."""
    text, matches, begin = [], [], 0
    length = 0
    for part in marked.replace(_OPENING, f"\0{_OPENING}\0").replace(_CLOSING, f"\0{_CLOSING}\0").split("\0"):
        if part == _OPENING:
            begin = length
        elif part == _CLOSING:
            matches.append((begin, length))
        else:
            text.append(part)
            length += len(part)
    return "".join(text), tuple(matches)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _forget(connection: sqlite3.Connection, step: int) -> None:
    """Everything of one step. FTS5 wants the old words of an external table back (sqlite.org/fts5.html#the_delete_command)."""
    span = (step << ROW_BITS, ((step + 1) << ROW_BITS) - 1)
    connection.execute(
        "INSERT INTO words (words, rowid, head, tail, answer, tags) "
        "SELECT 'delete', id, head, tail, answer, tags FROM texts WHERE id BETWEEN ? AND ?",
        span,
    )
    for table in ("texts", "rollouts"):
        connection.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", span)
    for table in ("groups", "steps"):
        connection.execute(f"DELETE FROM {table} WHERE step = ?", (step,))


def _insert(connection: sqlite3.Connection, step: int, found: IndexedStep) -> None:
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
        (first + place, one.head, one.tail, one.answer, f"{one.tags} p{numbers[one.uid]}")
        for place, one in enumerate(found.rollouts)
        if one.has_text
    ]
    connection.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", texts)
    connection.executemany("INSERT INTO words (rowid, head, tail, answer, tags) VALUES (?, ?, ?, ?, ?)", texts)
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


__all__ = [
    "HEAD_CHARS",
    "TAIL_CHARS",
    "Filter",
    "Found",
    "FoundProblem",
    "FoundRollout",
    "GroupSummary",
    "Progress",
    "RunIndex",
    "SortKey",
    "Status",
    "cache_directory",
    "problem_lives",
    "search_runs",
]
