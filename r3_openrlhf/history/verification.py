"""Is the store what it claims to be? Everything is recomputed from the rows."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from r3_openrlhf.errors import HistoryError
from r3_openrlhf.history.codec import Codec, digest
from r3_openrlhf.history.column_rules import findings_of_schema, findings_of_values, has_continuations
from r3_openrlhf.history.connection import CONTENT_ERRORS, open_for_reading, sentences, snapshot
from r3_openrlhf.history.drafts import CONTEXTS, VERDICTS, content_digest
from r3_openrlhf.history.lease import last_holder
from r3_openrlhf.history.trajectories import has_trajectories, turns_digest, unpack_turns
from r3_openrlhf.history.usage import Usage
from r3_openrlhf.history.witness import FILE_NAME, check_against, read_records

_CHUNK = 256
_MAX_FINDINGS = 20  # of one kind: one lost page can damage thousands of rows

# Each finds the rows that break a rule; the sentence gets the columns in order.
_RULES = [
    (
        "SELECT r.id FROM rollouts r LEFT JOIN problems p ON p.id = r.problem LEFT JOIN prompts q ON q.id = r.prompt "
        "LEFT JOIN responses a ON a.id = r.response LEFT JOIN logprobs l ON l.rollout = r.id "
        "WHERE p.id IS NULL OR q.id IS NULL OR a.id IS NULL OR l.rollout IS NULL",
        "row {0} lacks its problem, prompt, response or log-probs",
    ),
    (
        "SELECT rollout FROM logprobs WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE id = rollout)",
        "log-probs of row {0}, which does not exist",
    ),
    (
        "SELECT id FROM responses a WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE response = a.id)",
        "response {0} belongs to no row",
    ),
    (
        "SELECT id FROM prompts q WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE prompt = q.id)",
        "prompt {0} belongs to no row",
    ),
    (
        "SELECT problem, count(*) FROM rollouts WHERE evicted_at IS NULL GROUP BY problem, content HAVING count(*) > 1",
        "problem {0} has {1} recallable rows of the same content",
    ),
    (
        "SELECT id, step, evicted_at FROM rollouts WHERE evicted_at < step "
        "OR evicted_at > (SELECT max(step) FROM steps) "
        "OR evicted_at <= (SELECT value FROM meta WHERE key = 'floor')",
        "row {0} of step {1} says that step {2} evicted it",
    ),
    (
        "SELECT steps.step, num_rows, count(*) FROM steps JOIN rollouts USING (step) GROUP BY steps.step "
        "HAVING count(*) > num_rows",
        "step {0} wrote {1} rows, {2} are there",
    ),
    (
        "SELECT a.step, b.step FROM steps a JOIN steps b ON b.step = (SELECT min(step) FROM steps WHERE step > a.step) "
        "WHERE a.last_problem > b.last_problem OR a.last_prompt > b.last_prompt "
        "OR a.last_response > b.last_response OR a.last_rollout > b.last_rollout",
        "step {0} gave out larger ids than step {1}, which is later",
    ),
    (
        "SELECT id, step FROM rollouts WHERE step NOT IN (SELECT step FROM steps)",
        "row {0} belongs to step {1}, which was not committed",
    ),
    (
        "SELECT step, count FROM counters_before WHERE step NOT IN (SELECT step FROM steps)",
        "a counter was changed by step {0}, which was not committed",
    ),
    (
        "SELECT id, samples, copies FROM rollouts WHERE samples < 1 OR copies < samples",
        "row {0} stands for {1} samples but counts {2} copies",
    ),
    # Above the floor nothing was removed for good, so a step's rows and its rows-less samples are all there.
    (
        "SELECT s.step, s.num_rollouts, coalesce(r.n, 0) + coalesce(g.n, 0) AS found FROM steps s "
        "LEFT JOIN (SELECT step, sum(samples) AS n FROM rollouts GROUP BY step) r ON r.step = s.step "
        "LEFT JOIN (SELECT step, sum(count) AS n FROM gone GROUP BY step) g ON g.step = s.step "
        "WHERE s.step > coalesce((SELECT value FROM meta WHERE key = 'floor'), -1) AND found != s.num_rollouts",
        "step {0} had {1} rollouts, {2} are accounted for",
    ),
]
_RULES += [
    (
        "SELECT step, num_rollouts, num_ungraded, num_rows, num_unkept FROM steps "
        "WHERE num_ungraded > num_rollouts OR num_rows + num_ungraded + num_unkept > num_rollouts",
        "step {0} says that of {1} rollouts {2} were ungraded, {3} became rows and {4} were not kept",
    ),
    (
        "SELECT (SELECT sum(num_rollouts) FROM steps) AS a, (SELECT sum(count) FROM counters) AS b, "
        "(SELECT sum(num_ungraded) FROM steps) AS c, (SELECT coalesce(sum(count), 0) FROM counters WHERE verdict = 2) AS d "
        "WHERE a != b OR c != d",
        "the steps brought {0} rollouts, {2} of them ungraded; the counters hold {1}, {3} of them ungraded",
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
            f"SELECT max(id), (SELECT {column} FROM steps ORDER BY step DESC LIMIT 1) AS last FROM {table} "
            "HAVING max(id) > coalesce(last, 0)",
            f"the newest step gave out {table} up to {{1}}, but {{0}} is there",
        )
        for table, column in (
            ("problems", "last_problem"),
            ("prompts", "last_prompt"),
            ("responses", "last_response"),
            ("rollouts", "last_rollout"),
        )
    ),
    (
        "SELECT r.id, r.step, s.step FROM rollouts r JOIN steps s ON s.step = (SELECT min(step) FROM steps WHERE "
        "last_rollout >= r.id) WHERE s.step != r.step",
        "row {0} says that it is of step {1}; its id is of step {2}",
    ),
    *(
        (
            f"SELECT c.problem FROM {table} c LEFT JOIN problems p ON p.id = c.problem WHERE p.id IS NULL",
            f"{table} counts for problem {{0}}, which does not exist",
        )
        for table in ("counters", "counters_before", "gone", "prompts", "responses")
    ),
    (
        "SELECT id FROM problems p WHERE NOT EXISTS (SELECT 1 FROM counters WHERE problem = p.id)",
        "problem {0} was never counted",
    ),
    *(
        (
            f"SELECT r.id FROM rollouts r JOIN {table} a ON a.id = r.{column} WHERE a.problem != r.problem",
            f"row {{0}} has the {column} of another problem",
        )
        for table, column in (("prompts", "prompt"), ("responses", "response"))
    ),
    (
        "SELECT r.id, r.num_tokens, a.num_tokens FROM rollouts r JOIN responses a ON a.id = r.response "
        "WHERE a.num_tokens != r.num_tokens",
        "row {0} has {1} tokens, its response {2}",
    ),
    (
        "SELECT id, entropy_peak, entropy_global, entropy_source FROM rollouts WHERE "
        "(entropy_peak IS NULL) + (entropy_global IS NULL) + (entropy_source IS NULL) NOT IN (0, 3)",
        "row {0} has only a part of its entropies: {1}, {2}, {3}",
    ),
    (
        "SELECT id, verdict FROM rollouts WHERE verdict = 2",
        "row {0} is of an ungraded rollout, which is never stored",
    ),
    (
        "SELECT id, reward, reward_sum FROM rollouts WHERE samples = 1 AND reward != reward_sum",
        "row {0} has the reward {1}, the sum of its one sample is {2}",
    ),
    (
        "SELECT problem, reward_sum FROM counters WHERE (verdict = 2 AND reward_sum != 0) OR count < 1",
        "a counter of problem {0} counts nothing, or the reward {1} of ungraded rollouts",
    ),
    (
        "SELECT step, problem FROM gone WHERE count < 1 OR step > (SELECT max(step) FROM steps)",
        "gone counts nothing for step {0} and problem {1}",
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
        "SELECT value, (SELECT max(step) FROM steps) FROM meta WHERE key = 'floor' "
        "AND value > coalesce((SELECT max(step) FROM steps), -1)",
        "the rollback floor {0} lies after the newest step {1}",
    ),
    (
        "SELECT 1 WHERE (SELECT count(*) FROM lease) = 0 AND (SELECT count(*) FROM steps) > 0",
        "nobody ever signed the lease",
    ),
    (
        "SELECT 1 WHERE (SELECT count(*) FROM steps) > 0 AND NOT EXISTS (SELECT 1 FROM meta WHERE key = 'limits')",
        "meta lacks the limits",
    ),
]
_CONTINUATION_RULES = [
    (
        # 2: the context of rollouts that began behind a prefix; 0 and 1: correct and wrong
        "SELECT problem, sum(tries), sum(successes) FROM continuations s GROUP BY problem HAVING sum(tries) > "
        "(SELECT coalesce(sum(count), 0) FROM counters c WHERE c.problem = s.problem AND context = 2 AND verdict < 2) "
        "OR sum(successes) > "
        "(SELECT coalesce(sum(count), 0) FROM counters c WHERE c.problem = s.problem AND context = 2 AND verdict = 0)",
        "the states of problem {0} count {1} continuations and {2} successes, more than were sampled",
    ),
    (
        "SELECT problem, step FROM continuations WHERE successes > tries OR tries < 1 "
        "OR step > (SELECT max(step) FROM steps) OR problem NOT IN (SELECT id FROM problems)",
        "a state of problem {0} has counts of step {1} that cannot be",
    ),
]
_TRAJECTORY_RULES = [
    (
        "SELECT rollout FROM trajectories WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE id = rollout)",
        "turns of row {0}, which does not exist",
    )
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
    """Checks the file's pages, every reference, every counter against a recount, and every stored array.

    Safe while a run writes: the checks of one kind see one state of the store. With a rollback journal the check of
    the file's pages would keep the run from committing for as long as it takes, so it is left out then.
    Raises HistoryError when the file cannot be read at all.
    """
    result = Verification(path=str(path))
    connection = open_for_reading(str(path))
    try:
        with sentences(str(path), "verify"):
            _check_pages(connection, path, result)
            result.findings += findings_of_schema(connection)
            for check in (_count, _check_values, _check_rules, _check_counters, _check_usage, _check_witness):
                with snapshot(connection), _what_it_finds(result, check.__name__):
                    check(connection, result)
            with _what_it_finds(result, "_check_arrays"):
                _check_arrays(connection, result, progress)
    finally:
        connection.close()
    return result


def _check_pages(connection: sqlite3.Connection, path: Path, result: Verification) -> None:
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    holder, life = last_holder(path)
    if journal != "wal" and life != "gone":
        result.skipped.append(f"the file's pages, because {holder} may be writing; run it again when the run is over")
        return
    for (line,) in connection.execute(f"PRAGMA integrity_check({_MAX_FINDINGS})"):
        if line != "ok":
            result.findings.append(line)


@contextmanager
def _what_it_finds(result: Verification, check: str) -> Iterator[None]:
    """A check that damaged content keeps from coming to its end is a finding, and the others still run."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DataError, *CONTENT_ERRORS) as error:
        name = check.removeprefix("_").replace("_", " ")
        result.findings.append(f"{name} could not be finished: {type(error).__name__}: {error}")


def _check_values(connection: sqlite3.Connection, result: Verification) -> None:
    result.findings += findings_of_values(connection, at_most=_MAX_FINDINGS)


def _check_witness(connection: sqlite3.Connection, result: Verification) -> None:
    """Against the newest checkpoint that is not below the floor: what came before it is still there."""
    checkpoints = Path(result.path).parent / "checkpoints"
    records = read_records(checkpoints / FILE_NAME)
    if not records:
        return
    newest = records[-1]
    row = connection.execute("SELECT value FROM meta WHERE key = 'floor'").fetchone()
    if row is not None and newest.step < row[0]:
        return
    why = check_against(connection, records, step=newest.step)
    if why is not None:
        result.findings.append(f"it is not the history of the checkpoint of step {newest.step}: {why}")


def _count(connection: sqlite3.Connection, result: Verification) -> None:
    result.problems, result.steps, result.rows, result.counters = connection.execute(
        "SELECT (SELECT count(*) FROM problems), (SELECT count(*) FROM steps), (SELECT count(*) FROM rollouts), "
        "(SELECT count(*) FROM counters)"
    ).fetchone()


def _check_rules(connection: sqlite3.Connection, result: Verification) -> None:
    rules = _RULES + (_CONTINUATION_RULES if has_continuations(connection) else [])
    rules += _TRAJECTORY_RULES if has_trajectories(connection) else []
    for sql, sentence in rules:
        for row in connection.execute(f"{sql} LIMIT {_MAX_FINDINGS}"):
            result.findings.append(sentence.format(*row))


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
    if has_trajectories(connection):
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
    done = 0
    for row, context, verdict, num_tokens, content, prompt_digest, response_digest, ids, logprobs in _chunks(
        connection,
        "SELECT r.id, r.context, r.verdict, r.num_tokens, r.content, q.digest, a.digest, a.ids, l.data "
        "FROM rollouts r JOIN prompts q ON q.id = r.prompt JOIN responses a ON a.id = r.response "
        "JOIN logprobs l ON l.rollout = r.id WHERE r.id > ? ORDER BY r.id LIMIT ?",
    ):
        _check_array(codec, findings, f"response of row {row}", ids, np.int32, num_tokens, response_digest)
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
    for step, packed in _chunks(
        connection, "SELECT step, state FROM steps WHERE step > ? AND state IS NOT NULL ORDER BY step LIMIT ?"
    ):
        try:
            codec.unpack_json(packed)
        except (HistoryError, RecursionError, *CONTENT_ERRORS) as error:
            findings.append(f"state of step {step}: {error}")
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
) -> None:
    try:
        array = codec.unpack(packed, dtype, length=num_tokens)
    except (HistoryError, MemoryError, *CONTENT_ERRORS) as error:
        findings.append(f"{name}: {error}")
        return
    if stored_digest is not None and digest(array.tobytes()) != stored_digest:
        findings.append(f"{name} is not what its hash names")
