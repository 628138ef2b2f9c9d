"""Choose who leaves: of a problem and verdict above its cap, of all when the file is full.

A set is what a recall chooses from: a problem's recallable rows of one verdict. The oldest rows of
a set leave first, by sampling step; but rows of a reflection prompt or a prefix leave before the
plain: recall into a plain group prefers these, and a hard problem's further groups would push them
out. Imported rows are a set of their own: the policy's own rows never push them out.

When the file is full, the richest sets give first (docs/runs.md, Bounds). Of problems' last rows
errors leave first: replay waits for a success on a hard problem. Rows that leave by age alone would
be those of the problems not asked for longest, which an epoch asks next.

It looks at content, not row ids or arrival: every rank order evicts the same rows."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from r3_openrlhf.method.types import Context

# In a set, the longest staying first: `rows_over` reversed. Context 0: plain, 3: imported; verdict 0: right.
_LEAVING = """
SELECT id, bytes FROM (
    SELECT r.id, r.bytes, r.step, r.content, r.verdict,
           row_number() OVER (
               PARTITION BY r.problem, r.verdict, r.context = 3 ORDER BY r.context <> 0, r.step DESC, r.content DESC) AS place
    FROM rollouts r WHERE evicted_at IS NULL AND {kept})
ORDER BY place DESC, place = 1 AND verdict = 0, step, content, id LIMIT ?
"""
_WITHOUT_STATE = "NOT EXISTS (SELECT 1 FROM states s WHERE s.rollout = r.id)"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of a set. `row` is None for a rollout that is not stored yet."""

    row: int | None
    context: Context
    step: int
    content: bytes  # digest of context, prompt, response and verdict
    first_step: int | None = None  # of its state; None: it has none
    copies: int = 0  # samples of this response, while it was stored
    num_bytes: int = 0


def rows_over(candidates: Sequence[Candidate], *, cap: int, max_states: int) -> list[Candidate]:
    """Return the candidates (all of one problem and verdict) that have to leave, first to leave first."""
    own: list[Candidate] = []
    imported: list[Candidate] = []
    states: list[Candidate] = []
    for candidate in candidates:
        if candidate.first_step is not None:
            states.append(candidate)
        elif candidate.context is Context.IMPORTED:
            imported.append(candidate)
        else:
            own.append(candidate)
    own.sort(key=lambda one: (one.context is Context.PLAIN, one.step, one.content))
    imported.sort(key=lambda one: (one.step, one.content))
    states.sort(key=lambda one: (-(one.first_step or 0), one.content))
    return _beyond(own, cap) + _beyond(imported, cap) + _beyond(states, max_states)


def _beyond(candidates: list[Candidate], most: int) -> list[Candidate]:
    """Return the first of these, so that `most` remain."""
    return candidates[: max(0, len(candidates) - most)]


def richest_first(
    connection: sqlite3.Connection, *, surplus: int, live: int
) -> Iterator[tuple[int, int]]:
    """(id, bytes) of recallable rows in the order in which they leave, until none is left.

    The caller evicts each row before it asks for the next, and stops when enough have left.
    `surplus` of the `live` bytes have to go; it only decides how many rows are looked up at a time.
    """
    (rows,) = connection.execute(
        "SELECT count(*) FROM rollouts WHERE evicted_at IS NULL"
    ).fetchone()
    some = 1 + surplus * rows // max(1, live)
    for kept in (_WITHOUT_STATE, "true"):
        while found := connection.execute(_LEAVING.format(kept=kept), (some,)).fetchall():
            yield from found
