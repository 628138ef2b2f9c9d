"""Findings about data, model or reward before a run: wrong for sure, or suspicious."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One sentence for the first page of a run: what was found, where, and what to do.

    Attributes:
        sentence: One line of plain text with its remedy. Text from a data set is cut to 80 characters.
        refuses: True where a run would certainly train on wrong verdicts or text; False warns and continues.
    """

    sentence: str
    refuses: bool = False
