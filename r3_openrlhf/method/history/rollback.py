"""Undoing steps, and giving up the right to undo them. Runs inside the store's transaction."""

import sqlite3

from r3_openrlhf.method.history.usage import Usage

BELOW_FLOOR = -1  # `gone.step` of what no roll-back can bring back


def forget_after(connection: sqlite3.Connection, *, step: int) -> None:
    """Make the store what it was at `step`."""
    last = connection.execute(
        "SELECT last_problem, last_rollout FROM steps WHERE step <= ? ORDER BY step DESC LIMIT 1",
        (step,),
    ).fetchone()
    problem, rollout = last or (0, 0)
    _delete_rows(connection, "id > ?", rollout)
    connection.execute("UPDATE rollouts SET evicted_at = NULL WHERE evicted_at > ?", (step,))

    # SQLite takes the other columns from the row that has the min
    changed = connection.execute(
        "SELECT problem, context, verdict, count, reward_sum, min(step) FROM counters_before WHERE step > ? "
        "GROUP BY problem, context, verdict",
        (step,),
    ).fetchall()
    for *key, count, reward_sum, _ in changed:
        connection.execute(
            "DELETE FROM counters WHERE problem = ? AND context = ? AND verdict = ?", key
        )
        if count:
            connection.execute(
                "INSERT INTO counters VALUES (?, ?, ?, ?, ?)", (*key, count, reward_sum)
            )
    for table in ("counters_before", "gone", "continuations", "steps"):
        connection.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
    if last is None:  # nothing is left, not even what is below the floor
        tables = "counters gone continuations rollouts logprobs experts trajectories states responses prompts problems meta"
        for table in tables.split():
            connection.execute(f"DELETE FROM {table}")
        return
    connection.execute("DELETE FROM problems WHERE id > ?", (problem,))
    Usage.recount(connection).save(connection)


def purge_below(connection: sqlite3.Connection, *, floor: int) -> None:
    """Remove for good what only a roll-back to before `floor` would need."""
    for kept, table, of_floor in (
        ("samples", "rollouts", "evicted_at <= ?"),
        ("count", "gone", "step BETWEEN 0 AND ?"),
    ):
        connection.execute(
            f"INSERT INTO gone SELECT ?, problem, context, verdict, sum({kept}), sum(reward_sum) FROM {table} "
            f"WHERE {of_floor} GROUP BY problem, context, verdict "
            "ON CONFLICT DO UPDATE SET count = count + excluded.count, reward_sum = reward_sum + excluded.reward_sum",
            (BELOW_FLOOR, floor),
        )
    connection.execute("DELETE FROM gone WHERE step BETWEEN 0 AND ?", (floor,))
    connection.execute(
        "INSERT INTO continuations SELECT problem, state, ?, sum(tries), sum(successes) FROM continuations "
        "WHERE step BETWEEN 0 AND ? GROUP BY problem, state "
        "ON CONFLICT DO UPDATE SET tries = tries + excluded.tries, successes = successes + excluded.successes",
        (BELOW_FLOOR, floor),
    )
    connection.execute("DELETE FROM continuations WHERE step BETWEEN 0 AND ?", (floor,))
    _delete_rows(connection, "evicted_at <= ?", floor)
    connection.execute("DELETE FROM counters_before WHERE step <= ?", (floor,))
    Usage.recount(connection).save(connection)


def _delete_rows(connection: sqlite3.Connection, which: str, number: int) -> None:
    """Delete rollouts, and the texts that no other row needs."""
    columns = {"prompts": "prompt", "responses": "response"}
    shared = {
        table: connection.execute(
            f"SELECT DISTINCT {column} FROM rollouts WHERE {which}", (number,)
        ).fetchall()
        for table, column in columns.items()
    }
    for table in ("logprobs", "experts", "trajectories", "states"):
        connection.execute(
            f"DELETE FROM {table} WHERE rollout IN (SELECT id FROM rollouts WHERE {which})",
            (number,),
        )
    connection.execute(f"DELETE FROM rollouts WHERE {which}", (number,))
    for table, column in columns.items():
        unused = f"id = :id AND NOT EXISTS (SELECT 1 FROM rollouts WHERE {column} = :id)"
        ids = [{"id": number} for (number,) in shared[table]]
        connection.executemany(f"DELETE FROM {table} WHERE {unused}", ids)
