"""An index over the rollouts of a run, in the user's cache, that grows with the run: search, the life of a problem, groups.

One SQLite file per run directory, under $XDG_CACHE_HOME/r3_openrlhf/viewer; the run directory itself is only read. Which steps
are in it is remembered by the size and the time of each step's file, so an update reads new files alone, and a step that a
resumed run wrote again is taken out and read again. A step goes in whole or not at all; a killed update loses the step that
it was at. Several viewers may update and search at once. index_file.py has its tables.

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

import msgspec

from r3_openrlhf.errors import R3Error
from r3_openrlhf.runs.directory import RunDirectory
from r3_openrlhf.types import Context, Verdict, Word
from r3_openrlhf.viewer import step_rows
from r3_openrlhf.viewer.index_file import (
    CLOSING,
    CONTEXTS,
    OPENING,
    ROW_BITS,
    SNIPPET_TOKENS,
    VERDICTS,
    forget,
    insert,
    marked_snippets,
    open_index,
    sentences,
    texts_of,
    transaction,
    unmarked,
)
from r3_openrlhf.viewer.search_query import expression_of, terms_of
from r3_openrlhf.viewer.step_rows import HEAD_CHARS, TAIL_CHARS

MAX_COUNTED = 10_000  # of a search's hits; beyond it is "more than"
MAX_SORTED = 200_000  # hits of words that are put in another order than that of steps: the newest ones


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

        A generator: what is not asked for is not read, and closing it stops. R3Error: a cache that cannot be written, a
        disk that is full.
        """
        with sentences(self.path), closing(open_index(self.path, self.run.path)) as connection:
            self._read_problems(connection)
            sources = step_rows.sources_of(self.run)
            known = {
                step: (size, time) for step, size, time in connection.execute("SELECT step, size, mtime_ns FROM steps")
            }
            gone = [step for step in known if step not in sources]
            for step in gone:
                with transaction(connection):
                    forget(connection, step)
            todo = [step for step in sorted(sources, reverse=True) if known.get(step) != sources[step].identity]
            for done, step in enumerate(todo, start=1):
                source = sources[step]
                found = source.read()
                if found is None:  # a run that went on deleted it meanwhile
                    continue
                with transaction(connection):
                    row = connection.execute("SELECT size, mtime_ns FROM steps WHERE step = ?", (step,)).fetchone()
                    if row != found.identity:  # else another viewer was faster
                        forget(connection, step)
                        insert(connection, step, found)
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
                tagged = f"({expression}) AND (tags : ({' AND '.join(tags)}))" if tags else expression
                span = ("words MATCH ? AND words.rowid BETWEEN ? AND ?", (tagged, *_id_range(where)))
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
                (OPENING, CLOSING, SNIPPET_TOKENS, expression_of(terms), max(0, limit), max(0, offset)),
            ).fetchall()
        found = []
        for uid, problem, reference, marked in rows:
            snippet, matches = unmarked(marked)
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

    def recall_ages(self, step: int) -> list[int]:
        """Steps between this one and the one that sampled it, of each recalled row of a step."""
        with self._reading() as connection:
            return [
                age
                for (age,) in connection.execute(
                    "SELECT ? - recalled_from FROM rollouts WHERE id BETWEEN ? AND ? AND recalled_from IS NOT NULL",
                    (step, *_id_range(Filter(first_step=step, last_step=step))),
                )
            ]

    def counts(self) -> dict[int, dict[str, Any]]:
        """What `keep_counts` was given, by step."""
        with self._reading() as connection:
            found = connection.execute("SELECT step, data FROM counts").fetchall()
        return {step: msgspec.json.decode(data) for step, data in found}

    def keep_counts(self, counts: Mapping[int, Mapping[str, Any]]) -> None:
        """Remember something about steps that are in the index; it is forgotten with its step."""
        with (
            sentences(self.path),
            closing(open_index(self.path, self.run.path)) as connection,
            transaction(connection),
        ):
            connection.executemany(
                "INSERT OR REPLACE INTO counts SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM steps WHERE step = ?1)",
                [(step, msgspec.json.encode(found).decode()) for step, found in counts.items()],
            )

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
        texts = texts_of(connection, ids)
        if expression is None:
            marked = {one: " ".join(" … ".join(filter(None, text[:2])).split())[:200] for one, text in texts.items()}
        else:
            marked = marked_snippets(expression, texts)
        for identifier in ids:
            row = connection.execute(
                f"SELECT {_COLUMNS} FROM rollouts JOIN problems ON problems.id = rollouts.problem WHERE rollouts.id = ?",
                (identifier,),
            ).fetchone()
            found.append(self._rollout(row, marked.get(identifier, "")))
        return found

    def _rollout(self, row: tuple[Any, ...], marked: str = "") -> FoundRollout:
        identifier, uid, context, group, verdict, reason, truncated, ranked, *rest = row
        recalled_from, num_tokens, reward, outcome_reward, advantage, peak, global_ = rest
        snippet, matches = unmarked(marked)
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
        """One state of the file, whatever an update does meanwhile."""
        with self._lock, sentences(self.path):
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("COMMIT")


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
