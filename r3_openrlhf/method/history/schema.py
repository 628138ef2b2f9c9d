"""Tables of the store.

A row is written once. What changes later (evicted, or replaced by a newer sample of the same
response) is the single column `evicted_at`, so that undoing everything after step s means: delete
rows of later steps, clear later `evicted_at`, put back the counters that `counters_before` kept.
Rows are removed for good only when the rollback floor has passed their `evicted_at`.

SQLite checks types and ranges at each write, and in `PRAGMA integrity_check`; references only in
`PRAGMA foreign_key_check`, because a step's rows are written before the step.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from r3_openrlhf.method.history.codec import DIGEST_BYTES

APPLICATION_ID = 0x52334853  # "R3HS", in the file's header
SCHEMA_VERSION = 8
MAX_WHOLE = 2**53  # what every reader of the file, JSON included, takes for the number that it is


def _whole(*names: str, low: int = 0, high: int = MAX_WHOLE) -> str:
    return ", ".join(f"{name} INTEGER NOT NULL CHECK ({name} BETWEEN {low} AND {high})" for name in names)


def _number(name: str) -> str:
    return f"{name} REAL NOT NULL CHECK (abs({name}) < 1e308)"


def _digest(name: str) -> str:
    return f"{name} BLOB NOT NULL CHECK (length({name}) = {DIGEST_BYTES})"


_PROBLEM = "problem INTEGER NOT NULL REFERENCES problems"
_KEY = f"{_PROBLEM}, {_whole('context', high=4)}, {_whole('verdict', high=2)}"
_ARRAY = f"id INTEGER PRIMARY KEY, {_PROBLEM}, {_digest('digest')}, {_whole('num_tokens')}, ids BLOB NOT NULL"
_REWARDS = f"{_number('reward_sum')}, CHECK (verdict < 2 OR reward_sum = 0)"  # verdict 2: ungraded

_TABLES = f"""
-- keys: floor, usage.*
CREATE TABLE meta (key TEXT PRIMARY KEY, {_whole("value")}) STRICT, WITHOUT ROWID;
CREATE TABLE steps (
    step INTEGER PRIMARY KEY CHECK (step >= 0), {_whole("epoch")},
    {_whole("num_rollouts")},  -- all that the step sampled
    {_whole("num_ungraded")},
    {_whole("num_rows")},      -- rows written
    {_whole("num_unkept")},    -- rollouts that left at once: counted, no row written
    {_whole("bytes")},         -- of the rows it brought, those included that found no room
    -- The largest ids that were given out by then. Ids are never given out twice, so everything later is larger.
    {_whole("last_problem", "last_prompt", "last_response", "last_rollout")},
    {_number("committed_at")},     -- seconds since 1970, for people
    CHECK (num_rows + num_ungraded + num_unkept <= num_rollouts)) STRICT;
CREATE TABLE problems (id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE) STRICT;
-- Everything ever committed, per problem, context and verdict. Never evicted.
CREATE TABLE counters (
    {_KEY}, {_whole("count", low=1)}, {_REWARDS}, PRIMARY KEY (problem, context, verdict)) STRICT, WITHOUT ROWID;
-- What a counter was before `step` changed it; count 0: it did not exist.
CREATE TABLE counters_before (
    step INTEGER NOT NULL REFERENCES steps, {_KEY}, {_whole("count")}, {_REWARDS},
    PRIMARY KEY (step, problem, context, verdict)) STRICT, WITHOUT ROWID;
-- Rollouts that are in `counters` but have no row any more, by the step that let them go (-1: below the floor).
-- counters = rows + gone, always: that is what `verify` recounts.
CREATE TABLE gone (
    {_whole("step", low=-1)}, {_KEY}, {_whole("count", low=1)}, {_REWARDS},
    PRIMARY KEY (step, problem, context, verdict)) STRICT, WITHOUT ROWID;
-- Graded continuations of a state, a prefix of a stored response, by the step that sampled them (-1: below the floor).
CREATE TABLE continuations (
    {_PROBLEM}, {_digest("state")},  -- of the prefix's token ids
    {_whole("step", low=-1)}, {_whole("tries", low=1)}, {_whole("successes")}, CHECK (successes <= tries),
    PRIMARY KEY (problem, state, step)) STRICT, WITHOUT ROWID;
CREATE TABLE prompts ({_ARRAY}, UNIQUE (problem, digest)) STRICT;
CREATE TABLE responses ({_ARRAY}, UNIQUE (problem, digest)) STRICT;
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, {_PROBLEM}, {_whole("context", high=4)}, {_whole("verdict", high=1)},
    prompt INTEGER NOT NULL REFERENCES prompts, response INTEGER NOT NULL REFERENCES responses,
    {_whole("num_tokens")},
    {_digest("content")},        -- of context, prompt, response, verdict: what makes a duplicate
    step INTEGER NOT NULL REFERENCES steps, {_whole("epoch", "policy_step")},
    {_number("reward")}, {_whole("truncated", high=1)}, finish_reason TEXT NOT NULL, reason TEXT NOT NULL,
    entropy_peak REAL, entropy_global REAL, entropy_source TEXT,
    {_whole("samples", low=1)},     -- rollouts of this step with this content, and the sum of their rewards
    {_number("reward_sum")},
    {_whole("copies", low=1)},      -- samples of this and of the rows that it replaced
    {_whole("bytes")},       -- towards the byte cap
    evicted_at INTEGER,
    origin TEXT NOT NULL,    -- of an imported row (context 3), else ''
    CHECK ((context = 3) = (origin != '')),
    CHECK (copies >= samples AND (samples > 1 OR reward = reward_sum)),
    CHECK ((entropy_peak IS NULL) + (entropy_global IS NULL) + (entropy_source IS NULL) IN (0, 3)),
    CHECK (entropy_peak IS NULL OR (abs(entropy_peak) < 1e308 AND abs(entropy_global) < 1e308)),
    CHECK (evicted_at IS NULL OR evicted_at BETWEEN step AND {MAX_WHOLE})) STRICT;
-- Apart from `rollouts`, so that a walk over the rows reads no log-probs. NULL: an imported row's are not known.
-- given: JSON of the runs [begin, end] of tokens that were not sampled; NULL: there are none.
CREATE TABLE logprobs (rollout INTEGER PRIMARY KEY REFERENCES rollouts, data BLOB, given TEXT) STRICT;
-- The turns of the rows that are whole trajectories. Their responses, in a row, are the row's.
CREATE TABLE trajectories (
    rollout INTEGER PRIMARY KEY REFERENCES rollouts, {_digest("digest")}, turns BLOB NOT NULL) STRICT;
-- Where a critic's values say that a failed response may be continued, since which step.
CREATE TABLE states (
    rollout INTEGER NOT NULL REFERENCES rollouts, {_whole("num_tokens", low=1)},
    {_digest("state")},  -- as in `continuations`
    {_number("value")}, {_whole("first_step")}, PRIMARY KEY (rollout, num_tokens)) STRICT, WITHOUT ROWID;
CREATE INDEX rollouts_live ON rollouts (problem, verdict, context, policy_step, step, content)
    WHERE evicted_at IS NULL;
CREATE INDEX rollouts_evicted ON rollouts (evicted_at) WHERE evicted_at IS NOT NULL;
CREATE INDEX rollouts_response ON rollouts (response);
CREATE INDEX rollouts_prompt ON rollouts (prompt);
"""


def differences(connection: sqlite3.Connection) -> list[str]:
    """Name each table and index that is not a new store's, and what a store must not have: views,
    triggers and virtual tables run an author's code."""
    query = "SELECT type || ' ' || name, sql FROM sqlite_schema"
    with closing(sqlite3.connect(":memory:")) as fresh:
        create(fresh)
        expected, present = dict(fresh.execute(query)), dict(connection.execute(query))
    changed = sorted({name for name, _ in expected.items() ^ present.items()}, reverse=True)
    return [f"the {name} is {'of another kind' if name in present else 'missing'}" for name in changed]


def create(connection: sqlite3.Connection) -> None:
    """Write the tables into an empty file, inside the transaction that is open."""
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
