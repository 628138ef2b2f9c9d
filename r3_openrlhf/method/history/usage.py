"""Bytes of the file, as the byte cap counts them.

Estimated from each row's content and not from the file's pages, so that the same rows always give
the same decision, whatever was deleted before; chosen to be above what SQLite needs."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass

from r3_openrlhf.method.history.connection import PAGE_BYTES

BASE_BYTES = 120_000  # an empty store: at least one page for each table and index
# a row of `rollouts`, its entries in the indexes, its counters, half-filled pages
ROW_BYTES = 704
CONTINUATION_BYTES = 160  # a row of `continuations`, half-filled pages
STATE_BYTES = 480  # a response's rows of `states`, MAX_CUTS at most
PROBLEM_BYTES = 640  # a row of `problems`, its index entry, its counters


def blob_bytes(size: int) -> int:
    """Count a blob's bytes on leaf and overflow pages (sqlite.org/fileformat2.html, 1.6)."""
    usable, overflow = PAGE_BYTES, PAGE_BYTES - 4
    local = size
    if size > usable - 35:
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % overflow
        local = local if local <= usable - 35 else least
    # Pages are not packed tightly: cells above a third of a page often have one to themselves.
    leaf = PAGE_BYTES if local > PAGE_BYTES // 3 else local * 3 // 2
    overflow_pages = -(-(size - local) // overflow)  # rounded up
    return leaf + overflow_pages * PAGE_BYTES


def row_bytes(logprob_bytes: int, token_bytes: int) -> int:
    """Bytes that a stored rollout takes, its blobs included."""
    return ROW_BYTES + blob_bytes(logprob_bytes) + blob_bytes(token_bytes)


def live_bytes(room: int, *, arrived: int) -> int:
    """Return the bytes of `room` for recallable rows, so that a quarter more than `arrived` since
    the rollback floor moved last has space too, as far as half of it goes."""
    return room - min(arrived + arrived // 4, room // 2)


@dataclass(slots=True)
class Usage:
    """The bytes of a store by its own accounting, by what takes them."""

    live: int = 0  # recallable rows
    retained: int = 0  # evicted rows that a roll-back may still bring back
    prompts: int = 0
    problems: int = 0
    continuations: int = 0

    @property
    def fixed(self) -> int:
        """Count the bytes that eviction cannot free."""
        return BASE_BYTES + self.prompts + self.problems + self.continuations

    @property
    def total(self) -> int:
        """Everything that counts against history.max_bytes."""
        return self.live + self.retained + self.fixed

    @classmethod
    def load(cls, connection: sqlite3.Connection) -> Usage:
        """Read the counters that the file's last transaction wrote; zeros in a new file."""
        rows = connection.execute("SELECT key, value FROM meta WHERE key LIKE 'usage.%'")
        return cls(**{key.removeprefix("usage."): value for key, value in rows})

    def save(self, connection: sqlite3.Connection) -> None:
        """Write it in the transaction that is open."""
        connection.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(f"usage.{name}", value) for name, value in asdict(self).items()],
        )

    @classmethod
    def recount(cls, connection: sqlite3.Connection) -> Usage:
        """Count again from the rows."""

        def total(sql: str) -> int:
            return connection.execute(sql).fetchone()[0] or 0

        return cls(
            live=total("SELECT sum(bytes) FROM rollouts WHERE evicted_at IS NULL"),
            retained=total("SELECT sum(bytes) FROM rollouts WHERE evicted_at IS NOT NULL"),
            prompts=sum(
                blob_bytes(size)
                for (size,) in connection.execute("SELECT length(ids) FROM prompts")
            ),
            problems=PROBLEM_BYTES * total("SELECT count(*) FROM problems"),
            continuations=CONTINUATION_BYTES * total("SELECT count(*) FROM continuations"),
        )
