"""What a store holds, in numbers, for people: of the whole run, and of one problem."""

from __future__ import annotations

import difflib
import json
import sqlite3
from pathlib import Path
from typing import Any

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history.codec import Codec
from r3_openrlhf.history.connection import open_for_reading, sentences, snapshot
from r3_openrlhf.history.drafts import CONTEXTS, VERDICT_CODES, VERDICTS
from r3_openrlhf.history.lease import last_holder
from r3_openrlhf.history.recall import read
from r3_openrlhf.history.records import StoredRollout
from r3_openrlhf.history.usage import Usage
from r3_openrlhf.types import Context, Verdict

_MAX_HINTS = 5


def statistics(path: Path) -> dict[str, Any]:
    """The run's history in one dictionary of plain values: `r3 history stats` prints it."""
    connection = open_for_reading(str(path))
    try:
        with sentences(str(path), "read"), snapshot(connection):
            return _statistics(connection, path)
    finally:
        connection.close()


def _statistics(connection: sqlite3.Connection, path: Path) -> dict[str, Any]:
    def one(sql: str, *parameters: Any) -> tuple[Any, ...]:
        return connection.execute(sql, parameters).fetchone()

    steps, first, last, epoch, unkept = one(
        "SELECT count(*), min(step), max(step), max(epoch), coalesce(sum(num_unkept), 0) FROM steps"
    )
    floor = one("SELECT value FROM meta WHERE key = 'floor'")
    limits = one("SELECT value FROM meta WHERE key = 'limits'")
    live, live_tokens, copies, reach = one(
        "SELECT count(*), coalesce(sum(num_tokens), 0), coalesce(sum(copies), 0), min(policy_step) FROM rollouts "
        "WHERE evicted_at IS NULL"
    )
    (retained,) = one("SELECT count(*) FROM rollouts WHERE evicted_at IS NOT NULL")
    (tokens,) = one("SELECT coalesce(sum(num_tokens), 0) FROM rollouts")
    pages, free, page_bytes = (one(f"PRAGMA {name}")[0] for name in ("page_count", "freelist_count", "page_size"))
    solved = one(
        "SELECT count(*), coalesce(sum(good = 0), 0), coalesce(sum(good > 0 AND bad > 0), 0), coalesce(sum(bad = 0), 0) "
        "FROM (SELECT sum(count * (verdict = ?)) AS good, sum(count * (verdict = ?)) AS bad FROM counters "
        "WHERE context = 0 GROUP BY problem HAVING good + bad > 0)",
        VERDICT_CODES[Verdict.CORRECT],
        VERDICT_CODES[Verdict.WRONG],
    )
    holder, life = last_holder(path)
    return {
        "store": str(path),
        "writer": {"state": life, "holder": str(holder)} if holder else None,
        "steps": {"count": steps, "first": first, "last": last, "epoch": epoch, "rollback_floor": floor and floor[0]},
        "rollouts": _sampled(connection),
        "problems": dict(zip(("graded", "never_correct", "both", "always_correct"), solved, strict=True)),
        "rows": {
            "recallable": live,
            "kept_for_rollback": retained,
            "duplicates_merged": copies - live,
            "never_kept": unkept,
            "oldest_policy_step": reach,
        },
        "tokens": {
            "recallable": live_tokens,
            "bytes_per_token": (pages - free) * page_bytes / tokens if tokens else None,
        },
        "bytes": {
            "file": pages * page_bytes,
            "free_inside": free * page_bytes,
            "journal": sum(
                side.stat().st_size
                for side in (path.with_name(path.name + end) for end in ("-wal", "-journal"))
                if side.exists()
            ),
            "counted_towards_cap": Usage.load(connection).total,
        },
        "limits": json.loads(limits[0]) if limits else None,
        "journal": one("PRAGMA journal_mode")[0],
        "schema": one("PRAGMA user_version")[0],
    }


def _sampled(connection: sqlite3.Connection) -> dict[str, dict[str, dict[str, float | None]]]:
    """Everything ever committed: context -> verdict -> count and mean reward."""
    sampled: dict[str, dict[str, dict[str, float | None]]] = {Context.PLAIN.value: {}, Context.REFLECTION.value: {}}
    for context, verdict, count, reward_sum in connection.execute(
        "SELECT context, verdict, sum(count), sum(reward_sum) FROM counters GROUP BY context, verdict"
    ):
        sampled.setdefault(CONTEXTS[context].value, {})[VERDICTS[verdict].value] = {
            "count": count,
            "mean_reward": None if VERDICTS[verdict] is Verdict.UNGRADED else reward_sum / count,
        }
    return sampled


def attempts(path: Path, uid: str, *, untouched: bool = False) -> dict[str, Any]:
    """A problem's attempts over time, oldest first, and its counters: `r3 history show` prints it. `untouched`: as for
    open_for_reading.

    Raises HistoryError for a uid that the store has never seen, with near ones.
    """
    connection = open_for_reading(str(path), untouched=untouched)
    try:
        with sentences(str(path), "read"), snapshot(connection):
            problem = connection.execute("SELECT id FROM problems WHERE uid = ?", (uid,)).fetchone()
            if problem is None:
                raise HistoryError(f"{path} has no problem '{uid}'. {_hint(connection, uid)}")
            rows = connection.execute(
                "SELECT id, step, epoch, policy_step, context, verdict, reward, num_tokens, truncated, finish_reason, "
                "reason, entropy_peak, entropy_global, entropy_source, copies, evicted_at FROM rollouts "
                "WHERE problem = ? ORDER BY step, id",
                problem,
            )
            counters = connection.execute(
                "SELECT context, verdict, count, reward_sum FROM counters WHERE problem = ? ORDER BY context, verdict",
                problem,
            )
            return {
                "uid": uid,
                "committed": [
                    {
                        "context": CONTEXTS[context].value,
                        "verdict": VERDICTS[verdict].value,
                        "count": count,
                        "reward_sum": reward_sum,
                    }
                    for context, verdict, count, reward_sum in counters
                ],
                "attempts": [_attempt([column[0] for column in rows.description], row) for row in rows],
            }
    finally:
        connection.close()


def sampled_in(path: Path, uid: str, *, step: int) -> list[StoredRollout]:
    """The rows of a problem that were committed with `step`, token ids and log-probs included; [] where none are kept.

    Nothing is written, and no file appears beside the store. Equal responses of a step are one row.
    """
    connection = open_for_reading(str(path), untouched=True)
    try:
        with sentences(str(path), "read"), snapshot(connection):
            # by way of the responses, which have an index by problem: the rollouts have one of the recallable rows only
            found = connection.execute(
                "SELECT r.id FROM problems p JOIN responses a ON a.problem = p.id JOIN rollouts r ON r.response = a.id "
                "WHERE p.uid = ? AND r.step = ? ORDER BY r.id",
                (uid, step),
            ).fetchall()
            return read(connection, Codec(), [row for (row,) in found])
    finally:
        connection.close()


def _attempt(columns: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    values = dict(zip(columns, row, strict=True))
    values["row"] = values.pop("id")
    values["context"] = CONTEXTS[values["context"]].value
    values["verdict"] = VERDICTS[values["verdict"]].value
    values["truncated"] = bool(values["truncated"])
    return values


def _hint(connection: sqlite3.Connection, uid: str) -> str:
    known = [row[0] for row in connection.execute("SELECT uid FROM problems ORDER BY uid LIMIT 100000")]
    near = difflib.get_close_matches(uid, known, n=1) if len(known) <= 5000 else []
    if near:
        return f"Did you mean '{near[0]}'?"
    return f"It has {len(known)} problems, for example {', '.join(known[:_MAX_HINTS])}." if known else "It is empty."
