"""Who leaves when the whole file is full: the richest sets give first.

A set is what a recall chooses from: the recallable rows of one problem with one verdict. Each row has a place in its set,
1 for the one that stays longest under the policy (eviction.py). The last place of the largest set leaves first, among
equal places the oldest row. So no set is emptied while another one has two rows: a problem's only success, or only error,
is the last thing that the store gives up. Rows that leave by age alone, as a first-in-first-out store would have it, are
those of the problems that were not asked for longest, which an epoch asks next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from r3_openrlhf.history.codec import digest
from r3_openrlhf.history.drafts import VERDICT_CODES
from r3_openrlhf.types import Verdict

# Inside a set, the row that stays longest first: eviction._leaves_first, the other way round.
_STAYS_LONGEST = {
    "oldest": "r.context <> 0, r.step DESC, r.content DESC",
    "reservoir": "r.context <> 0, reservoir(r.content)",
    "shortest_correct": (
        f"r.context <> 0, CASE r.verdict WHEN {VERDICT_CODES[Verdict.CORRECT]} THEN r.num_tokens ELSE 0 END, "
        "r.step DESC, r.content DESC"
    ),
}
_SIZES = (
    "SELECT size, count(*) FROM (SELECT count(*) AS size FROM rollouts WHERE evicted_at IS NULL "
    "GROUP BY problem, verdict) GROUP BY size ORDER BY size DESC"
)
# Few sets are above the level that most are at, so that the places of few have to be found.
_ABOVE = """
WITH rich AS MATERIALIZED (
    SELECT problem, verdict FROM rollouts WHERE evicted_at IS NULL
    GROUP BY problem, verdict HAVING count(*) > :level),
placed AS (
    SELECT r.id, r.step, r.content,
           row_number() OVER (PARTITION BY r.problem, r.verdict ORDER BY {order}) AS place
    FROM rich CROSS JOIN rollouts r
    ON r.problem = rich.problem AND r.verdict = rich.verdict AND r.evicted_at IS NULL)
SELECT id FROM placed WHERE place > :level ORDER BY place DESC, step, content, id
"""


def richest_first(
    connection: sqlite3.Connection, *, policy: str, seed: int, surplus: int, live: int
) -> Iterator[tuple[int, int]]:
    """(id, bytes) of recallable rows in the order in which they leave, until none is left.

    The caller evicts each row before it asks for the next, and stops when enough have left. `surplus` of the `live`
    bytes have to go; it only decides how many rows are looked up at a time.
    """
    prefix = b"reservoir", str(seed).encode()
    connection.create_function("reservoir", 1, lambda content: digest(*prefix, content), deterministic=True)
    above = _ABOVE.format(order=_STAYS_LONGEST[policy])
    sizes = connection.execute(_SIZES).fetchall()
    rows = sum(size * sets for size, sets in sizes)
    level = _level(sizes, rows=-(-surplus * rows // max(1, live)))
    while level >= 0:
        for (row,) in connection.execute(above, {"level": level}).fetchall():
            (size,) = connection.execute("SELECT bytes FROM rollouts WHERE id = ?", (row,)).fetchone()
            yield row, size
        level -= 1


def _level(sizes: list[tuple[int, int]], *, rows: int) -> int:
    """The largest size to which the sets can be cut so that `rows` leave; 0 when all of them have to.

    sizes: (rows in the set, how many sets have as many), largest first.
    """
    level, found, sets = sizes[0][0] if sizes else 0, 0, 0
    count = dict(sizes)
    while level > 0 and found < rows:
        sets += count.get(level, 0)
        found += sets
        level -= 1
    return level
