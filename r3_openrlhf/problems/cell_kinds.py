"""Count the JSON types in each column that is read: a column with several is a surprise."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from r3_openrlhf.method.errors import DataError, quoted
from r3_openrlhf.problems.columns import value_at
from r3_openrlhf.problems.table import Numeral

_NAMES = {  # kind -> (its name, the plural)
    "text": ("text", "texts"),
    "number": ("number", "numbers"),
    "list": ("list", "lists"),
    "structure": ("structure", "structures"),
    "boolean": ("true or false", "true or false"),
    "other": ("value of another type", "values of another type"),
}


class CellKinds:
    """The kinds of cells of the columns of one source, filled row by row."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        # column -> kind -> (place of the first such row, its cell)
        self._first: dict[str, dict[str, tuple[str, object]]] = {}

    def add(
        self, row: dict[str, Any] | DataError, place: str, *, columns: Collection[str] | None
    ) -> None:
        """Count the cells of a row. Nothing is counted for an empty cell, or for what is no row.

        Args:
            place: the row's file and line.
            columns: those to count; dotted keys go into a cell. None: all of the row."""
        if isinstance(row, DataError):
            return
        for column in row if columns is None else columns:
            try:
                cell = value_at(row, column)
            except DataError:  # the row itself is refused for that
                continue
            if cell is None:
                continue
            kind = _kind_of(cell)
            self._counts.setdefault(column, Counter())[kind] += 1
            self._first.setdefault(column, {}).setdefault(kind, (place, cell))

    def notes(self) -> list[str]:
        """Return one sentence for each column with several kinds, with the first row of the rarest."""
        found = []
        for column, counts in self._counts.items():
            if len(counts) < 2:
                continue
            ordered = counts.most_common()
            listed = ", ".join(f"{number:,} {_named(kind, number)}" for kind, number in ordered)
            place, cell = self._first[column][ordered[-1][0]]
            found.append(f"column {column} has {listed}; {place}: {quoted(str(cell))}")
        return found


def _kind_of(cell: object) -> str:
    if isinstance(cell, bool):
        return "boolean"
    if isinstance(cell, (Numeral, int, float)):
        return "number"
    if isinstance(cell, str):
        return "text"
    if isinstance(cell, (list, tuple)):
        return "list"
    if isinstance(cell, dict):
        return "structure"
    return "other"


def _named(kind: str, number: int) -> str:
    one, several = _NAMES[kind]
    return one if number == 1 else several
