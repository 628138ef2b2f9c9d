"""Check the store's invariants. SQLite checks pages, types, ranges and references; here is what only we can know: that counters
agree with the rows, and that every array decodes to what its hash names."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history import schema
from r3_openrlhf.method.history.codec import Codec, digest, state_digest
from r3_openrlhf.method.history.connection import CONTENT_ERRORS, reading, snapshot
from r3_openrlhf.method.history.drafts import CONTEXTS, VERDICTS, content_digest
from r3_openrlhf.method.history.lease import last_holder
from r3_openrlhf.method.history.store import lock_of
from r3_openrlhf.method.history.trajectories import turns_digest, unpack_turns
from r3_openrlhf.method.history.usage import Usage
from r3_openrlhf.runs.history_witness import FILE_NAME, check_against, read_records

_CHUNK = 256
_MAX_FINDINGS = 20  # of one kind: one lost page can damage thousands of rows

# Each finds the rows that break a rule; the sentence gets the columns in order.
_RULES = [
    (
        "SELECT r.id FROM rollouts r LEFT JOIN logprobs l ON l.rollout = r.id WHERE l.rollout IS NULL",
        "row {0} lacks its log-probs",
    ),
    *(
        (
            f"SELECT id FROM {column}s a WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE {column} = a.id)",
            f"{column} {{0}} belongs to no row",
        )
        for column in ("prompt", "response")
    ),
    *(
        (
            f"SELECT r.id FROM rollouts r JOIN {column}s a ON a.id = r.{column} WHERE a.problem != r.problem",
            f"row {{0}} has the {column} of another problem",
        )
        for column in ("prompt", "response")
    ),
    (
        "SELECT r.id, r.num_tokens, a.num_tokens FROM rollouts r JOIN responses a ON a.id = r.response "
        "WHERE a.num_tokens != r.num_tokens",
        "row {0} has {1} tokens, its response {2}",
    ),
    (
        "SELECT problem, count(*) FROM rollouts WHERE evicted_at IS NULL GROUP BY problem, content HAVING count(*) > 1",
        "problem {0} has {1} recallable rows of the same content",
    ),
    (
        "SELECT id, step, evicted_at FROM rollouts WHERE evicted_at > (SELECT max(step) FROM steps) "
        "OR evicted_at <= (SELECT value FROM meta WHERE key = 'floor')",
        "row {0} of step {1} says that step {2} evicted it",
    ),
    # Ids tell which step a row is of: a roll-back goes by them.
    (
        "SELECT r.id, r.step, s.step FROM rollouts r JOIN steps s ON s.step = (SELECT min(step) FROM steps WHERE "
        "last_rollout >= r.id) WHERE s.step != r.step",
        "row {0} says that it is of step {1}; its id is of step {2}",
    ),
    (
        "SELECT step FROM (SELECT step, "
        "last_problem < lag(last_problem, 1, 0) OVER w OR last_prompt < lag(last_prompt, 1, 0) OVER w OR "
        "last_response < lag(last_response, 1, 0) OVER w OR last_rollout < lag(last_rollout, 1, 0) OVER w OR "
        "epoch < lag(epoch, 1, 0) OVER w AS back FROM steps WINDOW w AS (ORDER BY step)) WHERE back",
        "step {0} has a smaller epoch or id than the step before it",
    ),
    *(
        (
            f"SELECT max(id), (SELECT last_{column} FROM steps ORDER BY step DESC LIMIT 1) AS last FROM {column}s "
            "HAVING max(id) > coalesce(last, 0)",
            f"the newest step gave out {column}s up to {{1}}, but {{0}} is there",
        )
        for column in ("problem", "prompt", "response", "rollout")
    ),
    # Above the floor nothing was removed for good, so a step's rows and its rows-less samples are all there.
    (
        "SELECT s.step, s.num_rollouts, coalesce(r.n, 0) + coalesce(g.n, 0) AS found FROM steps s "
        "LEFT JOIN (SELECT step, sum(samples) AS n FROM rollouts GROUP BY step) r ON r.step = s.step "
        "LEFT JOIN (SELECT step, sum(count) AS n FROM gone GROUP BY step) g ON g.step = s.step "
        "WHERE s.step > coalesce((SELECT value FROM meta WHERE key = 'floor'), -1) AND found != s.num_rollouts",
        "step {0} had {1} rollouts, {2} are accounted for",
    ),
    (
        "SELECT steps.step, num_rows, count(*) FROM steps JOIN rollouts USING (step) GROUP BY steps.step "
        "HAVING count(*) > num_rows",
        "step {0} wrote {1} rows, {2} are there",
    ),
    (
        "SELECT (SELECT sum(num_rollouts) FROM steps) AS a, (SELECT sum(count) FROM counters) AS b, "
        "(SELECT sum(num_ungraded) FROM steps) AS c, (SELECT coalesce(sum(count), 0) FROM counters WHERE verdict = 2) AS d "
        "WHERE a != b OR c != d",
        "the steps brought {0} rollouts, {2} of them ungraded; the counters hold {1}, {3} of them ungraded",
    ),
    (
        "SELECT id FROM problems p WHERE NOT EXISTS (SELECT 1 FROM counters WHERE problem = p.id)",
        "problem {0} was never counted",
    ),
    (
        # What a counter was before a step is what it is now, less what the steps from then on counted.
        "SELECT step, problem FROM (SELECT b.*, lead(b.count) OVER w AS next_count, lead(b.reward_sum) OVER w AS next_sum "
        "FROM counters_before b WINDOW w AS (PARTITION BY problem, context, verdict ORDER BY step)) x "
        "JOIN counters c USING (problem, context, verdict) "
        "WHERE x.count >= coalesce(next_count, c.count) OR x.reward_sum > coalesce(next_sum, c.reward_sum) + 1e-9 "
        "AND c.reward_sum >= 0 AND c.verdict != 1",
        "what a counter of problem {1} was before step {0} is more than what it is now",
    ),
    (
        # 2: the context of rollouts that began with a prefix; 0 and 1: correct and wrong
        "SELECT problem, sum(tries), sum(successes) FROM continuations s GROUP BY problem HAVING sum(tries) > "
        "(SELECT coalesce(sum(count), 0) FROM counters c WHERE c.problem = s.problem AND context = 2 AND verdict < 2) "
        "OR sum(successes) > "
        "(SELECT coalesce(sum(count), 0) FROM counters c WHERE c.problem = s.problem AND context = 2 AND verdict = 0)",
        "the states of problem {0} count {1} continuations and {2} successes, more than were sampled",
    ),
    (
        "SELECT s.rollout, s.num_tokens FROM states s LEFT JOIN rollouts r ON r.id = s.rollout "
        "WHERE r.id IS NULL OR r.verdict != 1 OR s.num_tokens >= r.num_tokens",
        "row {0} has a state of {1} tokens, but is no longer failed response",
    ),
    (
        "SELECT value FROM meta WHERE key = 'floor' AND value > coalesce((SELECT max(step) FROM steps), -1)",
        "the rollback floor {0} is after the newest step",
    ),
]
_RECOUNT = (
    "SELECT problem, context, verdict, samples, reward_sum FROM rollouts UNION ALL "
    "SELECT problem, context, verdict, count, reward_sum FROM gone"
)


@dataclass(slots=True)
class Verification:
    """What was checked, and what is wrong. `skipped` holds sentences about checks that could not run."""

    path: str
    problems: int = 0
    steps: int = 0
    rows: int = 0
    counters: int = 0
    findings: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing is wrong; a check that could not run is not wrong."""
        return not self.findings


def verify(path: Path, *, progress: Callable[[int, int], None] = lambda done, total: None) -> Verification:
    """Has SQLite check the file, every counter against a recount, and every stored array against its hash.

    Safe while a run writes: the checks of one kind see one state of the store. SQLite's check of the whole file would keep the
    run from committing for as long as it takes, so it is left out then.
    Raises HistoryError when the file cannot be read at all.
    """
    result = Verification(path=str(path))
    with reading(path, "verify") as connection:
        holder, lives = last_holder(lock_of(path))
        if lives:
            result.skipped.append(
                f"the file's pages, types and ranges, because {holder} may be writing; run it again when the run is over"
            )
        else:
            _check_file(connection, result)
        for check in (_check_schema, _check_references, _check_rules, _check_counters, _check_usage, _check_witness):
            with snapshot(connection), _what_it_finds(result, check.__name__):
                check(connection, result)
        with _what_it_finds(result, "_check_arrays"):
            _check_arrays(connection, result, progress)
    return result


@contextmanager
def _what_it_finds(result: Verification, check: str) -> Iterator[None]:
    """A check that damaged content keeps from coming to its end is a finding, and the others still run."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DataError, *CONTENT_ERRORS) as error:
        name = check.removeprefix("_").replace("_", " ")
        result.findings.append(f"{name} could not be finished: {type(error).__name__}: {error}")


def _check_file(connection: sqlite3.Connection, result: Verification) -> None:
    result.findings += [
        line for (line,) in connection.execute(f"PRAGMA integrity_check({_MAX_FINDINGS})") if line != "ok"
    ]


def _check_schema(connection: sqlite3.Connection, result: Verification) -> None:
    """Tables and indexes are those of a new store."""

    def described(of: sqlite3.Connection) -> dict[str, str]:
        return dict(of.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))

    fresh = sqlite3.connect(":memory:")
    try:
        schema.create(fresh)
        expected, found = described(fresh), described(connection)
    finally:
        fresh.close()
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            state = "is missing" if name not in found else "is not the schema's" if name in expected else "is unknown"
            result.findings.append(f"the table or index {name} {state}")


def _check_references(connection: sqlite3.Connection, result: Verification) -> None:
    broken = connection.execute("PRAGMA foreign_key_check").fetchmany(_MAX_FINDINGS)
    result.findings += [
        f"{table}{'' if row is None else f', row {row},'} refers to {parent} that are not there"
        for table, row, parent, _ in broken
    ]


def _check_witness(connection: sqlite3.Connection, result: Verification) -> None:
    """Against the newest checkpoint that is not below the floor: what came before it is still there."""
    records = read_records(Path(result.path).parent / "checkpoints" / FILE_NAME)
    if not records:
        return
    newest = records[-1]
    row = connection.execute("SELECT value FROM meta WHERE key = 'floor'").fetchone()
    if row is not None and newest.step < row[0]:
        return
    why = check_against(connection, records, step=newest.step)
    if why is not None:
        result.findings.append(f"it is not the history of the checkpoint of step {newest.step}: {why}")


def _check_rules(connection: sqlite3.Connection, result: Verification) -> None:
    result.problems, result.steps, result.rows, result.counters = (
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("problems", "steps", "rollouts", "counters")
    )
    for sql, sentence in _RULES:
        result.findings += [sentence.format(*row) for row in connection.execute(sql).fetchmany(_MAX_FINDINGS)]


def _check_counters(connection: sqlite3.Connection, result: Verification) -> None:
    """counters = rows + gone."""

    def by_key(sql: str) -> dict[tuple[int, int, int], tuple[int, float]]:
        return {row[:3]: row[3:] for row in connection.execute(sql)}

    recounted = by_key(
        f"SELECT problem, context, verdict, sum(samples), sum(reward_sum) FROM ({_RECOUNT}) "
        "GROUP BY problem, context, verdict"
    )
    stored = by_key("SELECT problem, context, verdict, count, reward_sum FROM counters")
    wrong = [
        key
        for key in sorted(recounted.keys() | stored.keys())
        if not _agree(recounted.get(key, (0, 0.0)), stored.get(key, (0, 0.0)))
    ]
    for problem, context, verdict in wrong[:_MAX_FINDINGS]:
        uid = connection.execute("SELECT uid FROM problems WHERE id = ?", (problem,)).fetchone()
        key = problem, context, verdict
        result.findings.append(
            f"problem {uid[0] if uid else problem} counts {stored.get(key, (0, 0.0))} {_name(CONTEXTS, context)} "
            f"{_name(VERDICTS, verdict)} rollouts and rewards; its rows give {recounted.get(key, (0, 0.0))}"
        )


def _name(names: Mapping[Any, Any], code: object) -> str:
    return names[code].value if code in names else f"(code {code!r})"


def _agree(recounted: tuple[int, float], stored: tuple[int, float]) -> bool:
    """Counts are equal; sums of rewards were added in another order, so they are equal up to rounding."""
    return recounted[0] == stored[0] and math.isclose(recounted[1], stored[1], rel_tol=1e-9, abs_tol=1e-9)


def _check_usage(connection: sqlite3.Connection, result: Verification) -> None:
    stored, recounted = Usage.load(connection), Usage.recount(connection)
    if stored != recounted:
        result.findings.append(f"the byte count is {stored}, the rows give {recounted}")


def _check_arrays(connection: sqlite3.Connection, result: Verification, progress: Callable[[int, int], None]) -> None:
    """Decompresses everything. In chunks: a run that writes meanwhile waits for one chunk at most."""
    codec = Codec()
    findings: list[str] = []
    for prompt, stored_digest, num_tokens, packed in _chunks(
        connection, "SELECT id, digest, num_tokens, ids FROM prompts WHERE id > ? ORDER BY id LIMIT ?"
    ):
        _check_array(codec, findings, f"prompt {prompt}", packed, np.int32, num_tokens, stored_digest)
    of_turns: dict[int, bytes] = {}
    for row, stored_digest, num_tokens, prompts, turns in _chunks(
        connection,
        "SELECT rollout, digest, num_tokens, prompts, turns FROM trajectories WHERE rollout > ? ORDER BY rollout LIMIT ?",
    ):
        of_turns[row] = stored_digest
        try:
            found = turns_digest(*unpack_turns(codec, num_tokens, prompts, turns))
        except (HistoryError, MemoryError, *CONTENT_ERRORS) as error:
            findings.append(f"turns of row {row}: {error}")
            continue
        if found != stored_digest:
            findings.append(f"the turns of row {row} are not what their hash names")
    states = {row: of_row for row, *of_row in connection.execute("SELECT rollout, num_tokens, state FROM states")}
    done = 0
    for row, context, verdict, num_tokens, content, prompt_digest, response_digest, ids, logprobs in _chunks(
        connection,
        "SELECT r.id, r.context, r.verdict, r.num_tokens, r.content, q.digest, a.digest, a.ids, l.data "
        "FROM rollouts r JOIN prompts q ON q.id = r.prompt JOIN responses a ON a.id = r.response "
        "JOIN logprobs l ON l.rollout = r.id WHERE r.id > ? ORDER BY r.id LIMIT ?",
    ):
        response = _check_array(codec, findings, f"response of row {row}", ids, np.int32, num_tokens, response_digest)
        cut, named = states.get(row, (0, None))
        if response is not None and cut and state_digest(response[:cut]) != named:
            findings.append(f"the state of row {row} is not what its hash names")
        _check_array(codec, findings, f"log-probs of row {row}", logprobs, np.float32, num_tokens, None)
        known = (
            context in CONTEXTS
            and verdict in VERDICTS
            and all(type(d) is bytes for d in (prompt_digest, response_digest, of_turns.get(row, b"")))
        )
        if not known or content != content_digest(
            CONTEXTS[context], prompt_digest, response_digest, VERDICTS[verdict], of_turns.get(row)
        ):
            findings.append(f"row {row} is not the content that its hash names")
        done += 1
        if done % _CHUNK == 0:
            progress(done, result.rows)
    result.findings += findings[:_MAX_FINDINGS]
    if len(findings) > _MAX_FINDINGS:
        result.findings.append(f"and {len(findings) - _MAX_FINDINGS} more arrays")


def _chunks(connection: sqlite3.Connection, sql: str) -> Iterator[tuple[Any, ...]]:
    after = -1
    while rows := connection.execute(sql, (after, _CHUNK)).fetchall():
        yield from rows
        after = rows[-1][0]


def _check_array(
    codec: Codec,
    findings: list[str],
    name: str,
    packed: bytes,
    dtype: type,
    num_tokens: int,
    stored_digest: bytes | None,
) -> np.ndarray | None:
    """The array; None, with a finding, where it cannot be read."""
    try:
        array = codec.unpack(packed, dtype, length=num_tokens)
    except (HistoryError, MemoryError, *CONTENT_ERRORS) as error:
        findings.append(f"{name}: {error}")
        return None
    if stored_digest is not None and digest(array.tobytes()) != stored_digest:
        findings.append(f"{name} is not what its hash names")
    return array
