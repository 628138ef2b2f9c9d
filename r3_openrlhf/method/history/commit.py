"""Writing a step in the store's transaction: rows that come or leave, and the counters."""

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby

from r3_openrlhf.method.history import experts
from r3_openrlhf.method.history.codec import Codec, digest, state_digest
from r3_openrlhf.method.history.drafts import CONTEXT_CODES, CONTEXTS, VERDICT_CODES, Draft
from r3_openrlhf.method.history.eviction import Candidate, richest_first, rows_over
from r3_openrlhf.method.history.usage import (
    CONTINUATION_BYTES,
    PROBLEM_BYTES,
    STATE_BYTES,
    Usage,
    blob_bytes,
    live_bytes,
    row_bytes,
)
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Rollout, Verdict


@dataclass(slots=True)
class _Ids:
    """The largest ids given out so far."""

    problem: int
    prompt: int
    response: int
    rollout: int


# (samples, sum of their rewards) by (problem, context, verdict)
_Tallies = dict[tuple[int, int, int], tuple[int, float]]


def _add(tallies: _Tallies, key: tuple[int, int, int], samples: int, reward_sum: float) -> None:
    """Add them up, in an order that does not depend on arrival: that of the drafts."""
    before = tallies.get(key, (0, 0.0))
    tallies[key] = before[0] + samples, before[1] + reward_sum


class StepWriter:
    """Adds one step to the store; use it once."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        codec: Codec,
        *,
        step: int,
        limits: HistorySettings,
    ) -> None:
        self._connection = connection
        self._codec = codec
        self._step = step
        self._limits = limits
        last = connection.execute(
            "SELECT last_problem, last_prompt, last_response, last_rollout FROM steps ORDER BY step DESC LIMIT 1"
        ).fetchone()
        self._ids = _Ids(*last) if last else _Ids(0, 0, 0, 0)
        self._usage = Usage.load(connection)
        self._counted: _Tallies = {}
        self._gone: _Tallies = {}  # what has no row
        self._touched: set[tuple[int, int]] = set()
        self._num_rows = self._num_unkept = self._arrived_bytes = 0

    def write(
        self,
        *,
        epoch: int,
        drafts: Sequence[Draft],
        ungraded: Sequence[Rollout],
        continued: Sequence[Rollout],
        sweep: bool,
    ) -> None:
        """`drafts` come ordered by uid, verdict, context; `continued`: the graded rollouts that
        began with a prefix, none merged; `sweep`: enforce the cap on every problem of the store."""
        problems = self._problem_ids(
            [*(draft.rollout.uid for draft in drafts), *(r.uid for r in ungraded)]
        )
        for rollout in ungraded:
            key = (
                problems[rollout.uid],
                CONTEXT_CODES[rollout.context],
                VERDICT_CODES[Verdict.UNGRADED],
            )
            _add(self._counted, key, 1, 0.0)
            _add(self._gone, key, 1, 0.0)
        for (uid, verdict), bucket in groupby(
            drafts, key=lambda draft: (draft.rollout.uid, draft.rollout.verdict)
        ):
            self._write_bucket(problems[uid], verdict, list(bucket))
        self._count_continuations(problems, continued)
        if sweep:
            self._sweep()
        self._make_room()
        self._count()
        num_rollouts = sum(draft.samples for draft in drafts) + len(ungraded)
        counts = (
            num_rollouts,
            len(ungraded),
            self._num_rows,
            self._num_unkept,
            self._arrived_bytes,
        )
        self._put("steps", self._step, epoch, *counts, *astuple(self._ids), time.time())
        self._usage.save(self._connection)

    def _put(self, table: str, *values: object) -> None:
        """Insert one row; values in the order of the table's columns."""
        self._connection.execute(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values
        )

    def _count_continuations(
        self, problems: dict[str, int], continued: Sequence[Rollout]
    ) -> None:
        """Count the tries and successes of each state that this step continued from."""
        found: dict[tuple[int, bytes], list[int]] = {}
        for rollout in continued:
            state = state_digest(rollout.response_ids[: rollout.prefix_tokens])
            counts = found.setdefault((problems[rollout.uid], state), [0, 0])
            counts[0] += 1
            counts[1] += rollout.verdict is Verdict.CORRECT
        self._usage.continuations += CONTINUATION_BYTES * len(found)
        for key, counts in sorted(found.items()):
            self._put("continuations", *key, self._step, *counts)

    def _write_bucket(self, problem: int, verdict: Verdict, drafts: list[Draft]) -> None:
        """Write the drafts of one problem and verdict: who replaces whom, who leaves, who comes."""
        code = VERDICT_CODES[verdict]
        self._touched.add((problem, code))
        live = self._live_rows(problem, code)
        replaced = {
            draft.content: live.pop(draft.content) for draft in drafts if draft.content in live
        }
        candidates = [
            *live.values(),
            *(self._candidate(draft, replaced.get(draft.content)) for draft in drafts),
        ]
        refused = set()
        for candidate in self._over(candidates):
            if candidate.row is None:
                refused.add(candidate.content)
            else:
                self._evict(candidate.row, candidate.num_bytes)
        for draft in drafts:
            key = problem, CONTEXT_CODES[draft.rollout.context], code
            _add(self._counted, key, draft.samples, draft.reward_sum)
            earlier = replaced.get(draft.content)
            copies = draft.samples + (earlier.copies if earlier else 0)
            kept = draft.content not in refused and self._insert(
                draft, problem=problem, copies=copies, earlier=earlier
            )
            if kept:
                self._num_rows += 1
            else:
                _add(self._gone, key, draft.samples, draft.reward_sum)
                self._num_unkept += draft.samples
            if earlier and (kept or draft.content in refused):  # no room: the older stays
                self._evict(earlier.row, earlier.num_bytes)

    def _candidate(self, draft: Draft, earlier: Candidate | None) -> Candidate:
        """Return a draft as eviction sees it, with the state of the row that it replaces, or its own."""
        first_step = earlier.first_step if earlier else None
        if first_step is None and draft.state is not None:
            first_step = self._step
        return Candidate(None, draft.rollout.context, self._step, draft.content, first_step)

    def _over(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        limits = self._limits
        return rows_over(
            candidates,
            cap=limits.max_per_problem_and_verdict,
            max_states=limits.max_states_per_problem,
        )

    def _live_rows(self, problem: int, verdict: int) -> dict[bytes, Candidate]:
        """Recallable rows of one problem and verdict, by content."""
        rows = self._connection.execute(
            "SELECT id, context, step, content, (SELECT min(first_step) FROM states WHERE rollout = id), copies, bytes "
            "FROM rollouts WHERE problem = ? AND verdict = ? AND evicted_at IS NULL",
            (problem, verdict),
        )
        return {
            content: Candidate(row, CONTEXTS[context], step, content, *others)
            for row, context, step, content, *others in rows
        }

    def _evict(self, row: int | None, size: int) -> None:
        assert row is not None
        self._connection.execute(
            "UPDATE rollouts SET evicted_at = ? WHERE id = ?", (self._step, row)
        )
        self._usage.live -= size
        self._usage.retained += size

    def _insert(
        self, draft: Draft, *, problem: int, copies: int, earlier: Candidate | None
    ) -> bool:
        """Write a row; False when the file has no room for it."""
        rollout, entropy = draft.rollout, draft.rollout.entropy
        tokens = self._codec.pack(rollout.response_ids)
        logprobs = self._codec.pack(rollout.response_logprobs) if rollout.has_logprobs else None
        size = row_bytes(len(logprobs or b""), len(tokens))
        turns = None if draft.turns is None else self._codec.compress(draft.turns)
        size += 0 if turns is None else blob_bytes(len(turns))
        chosen = None
        if rollout.experts is not None:
            chosen = experts.pack(self._codec, rollout.experts)
            size += blob_bytes(len(chosen.data))
        had_state = earlier is not None and earlier.first_step is not None
        if had_state or draft.state is not None:
            size += STATE_BYTES
        self._arrived_bytes += size
        if self._usage.total + size > self._limits.max_bytes:
            return False
        if (prompt := self._id_of("prompts", problem, draft.prompt_digest)) is None:
            prompt = self._ids.prompt = self._ids.prompt + 1
            packed = self._codec.pack(rollout.prompt_ids)
            self._usage.prompts += blob_bytes(len(packed))
            self._put(
                "prompts", prompt, problem, draft.prompt_digest, len(rollout.prompt_ids), packed
            )
        if (response := self._id_of("responses", problem, draft.response_digest)) is None:
            response = self._ids.response = self._ids.response + 1
            self._put(
                "responses",
                response,
                problem,
                draft.response_digest,
                rollout.num_tokens,
                tokens,
            )
        self._ids.rollout += 1
        self._put(
            "rollouts",
            self._ids.rollout,
            problem,
            CONTEXT_CODES[rollout.context],
            VERDICT_CODES[rollout.verdict],
            prompt,
            response,
            rollout.num_tokens,
            draft.content,
            self._step,
            rollout.epoch,
            rollout.policy_step,
            rollout.graded_reward,
            rollout.truncated,
            _printable(rollout.finish_reason),
            _printable(rollout.reason),
            *(
                (entropy.peak, entropy.global_, entropy.source)
                if entropy
                else (None, None, None)
            ),
            draft.samples,
            draft.reward_sum,
            copies,
            size,
            None,
            rollout.origin,
        )
        self._put(
            "logprobs",
            self._ids.rollout,
            logprobs,
            json.dumps(rollout.given) if rollout.given else None,
            json.dumps(rollout.pieces) if rollout.pieces else None,
        )
        if chosen is not None:
            self._put("experts", self._ids.rollout, *chosen)
        if draft.turns is not None:
            self._put("trajectories", self._ids.rollout, digest(draft.turns), turns)
        if earlier is not None and had_state:  # the same response: it keeps its first state
            self._connection.execute(
                "INSERT INTO states SELECT ?, num_tokens, state, value, first_step FROM states WHERE rollout = ?",
                (self._ids.rollout, earlier.row),
            )
        elif draft.state is not None:
            for length, value in draft.state.cuts:
                state = state_digest(rollout.response_ids[:length])
                self._put("states", self._ids.rollout, length, state, value, self._step)
        self._usage.live += size
        return True

    def _id_of(self, table: str, problem: int, digest: bytes) -> int | None:
        """Return the id of a stored prompt or response."""
        query = f"SELECT max(id) FROM {table} WHERE problem = ? AND digest = ?"
        return self._connection.execute(query, (problem, digest)).fetchone()[0]

    def _problem_ids(self, uids: Iterable[str]) -> dict[str, int]:
        problems = {}
        for uid in sorted(set(uids)):
            found = self._connection.execute(
                "SELECT id FROM problems WHERE uid = ?", (uid,)
            ).fetchone()
            if found is None:
                self._ids.problem += 1
                self._usage.problems += PROBLEM_BYTES
                self._put("problems", self._ids.problem, uid)
            problems[uid] = found[0] if found else self._ids.problem
        return problems

    def _sweep(self) -> None:
        """Brings problems that this step leaves alone under a cap lowered since."""
        cap = min(self._limits.max_per_problem_and_verdict, self._limits.max_states_per_problem)
        over = self._connection.execute(
            "SELECT problem, verdict FROM rollouts WHERE evicted_at IS NULL "
            "GROUP BY problem, verdict HAVING count(*) > ?",
            (cap,),
        ).fetchall()
        for problem, verdict in set(over) - self._touched:
            live = self._live_rows(problem, verdict)
            for candidate in self._over(list(live.values())):
                self._evict(candidate.row, candidate.num_bytes)

    def _make_room(self) -> None:
        """Evicts rows of the richest sets (eviction.py) ahead of need.

        An evicted row keeps its bytes until the rollback floor passes it. So there must always be
        room for what comes until then, taken to be a quarter more than what came since the floor
        moved last, and at most half of the store."""
        (arrived,) = self._connection.execute(
            "SELECT coalesce(sum(bytes), 0) FROM steps "
            "WHERE step > coalesce((SELECT value FROM meta WHERE key = 'floor'), -1)"
        ).fetchone()
        most = live_bytes(
            self._limits.max_bytes - self._usage.fixed, arrived=arrived + self._arrived_bytes
        )
        surplus = self._usage.live - most
        if surplus <= 0:
            return
        for row, size in richest_first(
            self._connection, surplus=surplus, live=self._usage.live
        ):
            self._evict(row, size)
            if self._usage.live <= most:
                return

    def _count(self) -> None:
        """Add to the counters and keep what they were."""
        for key, (count, reward_sum) in sorted(self._counted.items()):
            before = self._connection.execute(
                "SELECT count, reward_sum FROM counters WHERE problem = ? AND context = ? AND verdict = ?",
                key,
            ).fetchone() or (0, 0.0)
            self._put("counters_before", self._step, *key, *before)
            self._connection.execute(
                "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?)",
                (*key, before[0] + count, before[1] + reward_sum),
            )
        for key, tally in sorted(self._gone.items()):
            self._put("gone", self._step, *key, *tally)


def _printable(text: str) -> str:
    """Escape broken Unicode: a grader's reason may quote the model, and must not stop the run."""
    return text.encode(errors="backslashreplace").decode()
