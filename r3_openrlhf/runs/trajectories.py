"""The trajectories of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]  # of rollout_files.COLUMNS


class Played(NamedTuple):
    """One trajectory of a task in a step."""

    place: int  # among those of its group, in the order of the file
    name: str
    rows: list[Row]  # its turns, in order

    @property
    def is_lost(self) -> bool:
        """Its environment hung or crashed: it has no returns, and is in no group."""
        return any(row["step_return"] is None for row in self.rows)

    @property
    def recalled_from(self) -> int | None:
        """The step that played it; None: this one."""
        return self.rows[0]["recalled_from"]

    def reward(self) -> float:
        """Sum of its turns' rewards."""
        return sum(row["turn_reward"] or 0.0 for row in self.rows)


def trajectories_of(rows: Sequence[Row]) -> list[Played]:
    """Return the trajectories among a group's rows, in file order; [] of responses to a problem."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:
        if row["trajectory"] is not None:
            found.setdefault((row["trajectory"], row["recalled_from"]), []).append(row)
    return [
        Played(place, name, sorted(turns, key=lambda row: row["turn"] or 0))
        for place, ((name, _), turns) in enumerate(found.items())
    ]
