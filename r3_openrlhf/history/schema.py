"""Tables of the store, and how an older file becomes a current one.

A row is written once. What changes later (evicted, or replaced by a newer sample of the same response) is the single
column `evicted_at`, so that undoing everything after step s means: delete rows of later steps, clear later
`evicted_at`, put back the counters that `counters_before` kept. Rows are removed for good only when the rollback
floor has passed their `evicted_at`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

APPLICATION_ID = 0x52334853  # "R3HS", in the file's header
SCHEMA_VERSION = 3
READABLE = (1, 2, 3)  # a reader can do without what came later

_CONTINUATIONS = """
-- Graded continuations of a state, a prefix of a stored response, by the step that sampled them (-1: below the floor).
CREATE TABLE continuations (
    problem INTEGER NOT NULL, state BLOB NOT NULL,  -- digest of the prefix's token ids
    step INTEGER NOT NULL, tries INTEGER NOT NULL, successes INTEGER NOT NULL,
    PRIMARY KEY (problem, state, step)) WITHOUT ROWID;
"""

_TRAJECTORIES = """
-- The turns of the rows that are whole trajectories. Their responses, one behind the other, are the row's.
CREATE TABLE trajectories (
    rollout INTEGER PRIMARY KEY, digest BLOB NOT NULL,
    num_tokens INTEGER NOT NULL,  -- of the prompts of all turns
    prompts BLOB NOT NULL, turns BLOB NOT NULL);
"""

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
-- One row: who may write. The token fences off a writer that was taken for dead and came back.
CREATE TABLE lease (
    id INTEGER PRIMARY KEY CHECK (id = 1), token TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    since TEXT NOT NULL);
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,
    num_rollouts INTEGER NOT NULL,  -- all that the step sampled
    num_ungraded INTEGER NOT NULL,
    num_rows INTEGER NOT NULL,      -- rows written
    num_unkept INTEGER NOT NULL,    -- rollouts that left at once: counted, no row written
    bytes INTEGER NOT NULL,         -- of the rows it brought, those included that found no room
    -- The largest ids that were given out by then. Ids are never given out twice, so everything later is larger.
    last_problem INTEGER NOT NULL, last_prompt INTEGER NOT NULL, last_response INTEGER NOT NULL,
    last_rollout INTEGER NOT NULL,
    committed_at REAL NOT NULL,     -- seconds since 1970, for people
    state BLOB);
CREATE TABLE problems (id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE);
-- Everything ever committed, per problem, context and verdict. Never evicted.
CREATE TABLE counters (
    problem INTEGER NOT NULL, context INTEGER NOT NULL, verdict INTEGER NOT NULL,
    count INTEGER NOT NULL, reward_sum REAL NOT NULL,
    PRIMARY KEY (problem, context, verdict)) WITHOUT ROWID;
-- What a counter was before `step` changed it; count 0: it did not exist.
CREATE TABLE counters_before (
    step INTEGER NOT NULL, problem INTEGER NOT NULL, context INTEGER NOT NULL, verdict INTEGER NOT NULL,
    count INTEGER NOT NULL, reward_sum REAL NOT NULL,
    PRIMARY KEY (step, problem, context, verdict)) WITHOUT ROWID;
-- Rollouts that are in `counters` but have no row any more, by the step that let them go (-1: below the floor).
-- counters = rows + gone, always: that is what `verify` recounts.
CREATE TABLE gone (
    step INTEGER NOT NULL, problem INTEGER NOT NULL, context INTEGER NOT NULL, verdict INTEGER NOT NULL,
    count INTEGER NOT NULL, reward_sum REAL NOT NULL,
    PRIMARY KEY (step, problem, context, verdict)) WITHOUT ROWID;
CREATE TABLE prompts (
    id INTEGER PRIMARY KEY, problem INTEGER NOT NULL, digest BLOB NOT NULL, num_tokens INTEGER NOT NULL,
    ids BLOB NOT NULL, UNIQUE (problem, digest));
CREATE TABLE responses (
    id INTEGER PRIMARY KEY, problem INTEGER NOT NULL, digest BLOB NOT NULL, num_tokens INTEGER NOT NULL,
    ids BLOB NOT NULL, UNIQUE (problem, digest));
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, problem INTEGER NOT NULL, context INTEGER NOT NULL, verdict INTEGER NOT NULL,
    prompt INTEGER NOT NULL, response INTEGER NOT NULL, num_tokens INTEGER NOT NULL,
    content BLOB NOT NULL,        -- digest of context, prompt, response, verdict: what makes a duplicate
    step INTEGER NOT NULL, epoch INTEGER NOT NULL, policy_step INTEGER NOT NULL,
    reward REAL NOT NULL, truncated INTEGER NOT NULL, finish_reason TEXT NOT NULL, reason TEXT NOT NULL,
    entropy_peak REAL, entropy_global REAL, entropy_source TEXT,
    samples INTEGER NOT NULL,     -- rollouts of this step with this content, and the sum of their rewards
    reward_sum REAL NOT NULL,
    copies INTEGER NOT NULL,      -- samples of this and of the rows that it replaced
    bytes INTEGER NOT NULL,       -- towards the byte cap
    evicted_at INTEGER);
-- Beside `rollouts`, so that a walk over the rows reads no log-probs.
CREATE TABLE logprobs (rollout INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE INDEX rollouts_live ON rollouts (problem, verdict, context, policy_step, step, content)
    WHERE evicted_at IS NULL;
CREATE INDEX rollouts_evicted ON rollouts (evicted_at) WHERE evicted_at IS NOT NULL;
CREATE INDEX rollouts_age ON rollouts (step, content, bytes) WHERE evicted_at IS NULL;
CREATE INDEX rollouts_response ON rollouts (response);
CREATE INDEX rollouts_prompt ON rollouts (prompt);
"""
NEW_IN_2 = ("continuations",)
NEW_IN_3 = ("trajectories",)


def create(connection: sqlite3.Connection) -> None:
    """Writes the current schema into an empty file, inside the transaction that is open."""
    _execute(connection, _TABLES + _CONTINUATIONS + _TRAJECTORIES)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _execute(connection: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";\n"):
        if statement.strip():
            connection.execute(statement)


# MIGRATIONS[n] turns a file of schema n into one of schema n + 1, inside one transaction.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: lambda connection: _execute(connection, _CONTINUATIONS),
    2: lambda connection: _execute(connection, _TRAJECTORIES),
}


def migrate(connection: sqlite3.Connection, *, version: int, to: int) -> None:
    """Brings a file from `version` up to `to`, inside the transaction that is open."""
    for at in range(version, to):
        MIGRATIONS[at](connection)
    connection.execute(f"PRAGMA user_version = {to}")
