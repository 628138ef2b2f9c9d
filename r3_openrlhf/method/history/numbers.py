"""The contents of a store in numbers, for people: of the whole run, and of one problem."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history.codec import Codec
from r3_openrlhf.method.history.connection import reading, snapshot
from r3_openrlhf.method.history.drafts import CONTEXTS, VERDICT_CODES, VERDICTS
from r3_openrlhf.method.history.lease import last_holder
from r3_openrlhf.method.history.recall import read
from r3_openrlhf.method.history.records import StoredRollout
from r3_openrlhf.method.history.store import lock_of
from r3_openrlhf.method.history.usage import Usage
from r3_openrlhf.method.open_table import nearest
from r3_openrlhf.method.types import Rollout, Verdict


def statistics(connection: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """Return the run's history in one dictionary of plain values: `r3 history stats` prints it."""

    def one(sql: str, *parameters: object) -> tuple[Any, ...]:
        return connection.execute(sql, parameters).fetchone()

    steps, first, last, epoch, unkept = one(
        "SELECT count(*), min(step), max(step), max(epoch), coalesce(sum(num_unkept), 0) FROM steps"
    )
    floor = one("SELECT value FROM meta WHERE key = 'floor'")
    live, copies = one(
        "SELECT count(*), coalesce(sum(copies), 0) FROM rollouts WHERE evicted_at IS NULL"
    )
    (retained,) = one("SELECT count(*) FROM rollouts WHERE evicted_at IS NOT NULL")
    pages, free, page_bytes = (
        one(f"PRAGMA {name}")[0] for name in ("page_count", "freelist_count", "page_size")
    )
    solved = one(
        "SELECT count(*), coalesce(sum(good = 0), 0), coalesce(sum(good > 0 AND bad > 0), 0), coalesce(sum(bad = 0), 0) "
        "FROM (SELECT sum(count * (verdict = ?)) AS good, sum(count * (verdict = ?)) AS bad FROM counters "
        "WHERE context = 0 GROUP BY problem HAVING good + bad > 0)",
        VERDICT_CODES[Verdict.CORRECT],
        VERDICT_CODES[Verdict.WRONG],
    )
    sampled = connection.execute(
        "SELECT context, verdict, sum(count) AS count, CASE WHEN verdict < 2 THEN sum(reward_sum) / sum(count) END "
        "AS mean_reward FROM counters GROUP BY context, verdict ORDER BY context, verdict"  # 2: ungraded
    )
    imported = connection.execute(
        "SELECT origin, count(*) AS recallable, count(DISTINCT problem) AS problems FROM rollouts "
        "WHERE evicted_at IS NULL AND origin != '' GROUP BY origin ORDER BY origin"
    )
    holder, lives = last_holder(lock_of(path))
    return {
        "store": str(path),
        "writer": {"state": "running" if lives else "gone", "holder": str(holder)}
        if holder
        else None,
        "steps": {
            "count": steps,
            "first": first,
            "last": last,
            "epoch": epoch,
            "rollback_floor": floor and floor[0],
        },
        "rollouts": _named(sampled),
        "imported": _named(imported),
        "problems": dict(
            zip(("graded", "never_correct", "both", "always_correct"), solved, strict=True)
        ),
        "rows": {
            "recallable": live,
            "kept_for_rollback": retained,
            "duplicates_merged": copies - live,
            "never_kept": unkept,
        },
        "bytes": {
            "file": pages * page_bytes,
            "free_inside": free * page_bytes,
            "counted_towards_cap": Usage.load(connection).total,
        },
    }


def attempts(path: Path, uid: str) -> dict[str, Any]:
    """Return a problem's attempts over time, oldest first: `r3 history show` prints it.

    Raises HistoryError for a uid that the store has never seen, with near ones.
    """
    with reading(path) as connection, snapshot(connection):
        problem = connection.execute("SELECT id FROM problems WHERE uid = ?", (uid,)).fetchone()
        if problem is None:
            known = [
                row[0]
                for row in connection.execute(
                    "SELECT uid FROM problems ORDER BY uid LIMIT 5000"
                )
            ]
            raise HistoryError(
                f"{path} has no problem '{uid}'; {nearest(uid, known) if known else 'it is empty'}"
            )
        rows = connection.execute(
            "SELECT id AS row, step, epoch, policy_step, context, verdict, reward, num_tokens, truncated, finish_reason, "
            "reason, origin, entropy_peak, entropy_global, entropy_source, copies, evicted_at FROM rollouts "
            "WHERE problem = ? ORDER BY step, id",
            problem,
        )
        return {"uid": uid, "attempts": _named(rows)}


def sampled_in(path: Path, uid: str, *, step: int) -> list[StoredRollout]:
    """Read the rows of a problem that were committed with `step`, token ids and log-probs included;
    [] where none are kept.

    Equal responses of a step are one row."""
    with reading(path) as connection, snapshot(connection):
        # by the responses, which have an index by problem: the rollouts' has recallable rows only
        rows = connection.execute(
            "SELECT r.id FROM problems p JOIN responses a ON a.problem = p.id JOIN rollouts r ON r.response = a.id "
            "WHERE p.uid = ? AND r.step = ? ORDER BY r.id",
            (uid, step),
        ).fetchall()
        return read(connection, Codec(), [row for (row,) in rows])


def successes(path: Path) -> Iterator[Rollout]:
    """Yield all recallable right rollouts of a store, oldest first."""
    with reading(path) as connection, snapshot(connection):
        sql = "SELECT id FROM rollouts WHERE verdict = ? AND evicted_at IS NULL ORDER BY id"
        for (row,) in connection.execute(sql, (VERDICT_CODES[Verdict.CORRECT],)).fetchall():
            yield from (one.rollout for one in read(connection, Codec(), [row]))


def _named(rows: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Rows by the names of their columns, and with words instead of codes."""
    columns = [column[0] for column in rows.description]
    words: dict[str, Callable[[Any], Any]] = {
        "context": lambda code: CONTEXTS[code].value,
        "verdict": lambda code: VERDICTS[code].value,
        "truncated": bool,
    }
    return [
        {
            name: words.get(name, lambda value: value)(value)
            for name, value in zip(columns, row, strict=True)
        }
        for row in rows.fetchall()  # else a code that is no word would leave the file locked
    ]
