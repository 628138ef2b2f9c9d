"""What each column of the store may hold: types and ranges that SQLite itself does not enforce."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history import schema
from r3_openrlhf.history.codec import DIGEST_BYTES
from r3_openrlhf.history.drafts import CONTEXTS, MAX_WHOLE, VERDICTS
from r3_openrlhf.history.records import HistoryLimits
from r3_openrlhf.history.trajectories import has_trajectories
from r3_openrlhf.history.usage import Usage

_COUNT = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {MAX_WHOLE}"
_FLAG = "typeof({0}) = 'integer' AND {0} BETWEEN 0 AND 1"
_NUMBER = "typeof({0}) = 'real' AND abs({0}) < 1e308"
_TEXT = "typeof({0}) = 'text'"
_BYTES = "typeof({0}) = 'blob'"
_DIGEST = f"typeof({{0}}) = 'blob' AND length({{0}}) = {DIGEST_BYTES}"
_CONTEXT = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {max(CONTEXTS)}"
_VERDICT = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {max(VERDICTS)}"
_STEP_OR_BELOW = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN -1 AND {MAX_WHOLE}"
_OR_NULL = "({0} IS NULL OR %s)"
_KEY = {"problem": _COUNT, "context": _CONTEXT, "verdict": _VERDICT, "count": _COUNT, "reward_sum": _NUMBER}
_ARRAY = {"problem": _COUNT, "digest": _DIGEST, "num_tokens": _COUNT, "ids": _BYTES}

COLUMNS: dict[str, dict[str, str]] = {
    "lease": {"token": _TEXT, "host": _TEXT, "pid": _COUNT, "since": _TEXT},
    "steps": {
        **dict.fromkeys(
            ("step", "epoch", "num_rollouts", "num_ungraded", "num_rows", "num_unkept", "bytes"),
            _COUNT,
        ),
        **dict.fromkeys(("last_problem", "last_prompt", "last_response", "last_rollout"), _COUNT),
        "committed_at": f"{_NUMBER} AND {{0}} >= 0",
        "state": _OR_NULL % _BYTES,
    },
    "problems": {"id": _COUNT, "uid": _TEXT},
    "counters": _KEY,
    "counters_before": {"step": _COUNT, **_KEY},
    "gone": {"step": _STEP_OR_BELOW, **_KEY},
    "continuations": {
        "problem": _COUNT,
        "state": _DIGEST,
        "step": _STEP_OR_BELOW,
        "tries": _COUNT,
        "successes": _COUNT,
    },
    "prompts": {"id": _COUNT, **_ARRAY},
    "responses": {"id": _COUNT, **_ARRAY},
    "rollouts": {
        **dict.fromkeys(("id", "problem", "prompt", "response", "num_tokens", "step", "epoch", "policy_step"), _COUNT),
        "context": _CONTEXT,
        "verdict": _VERDICT,
        "content": _DIGEST,
        "reward": _NUMBER,
        "truncated": _FLAG,
        "finish_reason": _TEXT,
        "reason": _TEXT,
        "entropy_peak": _OR_NULL % _NUMBER,
        "entropy_global": _OR_NULL % _NUMBER,
        "entropy_source": _OR_NULL % _TEXT,
        "samples": _COUNT,
        "reward_sum": _NUMBER,
        "copies": _COUNT,
        "bytes": _COUNT,
        "evicted_at": _OR_NULL % _COUNT,
    },
    "logprobs": {"rollout": _COUNT, "data": _BYTES},
    "trajectories": {"rollout": _COUNT, "digest": _DIGEST, "num_tokens": _COUNT, "prompts": _BYTES, "turns": _BYTES},
}
_META_NUMBERS = ("floor", *(f"usage.{name}" for name in Usage.__dataclass_fields__))


def findings_of_schema(connection: sqlite3.Connection) -> Iterator[str]:
    """Tables and indexes that differ from those of a new store."""

    def described(of: sqlite3.Connection) -> dict[str, tuple[str, str]]:
        rows = of.execute("SELECT name, type, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
        return {name: (kind, " ".join(str(sql).split())) for name, kind, sql in rows}

    fresh = sqlite3.connect(":memory:")
    try:
        schema.create(fresh)
        expected, found = described(fresh), described(connection)
    finally:
        fresh.close()
    expected = {name: value for name, value in expected.items() if name not in _not_yet(connection)}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            state = "is missing" if name not in found else "is not the schema's" if name in expected else "is unknown"
            yield f"the table or index {name} {state}"


def findings_of_values(connection: sqlite3.Connection, *, at_most: int) -> Iterator[str]:
    """Values of another type, and outside the range, of their columns."""
    for table, columns in COLUMNS.items():
        if table in _not_yet(connection):
            continue
        first = next(iter(columns)) if table != "lease" else "id"
        for column, rule in columns.items():
            for key, value in connection.execute(
                f"SELECT {first}, {column} FROM {table} WHERE NOT ({rule.format(column)}) LIMIT {at_most}"
            ):
                yield f"{table}.{column} of {first} {_shown(key)} is {_shown(value)}, which cannot be there"
    for key, value in connection.execute("SELECT key, value FROM meta"):
        if key in _META_NUMBERS:
            if not isinstance(value, int) or not 0 <= value <= MAX_WHOLE:
                yield f"meta.{_shown(key)} is {_shown(value)}, which cannot be there"
        elif key == "limits":
            try:
                HistoryLimits(**json.loads(value))
            except (HistoryError, TypeError, ValueError, RecursionError) as error:
                yield f"meta.limits cannot be read: {error}"
        else:
            yield f"meta holds the unknown key {_shown(key)}"


def _not_yet(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Tables that the file's schema does not have."""
    return (() if has_continuations(connection) else schema.NEW_IN_2) + (
        () if has_trajectories(connection) else schema.NEW_IN_3
    )


def has_continuations(connection: sqlite3.Connection) -> bool:
    """Is the file of a schema that counts the continuations of states?"""
    return connection.execute("PRAGMA user_version").fetchone()[0] >= 2


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
