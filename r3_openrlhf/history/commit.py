"""Writing one step: which rows come, which leave, what the counters become. Runs inside the store's transaction."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from r3_openrlhf.history.codec import Codec
from r3_openrlhf.history.drafts import CONTEXT_CODES, CONTEXTS, VERDICT_CODES, VERDICTS, Draft
from r3_openrlhf.history.eviction import Candidate, rows_to_evict
from r3_openrlhf.history.records import HistoryLimits
from r3_openrlhf.history.usage import PROBLEM_BYTES, Usage, blob_bytes, row_bytes
from r3_openrlhf.types import Rollout, Verdict

_BATCH = 256  # rows fetched at a time when the byte cap asks for evictions


@dataclass(slots=True)
class _Ids:
    """The largest ids given out so far."""

    problem: int
    prompt: int
    response: int
    rollout: int


def write_step(
    connection: sqlite3.Connection,
    codec: Codec,
    *,
    step: int,
    epoch: int,
    drafts: Sequence[Draft],
    ungraded: Sequence[Rollout],
    state: bytes | None,
    limits: HistoryLimits,
    seed: int,
    sweep: bool,
) -> None:
    """Adds a step. `drafts` come ordered by uid, verdict, context; `sweep`: enforce the caps on every problem."""
    ids = _last_ids(connection)
    usage = Usage.load(connection)
    usage.states += blob_bytes(len(state)) if state else 0
    gone: dict[tuple[int, int, int], list[float]] = {}  # samples without a row, by problem, context, verdict
    counted: dict[tuple[int, int, int], list[float]] = {}

    problems = _problem_ids(connection, ids, usage, [*(d.rollout.uid for d in drafts), *(r.uid for r in ungraded)])
    for rollout in ungraded:
        key = problems[rollout.uid], CONTEXT_CODES[rollout.context], VERDICT_CODES[Verdict.UNGRADED]
        counted.setdefault(key, []).append(0.0)
        gone.setdefault(key, []).append(0.0)

    num_rows = num_unkept = arrived = 0
    touched: set[tuple[int, int]] = set()
    for (uid, verdict), members in groupby(drafts, key=lambda draft: (draft.rollout.uid, draft.rollout.verdict)):
        problem, bucket = problems[uid], list(members)
        touched.add((problem, VERDICT_CODES[verdict]))
        live = _live_rows(connection, problem, VERDICT_CODES[verdict])
        replaced = {draft.content: live.pop(draft.content) for draft in bucket if draft.content in live}
        for row in replaced.values():
            _evict(connection, usage, row.candidate.row, row.bytes, step)
        candidates = [row.candidate for row in live.values()]
        candidates += [
            Candidate(None, draft.rollout.context, step, len(draft.response_ids), draft.content) for draft in bucket
        ]
        leaving = rows_to_evict(
            candidates, cap=limits.max_per_problem_and_verdict, policy=limits.eviction, verdict=verdict, seed=seed
        )
        refused = {candidate.content for candidate in leaving if candidate.row is None}
        for candidate in leaving:
            if candidate.row is not None:
                _evict(connection, usage, candidate.row, live[candidate.content].bytes, step)
        for draft in bucket:
            key = problem, CONTEXT_CODES[draft.rollout.context], VERDICT_CODES[verdict]
            counted.setdefault(key, []).extend([draft.reward_sum] + [0.0] * (draft.samples - 1))
            copies = draft.samples + (replaced[draft.content].copies if draft.content in replaced else 0)
            kept = False
            if draft.content not in refused:
                size, kept = _insert(
                    connection, codec, ids, usage, draft, problem=problem, step=step, copies=copies, limits=limits
                )
                arrived += size
            if kept:
                num_rows += 1
            else:
                gone.setdefault(key, []).extend([draft.reward_sum] + [0.0] * (draft.samples - 1))
                num_unkept += draft.samples

    if sweep:
        _sweep(connection, usage, step, limits, seed, skip=touched)
    _make_room(connection, usage, step, limits, arrived=Usage.arrived_since_floor(connection) + arrived)
    _count(connection, step, counted)
    connection.executemany(
        "INSERT INTO gone VALUES (?, ?, ?, ?, ?, ?)",
        [(step, *key, len(rewards), math.fsum(rewards)) for key, rewards in sorted(gone.items())],
    )
    connection.execute(
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            step,
            epoch,
            sum(draft.samples for draft in drafts) + len(ungraded),
            len(ungraded),
            num_rows,
            num_unkept,
            arrived,
            ids.problem,
            ids.prompt,
            ids.response,
            ids.rollout,
            time.time(),
            state,
        ),
    )
    usage.save(connection)
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('limits', ?)", (json.dumps(asdict(limits)),))


@dataclass(frozen=True, slots=True)
class _Row:
    candidate: Candidate
    copies: int
    bytes: int


def _live_rows(connection: sqlite3.Connection, problem: int, verdict: int) -> dict[bytes, _Row]:
    """Recallable rows of one problem and verdict, by content."""
    rows = connection.execute(
        "SELECT id, context, step, num_tokens, content, copies, bytes FROM rollouts "
        "WHERE problem = ? AND verdict = ? AND evicted_at IS NULL",
        (problem, verdict),
    )
    return {
        content: _Row(Candidate(row, CONTEXTS[context], step, num_tokens, content), copies, size)
        for row, context, step, num_tokens, content, copies, size in rows
    }


def _evict(connection: sqlite3.Connection, usage: Usage, row: int, size: int, step: int) -> None:
    connection.execute("UPDATE rollouts SET evicted_at = ? WHERE id = ?", (step, row))
    usage.live -= size
    usage.retained += size


def _insert(
    connection: sqlite3.Connection,
    codec: Codec,
    ids: _Ids,
    usage: Usage,
    draft: Draft,
    *,
    problem: int,
    step: int,
    copies: int,
    limits: HistoryLimits,
) -> tuple[int, bool]:
    """Writes a row, unless the file has no room for it; its size, and whether it was written."""
    rollout, entropy = draft.rollout, draft.rollout.entropy
    logprobs, tokens = codec.pack(draft.logprobs), codec.pack(draft.response_ids)
    size = row_bytes(len(logprobs), len(tokens))
    if usage.total + size > limits.max_bytes:
        return size, False
    prompt, new = _find_or_next(connection, "prompts", problem, draft.prompt_digest, ids.prompt)
    if new:
        ids.prompt = prompt
        packed = codec.pack(draft.prompt_ids)
        usage.prompts += blob_bytes(len(packed))
        connection.execute(
            "INSERT INTO prompts VALUES (?, ?, ?, ?, ?)",
            (prompt, problem, draft.prompt_digest, len(draft.prompt_ids), packed),
        )
    response, new = _find_or_next(connection, "responses", problem, draft.response_digest, ids.response)
    if new:
        ids.response = response
        connection.execute(
            "INSERT INTO responses VALUES (?, ?, ?, ?, ?)",
            (response, problem, draft.response_digest, len(draft.response_ids), tokens),
        )
    ids.rollout += 1
    connection.execute(
        "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
        (
            ids.rollout,
            problem,
            CONTEXT_CODES[rollout.context],
            VERDICT_CODES[rollout.verdict],
            prompt,
            response,
            len(draft.response_ids),
            draft.content,
            step,
            int(rollout.epoch),
            int(rollout.policy_step),
            float(rollout.reward),
            bool(rollout.truncated),
            _printable(rollout.finish_reason),
            _printable(rollout.reason),
            float(entropy.peak) if entropy else None,
            float(entropy.global_) if entropy else None,
            entropy.source if entropy else None,
            draft.samples,
            draft.reward_sum,
            copies,
            size,
        ),
    )
    connection.execute("INSERT INTO logprobs VALUES (?, ?)", (ids.rollout, logprobs))
    usage.live += size
    return size, True


def _printable(text: str) -> str:
    """A grader's reason may quote the model, whose broken Unicode must not stop the run."""
    return text.encode(errors="backslashreplace").decode()


def _find_or_next(
    connection: sqlite3.Connection, table: str, problem: int, digest: bytes, last: int
) -> tuple[int, bool]:
    found = connection.execute(
        f"SELECT id FROM {table} WHERE problem = ? AND digest = ?", (problem, digest)
    ).fetchone()
    return (found[0], False) if found else (last + 1, True)


def _problem_ids(connection: sqlite3.Connection, ids: _Ids, usage: Usage, uids: Iterable[str]) -> dict[str, int]:
    problems = {}
    for uid in sorted(set(uids)):
        found = connection.execute("SELECT id FROM problems WHERE uid = ?", (uid,)).fetchone()
        if found is None:
            ids.problem += 1
            usage.problems += PROBLEM_BYTES
            connection.execute("INSERT INTO problems VALUES (?, ?)", (ids.problem, uid))
        problems[uid] = found[0] if found else ids.problem
    return problems


def _last_ids(connection: sqlite3.Connection) -> _Ids:
    row = connection.execute(
        "SELECT last_problem, last_prompt, last_response, last_rollout FROM steps ORDER BY step DESC LIMIT 1"
    ).fetchone()
    return _Ids(*row) if row else _Ids(0, 0, 0, 0)


def _sweep(
    connection: sqlite3.Connection,
    usage: Usage,
    step: int,
    limits: HistoryLimits,
    seed: int,
    *,
    skip: set[tuple[int, int]],
) -> None:
    """Brings problems that this step does not touch under a cap that was lowered since they were written."""
    over = connection.execute(
        "SELECT problem, verdict FROM rollouts WHERE evicted_at IS NULL GROUP BY problem, verdict HAVING count(*) > ?",
        (limits.max_per_problem_and_verdict,),
    ).fetchall()
    for problem, verdict in over:
        if (problem, verdict) in skip:
            continue
        live = _live_rows(connection, problem, verdict)
        leaving = rows_to_evict(
            [row.candidate for row in live.values()],
            cap=limits.max_per_problem_and_verdict,
            policy=limits.eviction,
            verdict=VERDICTS[verdict],
            seed=seed,
        )
        for candidate in leaving:
            _evict(connection, usage, candidate.row, live[candidate.content].bytes, step)


def _make_room(
    connection: sqlite3.Connection, usage: Usage, step: int, limits: HistoryLimits, *, arrived: int
) -> None:
    """Evicts the oldest rows of the whole store ahead of need.

    An evicted row keeps its bytes until the rollback floor passes it. So there must always be room for what comes
    until then, taken to be a quarter more than `arrived`, the bytes that came since the floor moved last, and at most
    half of the store.
    """
    room = limits.max_bytes - usage.fixed
    most = room - min(arrived + arrived // 4, room // 2)
    while usage.live > most:
        oldest = connection.execute(
            "SELECT id, bytes FROM rollouts WHERE evicted_at IS NULL ORDER BY step, content LIMIT ?", (_BATCH,)
        ).fetchall()
        if not oldest:
            return
        for row, size in oldest:
            if usage.live <= most:
                return
            _evict(connection, usage, row, size, step)


def _count(connection: sqlite3.Connection, step: int, counted: dict[tuple[int, int, int], list[float]]) -> None:
    """Adds to the counters and keeps what they were. fsum: the order of arrival does not matter."""
    for key, rewards in sorted(counted.items()):
        before = connection.execute(
            "SELECT count, reward_sum FROM counters WHERE problem = ? AND context = ? AND verdict = ?", key
        ).fetchone() or (0, 0.0)
        connection.execute("INSERT INTO counters_before VALUES (?, ?, ?, ?, ?, ?)", (step, *key, *before))
        connection.execute(
            "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?)",
            (*key, before[0] + len(rewards), before[1] + math.fsum(rewards)),
        )
