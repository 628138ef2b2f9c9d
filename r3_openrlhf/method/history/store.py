"""The history store: a run's rollouts, bounded, one SQLite file, a transaction per step."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r3_openrlhf.method.core.groups import RecallFate
from r3_openrlhf.method.core.states import StoredState
from r3_openrlhf.method.errors import HistoryError
from r3_openrlhf.method.history import recall, rollback
from r3_openrlhf.method.history.codec import Codec
from r3_openrlhf.method.history.commit import StepWriter
from r3_openrlhf.method.history.connection import (
    MEMORY,
    open_for_reading,
    open_for_writing,
    sentences,
    snapshot,
)
from r3_openrlhf.method.history.drafts import (
    CONTEXT_CODES,
    VERDICT_CODES,
    merge_duplicates,
)
from r3_openrlhf.method.history.lease import Lease, last_holder
from r3_openrlhf.method.history.records import RecallRequest, StoredRollout
from r3_openrlhf.method.settings import HistorySettings
from r3_openrlhf.method.types import Context, HardBy, Rollout, Verdict
from r3_openrlhf.method.values import read, read_rollouts


@dataclass(eq=False, repr=False)
class HistoryStore(AbstractContextManager["HistoryStore"]):
    """Every graded rollout of a run, in one SQLite file; `open` makes it. Methods raise HistoryError
    for an invalid file or request (ConfigError: the order does not exist; InvalidValue: a rollout).

    Several threads of the process that opened it may use it. A forked child may not."""

    _connection: sqlite3.Connection | None
    path: str
    limits: HistorySettings
    seed: int
    _lease: Lease | None
    _writer: bool
    _codec: Codec = field(default_factory=Codec, init=False)
    _guard: threading.RLock = field(default_factory=threading.RLock, init=False)
    _process: int = field(default_factory=os.getpid, init=False)
    # the limits may be lower than those of the last writer
    _sweep: bool = field(default=True, init=False)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        limits: HistorySettings | None = None,
        seed: int = 0,
        writer: bool = True,
    ) -> HistoryStore:
        """Open the store at `path`, or create it. ":memory:" lives as long as the object.

        A writer holds the store's lease until `close` or its end. A second writer is refused with a
        sentence that names the first. With writer=False the store must exist and cannot be changed;
        a run may still write to it. `seed` is part of the random choice in `recall`."""
        limits = limits or HistorySettings()
        path = str(path)
        if not writer:
            return cls(open_for_reading(path), path, limits, seed, None, False)
        lease = None
        if path != MEMORY:
            if not Path(path).parent.is_dir():
                raise HistoryError(f"cannot create {path}: its directory does not exist")
            # its journal and its lock have the name of one of them
            if Path(path).is_file() and os.stat(path).st_nlink > 1:
                raise HistoryError(
                    f"{path} has other names (hard links), under which others may write to it: use a copy"
                )
            lease = Lease.acquire(lock_of(Path(path)), name=path)
        try:
            return cls(open_for_writing(path), path, limits, seed, lease, True)
        except BaseException:
            if lease is not None:
                lease.release()
            raise

    # ---- writing

    def commit_step(self, step: int, epoch: int, rollouts: Iterable[Rollout]) -> None:
        """Store a step's samples and evict what exceeds the limits, in one transaction.

        When it returns, the step survives a power failure; before, nothing of it is visible.
        Ungraded rollouts are counted but not stored."""
        step, epoch = read("the step", int, step), read("the epoch", int, epoch)
        rollouts = read_rollouts(rollouts)
        drafts = merge_duplicates(
            rollout for rollout in rollouts if rollout.verdict is not Verdict.UNGRADED
        )
        ungraded = [rollout for rollout in rollouts if rollout.verdict is Verdict.UNGRADED]
        continued = [
            one for one in rollouts if one.prefix_tokens and one.verdict is not Verdict.UNGRADED
        ]
        with self._transaction(f"commit step {step} to") as connection:
            last = self.last_step
            if step < 0 or (last is not None and step <= last):
                raise HistoryError(
                    f"cannot commit step {step} to {self.path}: its newest step is {last}; roll back first"
                )
            writer = StepWriter(connection, self._codec, step=step, limits=self.limits)
            writer.write(
                epoch=epoch,
                drafts=drafts,
                ungraded=ungraded,
                continued=continued,
                sweep=self._sweep,
            )
        self._sweep = False

    def roll_back(self, step: int) -> None:
        """Restore the store to `step`.

        Rows that later steps evicted return; counters are those of `step`. HistoryError if `step`
        is before the rollback floor, unless nothing would remain (then the store is emptied)."""
        step = -1 if step == -1 else read("the step", int, step)
        with self._transaction(f"roll back to step {step} in") as connection:
            floor = self.rollback_floor
            (first,) = connection.execute("SELECT min(step) FROM steps").fetchone()
            if floor is not None and first <= step < floor:
                raise HistoryError(
                    f"cannot roll {self.path} back to step {step}: what it needs was removed when step {floor} became "
                    f"the oldest checkpoint; resume from step {floor} or later, or start with an empty run_dir"
                )
            rollback.forget_after(connection, step=step)
        self._sweep = True

    def set_rollback_floor(self, step: int) -> None:
        """Declare that no roll-back goes before `step`; free the space of rows evicted by then.

        Call it with the oldest checkpoint that is kept, or, without any, with every step.
        """
        step = -1 if step == -1 else read("the rollback floor", int, step)
        with self._transaction(f"set the rollback floor {step} of") as connection:
            last, floor = self.last_step, self.rollback_floor
            if last is None:
                return
            if step > last:
                raise HistoryError(
                    f"the rollback floor {step} is after the newest step of {self.path}, {last}"
                )
            if floor is None or step > floor:
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('floor', ?)", (step,))
                rollback.purge_below(connection, floor=step)

    # ---- reading

    @property
    def last_step(self) -> int | None:
        """The newest committed step; None for an empty store."""
        with self._reading() as connection:
            return connection.execute("SELECT max(step) FROM steps").fetchone()[0]

    @property
    def rollback_floor(self) -> int | None:
        """The oldest step that roll_back takes; None: any."""
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = 'floor'").fetchone()
            return row[0] if row else None

    def recall(self, uid: str, verdict: Verdict, **facts: Any) -> list[StoredRollout]:
        """Return up to k different stored rollouts; `facts`: the other fields of RecallRequest.

        The result depends only on the store's content, the seed and the arguments."""
        return self.answer(RecallRequest(uid=uid, verdict=verdict, **facts))

    def answer(self, request: RecallRequest) -> list[StoredRollout]:
        """Return the stored rollouts of one request; see `recall`."""
        with self._reading() as connection, snapshot(connection):
            chosen = recall.choose(connection, self._codec, request, seed=self.seed)
            return recall.read(connection, self._codec, chosen)

    def absence(self, request: RecallRequest) -> RecallFate | None:
        """Return why a request for at least one rollout gets none, or None if it gets some."""
        with self._reading() as connection, snapshot(connection):
            return recall.absence(connection, request)

    @property
    def num_graded(self) -> int:
        """Count the graded rollouts of this run, with evicted and without imported ones."""
        with self._reading() as connection:
            (count,) = connection.execute(
                "SELECT coalesce(sum(count), 0) FROM counters WHERE verdict != ? AND context != ?",
                (VERDICT_CODES[Verdict.UNGRADED], CONTEXT_CODES[Context.IMPORTED]),
            ).fetchone()
        return count

    def continuations(self) -> dict[tuple[str, bytes], tuple[int, int]]:
        """Return how often each state was continued, and how often rightly, by the problem's uid and
        the digest of its token ids (codec.state_digest)."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT p.uid, c.state, sum(c.tries), sum(c.successes) FROM continuations c "
                "JOIN problems p ON p.id = c.problem GROUP BY c.problem, c.state"
            ).fetchall()
        return {(uid, state): (tries, successes) for uid, state, tries, successes in rows}

    def states(self, *, step: int) -> list[StoredState]:
        """Return all promising states that are kept, the oldest first, each once: of the oldest
        response that begins with it. Ages are counted up to `step`."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT p.uid, s.rollout, s.num_tokens, s.value, s.first_step, s.state FROM states s "
                "JOIN rollouts r ON r.id = s.rollout JOIN problems p ON p.id = r.problem "
                "WHERE r.evicted_at IS NULL ORDER BY s.first_step, s.rollout, s.num_tokens",
            ).fetchall()
            known = self.continuations()
        found: dict[tuple[str, bytes], StoredState] = {}
        for uid, row, num_tokens, value, first_step, state in rows:
            facts = {
                "uid": uid,
                "row": row,
                "num_tokens": num_tokens,
                "value": value,
                "age": step - first_step,
            }
            tries, successes = known.get((uid, state), (0, 0))
            found.setdefault(
                (uid, state), StoredState(**facts, tries=tries, successes=successes)
            )
        return list(found.values())

    def rollouts(self, rows: Sequence[int]) -> list[StoredRollout]:
        """Return the stored rollouts with these row ids, in order, without missing ones."""
        with self._reading() as connection, snapshot(connection):
            return recall.read(connection, self._codec, rows)

    def means(
        self, by: HardBy, *, contexts: Sequence[Context] = (Context.PLAIN,)
    ) -> dict[str, float]:
        """Return uid -> share of right ones, or mean reward, of all graded rollouts of each problem
        from these prompts, evicted ones included, ordered by uid."""
        value = (
            "reward_sum"
            if by is HardBy.REWARD
            else f"count * (verdict = {VERDICT_CODES[Verdict.CORRECT]})"
        )
        codes = [CONTEXT_CODES[context] for context in contexts]
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT uid, 1.0 * sum({value}) / sum(count) FROM counters JOIN problems p ON p.id = problem "
                f"WHERE context IN ({', '.join('?' * len(codes))}) AND verdict != ? GROUP BY uid ORDER BY uid",
                (*codes, VERDICT_CODES[Verdict.UNGRADED]),
            ).fetchall()
        return dict(rows)

    def close(self) -> None:
        """Close the connection and release the lease. A second call does nothing."""
        with self._guard:
            if self._connection is None or self._process != os.getpid():
                return
            connection, self._connection = self._connection, None
            try:
                with sentences(self.path, "close"):
                    connection.close()
            finally:
                if self._lease is not None:
                    self._lease.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside

    def _usable_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise HistoryError(f"the history store {self.path} is closed")
        if self._process != os.getpid():
            raise HistoryError(
                f"{self.path} was opened by process {self._process}; a forked child cannot use it"
            )
        return self._connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._guard, sentences(self.path, "read"):
            yield self._usable_connection()

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._guard, sentences(self.path, doing):
            connection = self._usable_connection()
            if not self._writer:
                raise HistoryError(f"cannot {doing} {self.path}: it was opened for reading")
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self._lease is not None and not self._lease.is_held():
                    who = last_holder(lock_of(Path(self.path)))[0] or "another process"
                    raise HistoryError(
                        f"{self.path} was taken over by {who}; this run must stop"
                    )
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # SQLite has undone it already when the disk is full
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def lock_of(store: Path) -> Path:
    """Return the lock file of a store; symbolic links to the store share it."""
    store = store.resolve()
    return store.with_name(store.name + ".lock")
